"""The notebooks: they run, and show what is committed (`jupyter execute --inplace`, no stderr)."""

import re
import subprocess
import sys
from contextlib import contextmanager

import nbformat
import pytest
from nbclient import NotebookClient

from tests.kit.paths import ROOT

NOTEBOOKS = ROOT / "examples" / "notebooks"


@contextmanager
def opened(name, directory):
    """A notebook and the process that runs its cells."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    resources = {"metadata": {"path": str(directory)}}
    client = NotebookClient(notebook, timeout=600, resources=resources)
    with client.setup_kernel():
        yield client


def run_all(client):
    """Run all cells; what they print. Raises if one of them fails, or shows something else."""
    printed = ""
    for index, cell in enumerate(client.nb.cells):
        before = shown(cell)
        done = client.execute_cell(cell, index)
        assert shown(done) == before
        for output in done.get("outputs", []):
            printed += output.get("text") or output.get("data", {}).get("text/plain", "")
    return printed


def shown(cell):
    """Kinds of pictures, and the text without numbers, paths and what depends on libxnvme."""
    outputs = cell.get("outputs", [])
    kinds = [sorted(output["data"]) for output in outputs if "data" in output]
    text = "".join(output["text"] for output in outputs if output.get("name") == "stdout")
    if "verdict" in cell.metadata.get("tags", []):  # that differs from run to run
        return kinds, bool(text)
    text = " ".join(re.sub(r"xnvme-\w+[^,\n]*(?:, |\n)", "", text).split())
    return kinds, re.sub(r"\S*[/\d]\S*", "#", text)


@pytest.fixture(autouse=True)
def settings(monkeypatch, tmp_path):
    """What Jupyter writes goes to the test's directory."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_committed_with_outputs_and_small(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    named = {output.get("name", "stdout") for cell in cells for output in cell.outputs}
    assert named == {"stdout"}  # stderr has paths of the machine
    assert path.stat().st_size < 150_000


@pytest.mark.long
def test_the_notebook_ignite_compares_with_torchvision_trains_and_goes_on(
    pictures, tmp_path, monkeypatch
):
    monkeypatch.setenv("DATA", str(pictures))
    with opened("ignite", tmp_path) as client:
        printed = run_all(client)
    assert re.search(r"largest difference: [01]\.\d\d of 255", printed)
    assert re.search(r"ours: [\d,]+ images/s\ntorchvision: [\d,]+ images/s", printed)
    assert re.search(r"epoch 3: accuracy (0\.[3-9]|1\.)", printed)
    assert "goes on after batch 6 of 8" in printed


@pytest.mark.long
def test_the_notebook_look_reads_the_same_bytes_through_every_backend(ext4, tmp_path, monkeypatch):
    """As printed, of photographs."""
    pytest.importorskip("skimage", reason="there is no scikit-image: pip install scikit-image")
    make = [sys.executable, ROOT / "examples/make_pictures.py", "--photographs", "--images", "32"]
    subprocess.run([*make, ext4.mount / "look"], check=True)
    monkeypatch.setenv("DATA", str(ext4.mount / "look/val"))
    with opened("look", tmp_path) as client:
        printed = run_all(client)
    expected = "the same bytes through memory, python-file, python-file direct, block bmap"
    assert expected in printed.replace("xnvme-file, ", "")


@pytest.mark.long
def test_the_notebook_mixture_mixes_balances_and_replaces(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", str(pictures / "train"))
    with opened("mixture", tmp_path) as client:
        printed = run_all(client)
    assert float(re.search(r"largest difference: (\d\.\d\d) pictures", printed)[1]) <= 2 * 1.68
    assert "True JPEG: a segment reaches beyond its end" in printed
    assert "'first': (250, " in printed
    assert "Counter({0: 90, 1: 90})" in printed
