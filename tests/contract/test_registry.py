from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dali_storage import Batch, Catalog, IntArray, Reader, readers
from dali_storage.backends.block import BlockReader
from dali_storage.backends.memory import MemoryReader
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.contract import registry
from dali_storage.dynamic import readers as dynamic_readers
from dali_storage.loaders import image_folder
from tests.kit.dali import build
from tests.kit.paths import ROOT

PLUGIN = """
from dali_storage import Reader
import numpy as np

class OnesReader(Reader):
    def __init__(self, catalog, *, ones: int = 1):
        self.ones = ones
    def sizes(self, samples, lane):
        return np.full(samples.shape, self.ones)
    def read(self, batch, lane):
        for start in batch.offsets:
            batch.buffer[start : start + self.ones] = 1
    def close(self):
        pass

class Half(Reader):
    pass

class Loose(OnesReader):
    def __init__(self, catalog, ones: int = 1):
        pass

class Open(OnesReader):
    def __init__(self, catalog, **options):
        pass

class Alone(OnesReader):
    def __init__(self):
        pass

NUMBER = 5
"""

RUN = """
import numpy as np
from nvidia.dali import Pipeline
from dali_storage import readers
pipeline = Pipeline(batch_size=2, num_threads=1, device_id=None)
with pipeline:
    pipeline.set_outputs(*readers.file(files=["x"], backend="ones", backend_options={"ones": 3}))
print(np.asarray(pipeline.run()[0][1]).tolist())
"""


