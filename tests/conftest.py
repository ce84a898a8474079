from __future__ import annotations

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline

from dali_storage.backends.xnvme import library as _xnvme
from dali_storage.backends.xnvme.device import XnvmeDevice
from dali_storage.backends.xnvme.file_queue import IOS
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.loaders import Loader, Shard
from dali_storage.samples.discovery import from_directory

from .devices import Disk, disk
from .fake_cuda import Cuda, install
from .hooks import sitecustomize
from .layouts import make_map
from .nvme_sim.build import COMPILER
from .objects.client import FaultServer
from .objects.swift_client import Swift
from .xnvme import offers, open_ramdisk

XNVME_LIBRARIES = os.environ.get("XNVME_TEST_LIBRARIES", "").split(os.pathsep)
"""Paths of the libxnvme.so files to test with; an empty path is the one that the binding finds."""

# Subprocesses and notebooks import torchvision as pytest does, see tests/hooks.
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, [os.path.dirname(sitecustomize.__file__), os.environ.get("PYTHONPATH")])
)

Tree = Callable[..., Path]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes `classes` directories of files with random bytes; `sizes` are used in turn."""

    def make(
        files: int, classes: int = 3, sizes: tuple[int, ...] = (700, 0, 4096, 1, 5000)
    ) -> Path:
        root = tmp_path / "root"
        random = np.random.default_rng(files)
        for index in range(files):
            folder = root / f"class{index % classes}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{index:04d}.jpg").write_bytes(random.bytes(sizes[index % len(sizes)]))
        return root

    return make


@pytest.fixture(params=XNVME_LIBRARIES, ids=lambda path: os.path.realpath(path) if path else "")
def xnvme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> _xnvme.Library:
    """A libxnvme, which is also the one that the code under test loads."""
    if request.param:
        monkeypatch.setenv("XNVME_LIBRARY_PATH", request.param)
    try:
        return _xnvme.load()
    except BackendUnavailable:
        where = request.param or "here; conda install -c conda-forge libxnvme, or build it"
        pytest.skip(f"no libxnvme {where}; XNVME_TEST_LIBRARIES may name several, with colons")


@pytest.fixture(params=IOS)
def io(xnvme: _xnvme.Library, request: pytest.FixtureRequest) -> str:
    """An asynchronous implementation that this libxnvme offers here."""
    name: str = request.param
    if not offers(xnvme, name):
        pytest.skip(f"this libxnvme does not offer {name} here")
    return name


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """CuPy and two GPUs, in host memory."""
    return install(monkeypatch)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 100,000 random bytes."""
    (tmp_path / "file").write_bytes(np.random.default_rng(1).bytes(100_000))
    return tmp_path / "file"


