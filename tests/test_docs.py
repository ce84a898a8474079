"""What the documents show runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from dali_storage.catalog import Catalog
from dali_storage.reader import Reader
from dali_storage.testing import ReaderTests

ROOT = Path(__file__).parent.parent


def snippets(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


class TestTheBackendOfTheContributingPage(ReaderTests):
    def open(self, catalog: Catalog) -> Reader:
        names: dict[str, Any] = {}
        exec(snippets("CONTRIBUTING.md", "python")[0], names)
        reader: Reader = names["PreadReader"](catalog)
        return reader


def test_it_has_the_length_that_the_page_says() -> None:
    assert len(snippets("CONTRIBUTING.md", "python")[0].splitlines()) <= 40


def test_the_snippet_of_the_readme(tmp_path: Path) -> None:
    for index in range(20):
        folder = tmp_path / f"class{index % 2}"
        folder.mkdir(exist_ok=True)
        Image.new("RGB", (40 + index, 30), (index, 0, 99)).save(folder / f"{index}.jpg")
    code = snippets("README.md", "python")[0]
    for there, here in (
        ("device_id=0", "device_id=None"),
        ("batch_size=64", "batch_size=4"),
        ('device="mixed"', 'device="cpu"'),
        ("/data/train", str(tmp_path)),
    ):
        assert there in code
        code = code.replace(there, here)
    code += "\nprint(sum(len(batch[0]['label']) for batch in loader), len(loader))\n"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout) == (0, "20 5\n"), run.stderr


@pytest.mark.parametrize(
    "target", re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.M)
)
def test_the_commands_of_the_readme_are_in_the_makefile(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_every_name_of_a_backend_in_the_readme_exists() -> None:
    from dali_storage import registry

    table = re.findall(r"^\| `([\w-]+)`", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(table) == set(registry.names())