@pytest.fixture
def plugin(tmp_path: Path) -> dict[str, str]:
    """The environment with a real distribution installed in a folder of its own, by pip."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "ones_backend.py").write_text(PLUGIN)
    (project / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'ones-backend'\nversion = '1'\n"
        "[tool.setuptools]\npy-modules = ['ones_backend']\n"
        "[project.entry-points.'dali_storage.backends']\n"
        "ones = 'ones_backend:OnesReader'\nhalf = 'ones_backend:Half'\n"
        "number = 'ones_backend:NUMBER'\nloose = 'ones_backend:Loose'\n"
        "open = 'ones_backend:Open'\nalone = 'ones_backend:Alone'\ntypo = 'ones_backend:Typo'\n"
        "broken = 'no_such_module_of_mine:X'\nmemory = 'ones_backend:OnesReader'\n"
    )
    target = tmp_path / "installed"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--disable-pip-version-check"),
            *("--root-user-action=ignore", "--target", str(target), str(project)),
        ],
        check=True,
    )
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(target), str(ROOT)])}


def python(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60
    )


def verdicts(environment: dict[str, str]) -> dict[str, dict[str, Any]]:
    run = python(environment, "-m", "dali_storage", "--json")
    assert run.returncode == 0, run.stderr
    return {backend["name"]: backend for backend in json.loads(run.stdout)["backends"]}


def test_a_backend_of_another_distribution(plugin: dict[str, str]) -> None:
    run = python(plugin, "-c", RUN)
    assert (run.returncode, run.stdout) == (0, "[1, 1, 1]\n"), run.stderr
    assert verdicts(plugin)["ones"]["works"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("half", TypeError, "'half': entry point ones_backend:Half of ones-backend 1 does not im"),
        ("half", TypeError, "does not implement __init__, close, read, sizes"),
        ("number", TypeError, "ones_backend:NUMBER of .* is not a subclass of dali_storage.Reader"),
        ("loose", TypeError, "must take its options as keyword-only arguments: ones: int = 1"),
        ("open", TypeError, "must take its options as keyword-only arguments: \\*\\*options"),
        ("alone", TypeError, "does not take a catalog as its first argument"),
        ("typo", AttributeError, "entry point ones_backend:Typo of ones-backend 1"),
        ("broken", ModuleNotFoundError, "no_such_module_of_mine"),
        ("memory", ValueError, "offered more than once"),
    ],
)
def test_a_wrong_plugin_is_refused(
    plugin: dict[str, str], name: str, error: type[Exception], message: str
) -> None:
    run = python(
        plugin, "-c", f"from dali_storage.contract import registry; registry.load({name!r})"
    )
    assert f"\n{error.__name__}: " in run.stderr
    assert re.search(message, run.stderr), run.stderr


def test_a_wrong_plugin_does_not_hide_the_others(plugin: dict[str, str]) -> None:
    known = verdicts(plugin)
    assert "does not implement" in known["half"]["reason"]
    assert "no_such_module_of_mine" in known["broken"]["reason"]
    assert "entry point no_such_module_of_mine:X of ones-backend 1" in known["broken"]["reason"]
    assert known["python-file"] == {
        "name": "python-file",
        "works": True,
        "reason": None,
        "remedy": None,
    }


def test_the_backends_that_ship() -> None:
    assert registry.names() == [
        "block",
        "memory",
        "object-store",
        "python-file",
        "xnvme-bam",
        "xnvme-block",
        "xnvme-file",
    ]
    assert registry.load("block") is BlockReader
    assert registry.load("memory") is MemoryReader
    assert registry.load("python-file") is PythonFileReader
    assert registry.load("xnvme-block") is XnvmeBlockReader
    assert registry.load("xnvme-file") is XnvmeFileReader


def test_an_unknown_backend_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError,
        match="known are block, memory, object-store, python-file, xnvme-bam, xnvme-block, xnvme-f",
    ):
        registry.load("blok")


def test_a_checkout_that_is_not_installed_has_its_backends(tmp_path: Path) -> None:
    (tmp_path / "dali_storage").symlink_to(ROOT / "dali_storage")
    script = (
        "from importlib import metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.distribution = missing\nmetadata.entry_points = lambda group: []\n"
        "from dali_storage.contract import registry; print(registry.names())"
    )
    assert python(dict(os.environ), "-c", script).stdout == f"{registry.names()}\n"


def test_installed_backends_are_looked_up_once_a_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked: list[str] = []
    installed = registry.entry_points
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [looked.append(group), installed(group=group)][1]
    )
    for path in tmp_path / "one", tmp_path / "other":
        monkeypatch.syspath_prepend(path)
        for _ in range(2):
            registry.load("memory")
    assert looked == [registry.GROUP] * 2


def test_options_are_checked_before_anything_is_opened() -> None:
    with pytest.raises(
        TypeError, match="'python-file' has no option lane; its options are direct, lanes"
    ):
        registry.configure("python-file", {"lane": 1})
    with pytest.raises(TypeError, match="'block' needs the option bmap; its options are bmap, uri"):
        registry.configure("block", {"lanes": 1})


class Sizeless(Reader):
    """Has no `sizes()`, and does not take options as it should."""

    def __init__(self, catalog: Catalog, lanes: int = 1) -> None: ...

    def read(self, batch: Batch, lane: int) -> None: ...

    def close(self) -> None: ...


class Loose(Sizeless):
    def sizes(self, samples: IntArray) -> IntArray:
        return samples


def test_a_class_is_a_backend_without_a_name() -> None:
    assert registry.choose(MemoryReader, [b"/x"]) is MemoryReader
    assert registry.load(MemoryReader) is MemoryReader
    assert registry.configure(PythonFileReader, {"lanes": 2}) is PythonFileReader


@pytest.mark.parametrize(
    ("backend", "options", "error", "message"),
    [
        (dict, {}, TypeError, "backend dict is not a subclass of dali_storage.Reader"),
        (5, {}, TypeError, "backend 5 is not a subclass of dali_storage.Reader"),
        (b"block", {}, TypeError, "backend b'block' is not a subclass of dali_storage.Reader"),
        (Reader, {}, TypeError, "backend Reader does not implement __init__, close, read, sizes"),
        (Sizeless, {}, TypeError, "backend Sizeless does not implement sizes"),
        (Loose, {}, TypeError, "backend Loose must take its options as .* lanes: 'int' = 1"),
        (BlockReader, {}, TypeError, "backend BlockReader needs the option bmap; its options are "),
        (
            MemoryReader,
            {"x": 1},
            TypeError,
            "backend MemoryReader has no option x; its options are",
        ),
        (PythonFileReader, {"lanes": 0}, ValueError, "lanes must be an integer from 1 to 64"),
    ],
)
def test_a_wrong_class_is_refused_as_a_wrong_plugin_is(
    backend: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    given: Any = {"backend": backend, "backend_options": options}
    for refuse in (
        lambda: registry.configure(backend, options),
        lambda: readers.file(files=["x"], lazy_init=True, **given),
        lambda: dynamic_readers.File(files=["x"], **given),
    ):
        with pytest.raises(error, match=message):
            refuse()


def test_a_class_that_does_not_read_urls_is_refused() -> None:
    with pytest.raises(ValueError, match="backend MemoryReader cannot read 's3://data/x'; leave o"):
        registry.choose(MemoryReader, [b"s3://data/x"])


def test_a_class_is_read_with_in_pipelines_loaders_and_dynamic_mode(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "class" / "a.jpg")
    options: Any = {"backend": MemoryReader}
    pipeline = build(readers.file, 1, file_root=str(tmp_path), **options)
    content = (tmp_path / "class" / "a.jpg").read_bytes()
    assert pipeline.run()[0].at(0).tobytes() == content
    with dynamic_readers.File(file_root=str(tmp_path), **options) as reader:
        ((data, _),) = reader.next_epoch(batch_size=1)
        assert np.asarray(data.tensors[0]).tobytes() == content
    with image_folder(str(tmp_path), train=False, batch_size=1, device="cpu", **options) as loader:
        ((images, _),) = loader
        assert len(images) == 1


def test_it_is_typed() -> None:
    assert (ROOT / "dali_storage" / "py.typed").exists()