@pytest.fixture(scope="session")
def sim_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests build the kernel for the host, and the simulated controller."""
    if not shutil.which(COMPILER):
        pytest.skip(f"no {COMPILER}: apt-get install {COMPILER}")
    return tmp_path_factory.mktemp("nvme_sim")


@pytest.fixture
def ramdisk(xnvme: _xnvme.Library) -> Iterator[XnvmeDevice]:
    """A namespace in memory."""
    with closing(open_ramdisk(xnvme, "emu")) as device:
        yield device


@pytest.fixture(scope="module")
def ext4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    with disk(tmp_path_factory.mktemp("ext4"), "ext4") as made:
        yield made


@pytest.fixture
def root(ext4: Disk, request: pytest.FixtureRequest) -> Path:
    """A new directory on the ext4 disk."""
    name = f"{abs(hash(request.node.nodeid)):x}"
    (ext4.mount / name).mkdir()
    return ext4.mount / name


@pytest.fixture
def mapped(root: Path, tmp_path: Path) -> tuple[Catalog, Path]:
    """A few files and their map."""
    for name in ("class/a", "class/b", "other/c"):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 3000)
    return from_directory(root, file_filters="*"), make_map(root, tmp_path / "bmap.json")


@pytest.fixture(scope="session")
def jpegs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("jpegs")
    random = np.random.default_rng(0)
    for index in range(30):
        (root / f"c{index % 3}").mkdir(exist_ok=True)
        pixels = random.integers(0, 255, (40 + index, 60, 3), np.uint8)
        Image.fromarray(pixels).save(root / f"c{index % 3}" / f"{index}.jpg", quality=95)
    return root


@pytest.fixture
def loader() -> Iterator[Callable[..., Loader]]:
    """Makes loaders of numpy arrays and of the whole data set, and closes them."""
    made: list[Loader] = []

    def make(make: Any, **options: Any) -> Loader:
        made.append(Loader(make, **{"shard": Shard(), "to": "numpy"} | options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The generated set of the examples: train/ with 128 pictures, val/ with 32; four classes."""
    directory = tmp_path_factory.mktemp("pictures")
    script = Path(__file__).parent.parent / "examples" / "make_pictures.py"
    subprocess.run([sys.executable, script, directory, "--images", "128"], check=True)
    return directory


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 JPEGs of a photograph, 300 to 1,000 pixels wide and high, in class directories."""
    from benchmarks import dataset

    return Path(dataset.make(str(tmp_path_factory.mktemp("photographs")), lambda done: None, 24))


@pytest.fixture(scope="session")
def fault_server() -> Iterator[FaultServer]:
    """A server of objects with faults on demand, for sessions; tests take `server`."""
    with FaultServer() as server:
        yield server


def _use(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(fault_server: FaultServer, monkeypatch: pytest.MonkeyPatch) -> FaultServer:
    """A server of objects with faults on demand. It is empty; the environment names it."""
    fault_server.reset()
    _use(fault_server.environment, monkeypatch)
    return fault_server


@pytest.fixture(scope="session")
def swift_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    """OpenStack Swift, for sessions; tests take `swift`."""
    if not find_spec("swift"):
        pytest.skip("no OpenStack Swift: pip install swift==2.38.3 setuptools")
    with Swift(tmp_path_factory.mktemp("swift")) as server:
        yield server


@pytest.fixture
def swift(swift_server: Swift, monkeypatch: pytest.MonkeyPatch) -> Swift:
    """OpenStack Swift; the environment names it. It keeps its buckets from test to test."""
    _use(swift_server.environment, monkeypatch)
    return swift_server


@pytest.fixture
def pipelines_end() -> Iterator[None]:
    """Collects the pipelines of a test when it ends."""
    gc.collect()
    gc.freeze()  # later collections skip what exists already
    yield
    gc.collect()


def descriptors(below: Path | str = "") -> set[tuple[int, str]]:
    """The descriptors of this process, and their files: all, or those that begin with a path.

    Compare with `<=`: what earlier tests have left may be closed at any time.
    """
    found = set[tuple[int, str]]()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing, or it was just closed
            path = os.readlink(f"/proc/self/fd/{number}").removesuffix(" (deleted)")
            found |= {(int(number), path)} if path.startswith(str(below)) else set()
    return found


def open_files() -> set[tuple[int, str]]:
    """The `descriptors()`, without those that only a traceback refers to."""
    gc.collect()
    return descriptors()


def threads() -> set[threading.Thread]:
    """The threads of this process. Compare with `<=`: those of earlier tests may end any time."""
    return {*threading.enumerate()}


@contextlib.contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process, which ends with the block, also if the test fails.

    It gets SIGINT; commands that a shell runs in the background ignore it.
    """
    command = ["env", "--default-signal=INT", *map(str, command)]
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def build(operator: Callable[..., Any], batch_size: int = 4, **arguments: Any) -> Pipeline:
    """A pipeline with the outputs of `operator`, a readers.file."""
    pipeline = Pipeline(
        batch_size=batch_size, num_threads=1, device_id=None, **arguments.pop("pipeline", {})
    )
    with pipeline:
        data, labels = operator(**arguments)
        pipeline.set_outputs(data, labels)
    return pipeline


def run_in_fork(pipeline: Pipeline) -> int:
    """The exit status of a fork that runs a pipeline: 0, or 17 if it is refused for being one."""
    with warnings.catch_warnings():  # of a fork with threads, which is what is tested
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            pipeline.run()
        except RuntimeError as error:
            os._exit(17 if "fork" in str(error) else 1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def take(pipeline: Pipeline, batches: int) -> list[tuple[bytes, int]]:
    """The bytes and labels of the samples of some batches."""
    samples: list[tuple[bytes, int]] = []
    for _ in range(batches):
        data, labels = pipeline.run()
        assert str(data.dtype) == "DALIDataType.UINT8"
        assert str(labels.dtype) == "DALIDataType.INT32"
        for position in range(len(data)):
            sample, label = np.asarray(data[position]), np.asarray(labels[position])
            assert sample.ndim == 1
            assert label.shape == (1,)
            samples.append((sample.tobytes(), int(label[0])))
    return samples
