"""Backends by name, by class and of other distributions; wrong ones are refused."""

import json
import os
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from PIL import Image

from dali_storage import readers
from dali_storage.backends.block import BlockReader
from dali_storage.backends.memory import MemoryReader
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.contract import registry
from dali_storage.loaders import image_folder
from tests.kit import versions
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

class Half: ...
"""

RUN = """
from dali_storage import readers
from tests.kit.dali import build, take
print(take(build(readers.file, files=["x"], backend="ones", backend_options={"ones": 3}), 1)[1])
"""

PROJECT = """
build-system = { requires = ["setuptools"], build-backend = "setuptools.build_meta" }
project.name = "ones-backend"
project.version = "1"
tool.setuptools.py-modules = ["ones_backend"]
[project.entry-points."dali_storage.backends"]
broken = "no_such_module_of_mine:X"
"""

CLASSES = {"ones": "OnesReader", "half": "Half", "memory": "OnesReader"}


def python(*arguments, environment=None):
    """The output of Python."""
    command = [sys.executable, *arguments]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """Runs Python with a real distribution installed in a folder of its own, by pip."""
    project, target = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("installed")
    (project / "ones_backend.py").write_text(PLUGIN)
    entries = [f'{name} = "ones_backend:{found}"\n' for name, found in CLASSES.items()]
    (project / "pyproject.toml").write_text(PROJECT + "".join(entries))
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    pip += ["--disable-pip-version-check", "--root-user-action=ignore"]
    python(*pip, "--target", str(target), str(project))
    path = os.pathsep.join([str(target), str(ROOT)])
    return partial(python, environment=os.environ | {"PYTHONPATH": path})


@pytest.mark.long  # pip takes seconds
def test_a_backend_of_another_distribution_reads(plugin):
    assert plugin("-c", RUN) == f"{(bytes([1, 1, 1]), 0)}\n"


@pytest.mark.long
def test_a_wrong_plugin_does_not_hide_the_others(plugin):
    doctor = json.loads(plugin("-m", "dali_storage", "--json"))
    known = {backend["name"]: backend for backend in doctor["backends"]}
    assert known["ones"]["works"]
    half = "entry point ones_backend:Half of ones-backend 1 is not a subclass of"
    assert half in known["half"]["reason"]
    assert "offered more than once" in known["memory"]["reason"]
    assert "no_such_module_of_mine" in known["broken"]["reason"]
    assert "entry point no_such_module_of_mine:X of ones-backend 1" in known["broken"]["reason"]
    verdict = {"works": True, "reason": None, "remedy": None}
    assert known["python-file"] == {"name": "python-file"} | verdict


SHIPPED = {
    "block": BlockReader,
    "memory": MemoryReader,
    "object-store": ObjectStoreReader,
    "python-file": PythonFileReader,
    "xnvme-bam": XnvmeBamReader,
    "xnvme-block": XnvmeBlockReader,
    "xnvme-file": XnvmeFileReader,
}


def test_the_backends_that_ship_are_known_by_their_names():
    assert registry.names() == [*SHIPPED]
    assert {name: registry.load(name) for name in SHIPPED} == SHIPPED
    with pytest.raises(ValueError, match=f"known are {', '.join(SHIPPED)}"):
        registry.load("blok")


def test_a_checkout_that_is_not_installed_has_its_backends(tmp_path):
    (tmp_path / "dali_storage").symlink_to(ROOT / "dali_storage")
    script = (
        "from importlib import metadata\n"
        "def missing(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.distribution = missing\nmetadata.entry_points = lambda group: []\n"
        "from dali_storage.contract import registry; print(registry.names())"
    )
    assert python("-c", script) == f"{registry.names()}\n"


def test_installed_backends_are_looked_up_once_a_path(monkeypatch, tmp_path):
    looked = []
    installed = registry.entry_points
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [looked.append(group), installed(group=group)][1]
    )
    for path in tmp_path / "one", tmp_path / "other":
        monkeypatch.syspath_prepend(path)
        for _ in range(2):
            registry.load("memory")
    assert looked == [registry.GROUP] * 2


def test_a_class_is_a_backend_without_a_name():
    assert registry.choose(MemoryReader, [b"/x"]) is MemoryReader
    assert registry.load(MemoryReader) is MemoryReader
    assert registry.configure(PythonFileReader, {"lanes": 2}) is PythonFileReader


@pytest.mark.parametrize(
    ("backend", "options", "error", "message"),
    [
        (dict, {}, TypeError, "backend dict is not a subclass of dali_storage.Reader"),
        (5, {}, TypeError, "backend 5 is not a subclass of dali_storage.Reader"),
        (b"block", {}, TypeError, "backend b'block' is not a subclass of dali_storage.Reader"),
        (BlockReader, {}, TypeError, "backend BlockReader needs the option bmap; its options are "),
        (MemoryReader, {"x": 1}, TypeError, "backend MemoryReader has no option x; its options"),
        (PythonFileReader, {"lanes": 0}, ValueError, "lanes must be an integer from 1 to 64"),
        ("python-file", {"lane": 1}, TypeError, "'python-file' has no option lane; its options"),
        ("block", {"lanes": 1}, TypeError, "'block' needs the option bmap; .* are bmap, uri"),
    ],
)
def test_a_wrong_backend_or_option_is_refused_before_anything_is_opened(
    backend, options, error, message
):
    given = {"backend": backend, "backend_options": options}
    for refuse in (
        lambda: registry.configure(backend, options),
        lambda: readers.file(files=["x"], lazy_init=True, **given),
        *([lambda: dynamic_file(files=["x"], **given)] if versions.has("2.2") else ()),
    ):
        with pytest.raises(error, match=message):
            refuse()


def dynamic_file(**arguments):
    from dali_storage.dynamic.readers import File

    return File(**arguments)


def test_a_class_that_does_not_read_urls_is_refused():
    with pytest.raises(ValueError, match="backend MemoryReader cannot read 's3://data/x'; leave o"):
        registry.choose(MemoryReader, [b"s3://data/x"])


@pytest.mark.dali("2.2")
def test_a_class_is_read_with_in_pipelines_loaders_and_dynamic_mode(tmp_path):
    (tmp_path / "class").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "class" / "a.jpg")
    options = {"backend": MemoryReader}
    pipeline = build(readers.file, 1, file_root=str(tmp_path), **options)
    content = (tmp_path / "class" / "a.jpg").read_bytes()
    assert pipeline.run()[0].at(0).tobytes() == content
    with dynamic_file(file_root=str(tmp_path), **options) as reader:
        ((data, _),) = reader.next_epoch(batch_size=1)
        assert np.asarray(data.tensors[0]).tobytes() == content
    options |= {"to": "numpy", "device": "cpu"}
    with image_folder(str(tmp_path), train=False, batch_size=1, **options) as loader:
        ((images, _),) = loader
        assert len(images) == 1


def test_the_package_is_marked_as_typed():
    assert (ROOT / "dali_storage" / "py.typed").exists()
