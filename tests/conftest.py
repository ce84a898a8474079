import gc
import os
import signal
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from dali_storage.contract.errors import BackendUnavailable
from tests.kit import tiers
from tests.kit.hooks import sitecustomize
from tests.kit.once import once
from tests.kit.paths import ROOT

# What only some folders need is imported by the fixture that needs it.

XNVME_LIBRARIES = os.environ.get("XNVME_TEST_LIBRARIES", "").split(os.pathsep)
"""Paths of the libxnvme.so files to test with; an empty path is the one that the binding finds."""

# Subprocesses and notebooks import torchvision as pytest does, see tests/kit/hooks.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [os.path.dirname(sitecustomize.__file__), os.environ.get("PYTHONPATH")])
)

# Several processes share few processors: threads that spin while they wait would slow down all.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_addoption(parser):
    parser.addoption("--tier", choices=tiers.TIERS, default="test", help="see CONTRIBUTING.md")


def pytest_configure(config):
    # A shell ignores SIGINT for commands in the background, and tests interrupt themselves.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tiers.select(config)


def pytest_collection_modifyitems(config, items):
    others = [item for item in items if not tiers.belongs(item)]
    items[:] = [item for item in items if tiers.belongs(item)]
    config.hook.pytest_deselected(items=others)


def pytest_runtest_setup(item):
    for mark in item.iter_markers("dali"):
        from tests.kit import versions

        versions.require(*mark.args, **mark.kwargs)


@pytest.fixture(scope="module", autouse=True)
def _cheap_collections():
    """Collections of garbage skip all that other modules have left, which takes up to a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_deprecations(monkeypatch):
    """DALI does not warn of its deprecated operators, which no filter of warnings would stop."""
    monkeypatch.setattr("nvidia.dali.ops._handle_op_deprecation", lambda *_: None, raising=False)


@pytest.fixture
def tree(tmp_path):
    """Makes `classes` directories of files with random bytes; `sizes` are used in turn."""

    def make(files, classes=3, sizes=(700, 0, 4096, 1, 5000)):
        root = tmp_path / "root"
        random = np.random.default_rng(files)
        for index in range(files):
            folder = root / f"class{index % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index:04d}.jpg").write_bytes(random.bytes(sizes[index % len(sizes)]))
        return root

    return make


@pytest.fixture
def file(tmp_path):
    """A file of 100,000 random bytes."""
    (tmp_path / "file").write_bytes(np.random.default_rng(1).bytes(100_000))
    return tmp_path / "file"


@pytest.fixture(params=XNVME_LIBRARIES, ids=lambda path: os.path.realpath(path) if path else "")
def xnvme(request, monkeypatch):
    """A libxnvme, which is also the one that the code under test loads."""
    from dali_storage.backends.xnvme import library

    if request.param:
        monkeypatch.setenv("XNVME_LIBRARY_PATH", request.param)
    try:
        return library.load()
    except BackendUnavailable:
        where = request.param or "here; conda install -c conda-forge libxnvme, or build it"
        pytest.skip(f"no libxnvme {where}; XNVME_TEST_LIBRARIES may name several, with colons")


@pytest.fixture(params=("io_uring", "libaio", "emu", "thrpool"))
def io(xnvme, request):
    """An asynchronous implementation that this libxnvme offers here."""
    from tests.kit.xnvme import require_io

    name = request.param
    require_io(xnvme, name)
    return name


@pytest.fixture
def gpus(monkeypatch):
    """CuPy and two GPUs, in host memory."""
    from tests.kit.fake_cuda import install

    return install(monkeypatch)


@pytest.fixture(scope="module")
def ext4(tmp_path_factory):
    from tests.kit.devices import disk

    with disk(tmp_path_factory.mktemp("ext4"), "ext4") as made:
        yield made


@pytest.fixture
def root(ext4, tmp_path):
    """A new directory on the ext4 disk."""
    path = ext4.mount / tmp_path.name
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory):
    """30 JPEGs of noise in three classes. Do not change them."""
    from PIL import Image

    def make(root):
        random = np.random.default_rng(0)
        for index in range(30):
            (root / f"c{index % 3}").mkdir(exist_ok=True)
            pixels = random.integers(0, 255, (40 + index, 60, 3), np.uint8)
            Image.fromarray(pixels).save(root / f"c{index % 3}" / f"{index}.jpg", quality=95)

    return once(tmp_path_factory, "jpegs", make)


@pytest.fixture
def loader():
    """Makes loaders of numpy arrays and of the whole data set, and closes them."""
    from dali_storage.loaders import Loader, Shard

    made = []

    def make(make, **options):
        made.append(Loader(make, **{"shard": Shard(), "to": "numpy"} | options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """The generated set of the examples: train/ with 128 pictures, val/ with 32; four classes."""
    command = [sys.executable, ROOT / "examples" / "make_pictures.py", "--images", "128"]

    def make(root):
        subprocess.run([*command, root], check=True)

    return once(tmp_path_factory, "pictures", make)


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """24 JPEGs of a photograph, 300 to 1,000 pixels wide and high, in class directories."""
    from benchmarks import dataset

    def make(root):
        dataset.make(str(root), lambda done: None, 24)

    return once(tmp_path_factory, "photographs", make) / "train"


@pytest.fixture(scope="session")
def fault_server():
    """A server of objects with faults on demand, for sessions; tests take `server`."""
    from tests.kit.objects.client import FaultServer

    with FaultServer() as server:
        yield server


def _use(environment, monkeypatch):
    for name, value in environment.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(fault_server, monkeypatch):
    """A server of objects with faults on demand. It is empty; the environment names it."""
    fault_server.reset()
    _use(fault_server.environment, monkeypatch)
    return fault_server


@pytest.fixture(scope="session")
def swift_server(tmp_path_factory):
    """OpenStack Swift, for sessions; tests take `swift`."""
    from tests.kit.objects.swift_client import Swift

    if not find_spec("swift"):
        pytest.skip("no OpenStack Swift: pip install swift==2.38.3 setuptools")
    with Swift(tmp_path_factory.mktemp("swift")) as server:
        yield server


@pytest.fixture
def swift(swift_server, monkeypatch):
    """OpenStack Swift; the environment names it. It keeps its buckets from test to test."""
    _use(swift_server.environment, monkeypatch)
    return swift_server


@pytest.fixture
def pipelines_end():
    """Collects the pipelines of a test when it ends."""
    gc.collect()
    gc.freeze()  # later collections skip what exists already
    yield
    gc.collect()
