"""The xnvme-block backend, on loop devices and their images; real NVMe is tests/nvme_vm's."""

from __future__ import annotations

import errno
import gc
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from nvidia.dali import fn

import bmap_tools
from dali_storage import readers
from dali_storage.backends import xnvme_block
from dali_storage.backends.xnvme.abi import COMMAND
from dali_storage.backends.xnvme.device import XnvmeDevice
from dali_storage.backends.xnvme.file_queue import IOS
from dali_storage.backends.xnvme.library import Library
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.backends.xnvme.read_commands import ReadCommands
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract._types import IntArray, address_of
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked
from dali_storage.contract.reader import Reader
from dali_storage.samples.discovery import from_directory, from_tree
from dali_storage.testing import fill, make_batch, nothing_is_left, read
from tests.kit.dali import build, take
from tests.kit.devices import Disk, disk, drop_caches, run
from tests.kit.fake_cuda import Cuda
from tests.kit.layouts import contents_of, make_hostile_files, make_map
from tests.kit.mapped import NEEDS_ROOT, OnDisk, require_permission_to_be_named
from tests.kit.xnvme import offers

pytestmark = NEEDS_ROOT


class OfXnvmeBlock(OnDisk):
    backend = XnvmeBlockReader

    @pytest.fixture(autouse=True)
    def library(self, xnvme: Library) -> None:
        name = self.options.get("io", IOS[0])
        if not offers(xnvme, name):
            pytest.skip(f"this libxnvme does not offer {name} here")


class TestIoUringOnExt4(OfXnvmeBlock):
    batches = 5_000


class TestIoUringOnXfsOf4096ByteSectorsByItsDisk(OfXnvmeBlock):
    file_system, sector, partition = "xfs", 4096, True
    options: ClassVar[dict[str, Any]] = {"queue_depth": 2, "queues": 3, "max_transfer": 4096}

    def uri(self) -> str:
        return self.disk_used.disk


class TestIoUringOnXfsPartitionSpinning(OfXnvmeBlock):
    file_system, partition = "xfs", True
    options: ClassVar[dict[str, Any]] = {"spin": True, "queue_depth": 1, "queues": 1}
    openings = 500


class TestIoUringOnTheImageOfExt4Of4096ByteSectors(OfXnvmeBlock):
    sector, partition = 4096, True

    def uri(self) -> Path:
        return self.disk_used.image


class TestLibaioOnExt4Of4096ByteSectors(OfXnvmeBlock):
    sector = 4096
    options: ClassVar[dict[str, Any]] = {"io": "libaio", "queue_depth": 8}
    batches = 1_000
    openings = 10  # the kernel takes 33 ms to end an AIO context


class TestLibaioOnXfsPartition(OfXnvmeBlock):
    file_system, partition = "xfs", True
    options: ClassVar[dict[str, Any]] = {"io": "libaio", "queue_depth": 16, "queues": 1}


class TestEmuOnExt4Partition(OfXnvmeBlock):
    partition = True
    options: ClassVar[dict[str, Any]] = {"io": "emu"}
    batches = 1_000
    openings = 100


class TestEmuToPageLockedMemory(OfXnvmeBlock):
    options: ClassVar[dict[str, Any]] = {"io": "emu", "mem": "pinned", "gpu": 1}

    @pytest.fixture(autouse=True)
    def cuda(self, gpus: Cuda) -> Iterator[None]:
        yield
        gc.collect()
        assert not gpus.registered


class TestThrpoolOnXfsOf4096ByteSectors(OfXnvmeBlock):
    file_system, sector = "xfs", 4096
    options: ClassVar[dict[str, Any]] = {"io": "thrpool", "queue_depth": 16, "retries": 0}
    batches = 1_000
    openings = 100


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@pytest.mark.parametrize("sector", [512, 4096])
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_hostile_layouts_are_read_right(
    xnvme: Library, tmp_path: Path, file_system: str, sector: int, partition: bool
) -> None:
    with disk(tmp_path, file_system, sector=sector, partition=partition) as made:
        make_hostile_files(made.mount / "class")
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        catalog = from_directory(made.mount, file_filters="*")
        contents = contents_of(catalog)
        everything = np.arange(len(catalog))
        for io in (io for io in IOS if offers(xnvme, io)):
            for uri in (None, made.device, made.disk, made.image):
                options: dict[str, Any] = {"uri": uri, "io": io, "queue_depth": 16, "queues": 1}
                with XnvmeBlockReader(catalog, bmap=bmap, **options) as reader:
                    assert read(reader, everything) == contents
        run("umount", str(made.mount))
        try:
            tree = XnvmeBlockReader.tree(bmap=bmap)
            catalog = from_tree(tree, file_filters="*")
            with (
                pytest.warns(MapNotChecked, match="cannot check whether"),
                XnvmeBlockReader(catalog, bmap=bmap, uri=made.device) as reader,
            ):
                assert read(reader, everything) == contents
        finally:
            run("mount", made.device, str(made.mount))


def test_a_file_beyond_2_tib_is_read_right(io: str, tmp_path: Path) -> None:
    with disk(tmp_path, "xfs", size=5 << 40, mkfs=("-l", "size=64m")) as made:
        for group in range(16):  # XFS puts directories into its allocation groups in turn
            (made.mount / f"{group:02d}").mkdir()
            (made.mount / f"{group:02d}" / "file").write_bytes(bytes([group + 1]) * 100_000)
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        assert bmap_tools.load(bmap).extents[:, 1].max() // 512 > 1 << 32
        catalog = from_directory(made.mount, file_filters="*")
        with XnvmeBlockReader(catalog, bmap=bmap, io=io, queue_depth=4) as reader:
            assert read(reader, np.arange(16)) == contents_of(catalog)


# Page-locked memory


def test_page_locked_memory_is_that_of_libxnvme(
    io: str, mapped: tuple[Catalog, Path], gpus: Cuda
) -> None:
    with XnvmeBlockReader(mapped[0], bmap=mapped[1], io=io, mem="pinned") as reader:
        assert (reader.device, reader.gpu, reader.pinned) == ("cpu", 0, True)
        assert not gpus.registered
        buffer = reader.allocate(1 << 20)
        assert gpus.registered == {address_of(buffer): buffer.nbytes}
        assert read(reader, np.arange(3), buffer=buffer) == contents_of(mapped[0])
    del reader
    assert gpus.registered
    del buffer
    assert not gpus.registered


def test_memory_that_cannot_be_page_locked_is_freed(
    xnvme: Library, mapped: tuple[Catalog, Path], gpus: Cuda
) -> None:
    with XnvmeBlockReader(mapped[0], bmap=mapped[1], mem="pinned") as reader:
        gpus.capacity = 1 << 20
        with nothing_is_left():
            for _ in range(3):
                with pytest.raises(MemoryError, match="CUDA cannot page-lock 67108864 bytes"):
                    reader.allocate(64 << 20)
        assert read(reader, np.arange(3)) == contents_of(mapped[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mem": "pinned"},
            r"CuPy, which cannot be imported.*; pip install 'dali-storage\[cuda12\]'",
        ),
        ({"mem": "gpu", "uri": "0000:ff:1f.7"}, "CuPy, which cannot be imported"),
    ],
)
def test_without_cupy_nothing_is_opened(
    mapped: tuple[Catalog, Path],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    message: str,
) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(xnvme_block, "require_controller", lambda _: None)
    with pytest.raises(BackendUnavailable, match=message):
        XnvmeBlockReader(mapped[0], bmap=mapped[1], **options)


@pytest.mark.parametrize("count", [None, 2])
def test_without_the_gpu_nothing_is_opened(
    mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch, gpus: Cuda, count: int | None
) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    gpus.count = count
    message = "there is no GPU 2; choose one from 0 to 1" if count else "CUDA cannot be used"
    with pytest.raises(BackendUnavailable, match=message):
        XnvmeBlockReader(mapped[0], bmap=mapped[1], mem="pinned", gpu=2)


def test_gpu_memory_is_flushed_after_the_reads_of_each_batch(
    xnvme: Library, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    run = Queue.run
    with XnvmeBlockReader(mapped[0], bmap=mapped[1]) as reader:
        batch = make_batch(reader, np.arange(3))
        found, flush = lambda _: calls.append("find"), lambda: calls.append("flush")
        reader._peer = SimpleNamespace(find=found, flush=flush)
        monkeypatch.setattr(Queue, "run", lambda *given: (calls.append("run"), run(*given)))
        fill(reader, batch)
        fill(reader, batch, 1)
    assert calls == 2 * ["find", "run", "flush"]


# Options and devices that are refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"queue_depth": 0}, ValueError, "queue_depth must be a power of two from 1 to 2048"),
        ({"queue_depth": 48}, ValueError, "power of two from 1 to 2048, not 48"),
        ({"queue_depth": 4096}, ValueError, "power of two from 1 to 2048, not 4096"),
        ({"queue_depth": True}, ValueError, "queue_depth"),
        ({"queues": 0}, ValueError, "queues must be an integer from 1 to 64"),
        ({"queues": 65}, ValueError, "queues"),
        ({"queues": "2"}, ValueError, "queues"),
        ({"retries": -1}, ValueError, "retries must be an integer from 0 to 100"),
        ({"nsid": 0}, ValueError, "nsid"),
        ({"max_transfer": 512}, ValueError, "max_transfer.*a multiple of 4096"),
        ({"max_transfer": "128k"}, ValueError, "max_transfer"),
        ({"mem": "disk"}, ValueError, "mem must be one of cpu, pinned, gpu, not 'disk'"),
        ({"mem": "gpu"}, ValueError, "mem='gpu' needs the PCI address .*, not None; or take mem='"),
        ({"mem": "gpu", "uri": "/dev/ng0n1"}, ValueError, "needs the PCI address .* '/dev/ng0n1'"),
        ({"mem": "gpu", "uri": "0000:ff:1f.7"}, FileNotFoundError, "lspci -D"),
        ({"mem": "pinned", "gpu": -1}, ValueError, "gpu must be an integer from 0"),
        ({"mem": "gpu", "gpu": "0"}, ValueError, "gpu must be an integer"),
        ({"gpu": 0}, ValueError, "gpu 0 is for mem='pinned' or 'gpu', not for 'cpu'"),
        ({"spin": 1}, TypeError, "spin must be True or False"),
        ({"check": "state"}, TypeError, "check must be True or False"),
        ({"bmap": None}, TypeError, "bmap"),
    ],
)
def test_a_wrong_option_is_refused_by_name_even_without_a_library(
    mapped: tuple[Catalog, Path],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    with pytest.raises(error, match=message):
        XnvmeBlockReader(mapped[0], **{"bmap": mapped[1], **options})


def test_no_library_is_unavailable(
    mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    assert "conda-forge" in str(XnvmeBlockReader.unavailable())
    with pytest.raises(BackendUnavailable, match="conda-forge"):
        XnvmeBlockReader(mapped[0], bmap=mapped[1])


def test_a_reader_that_is_closed_reads_nothing(
    xnvme: Library, mapped: tuple[Catalog, Path]
) -> None:
    reader = XnvmeBlockReader(mapped[0], bmap=mapped[1])
    batch = make_batch(reader, np.arange(3))
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        fill(reader, batch)


def test_a_user_who_may_not_read_the_device(
    xnvme: Library, mapped: tuple[Catalog, Path], ext4: Disk
) -> None:
    require_permission_to_be_named(XnvmeBlockReader, mapped, ext4.device)


# Reads that fail


class BadSector:
    """What covers `position` fails: its completion is replaced, as often as `times`.

    Attributes:
        outcome: result and status; a status is SCT << 8 | SC.
        tries: how many completions it has replaced.
    """

    def __init__(self, position: int, outcome: tuple[int, int], times: int = 10**9) -> None:
        self.position, self.outcome, self.times = position, outcome, times
        self.tries = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        original = ReadCommands.complete

        def complete(
            reads: ReadCommands, indices: IntArray, results: IntArray, statuses: Any
        ) -> list[int]:
            commands = reads._heads[indices].view(COMMAND)
            starts = commands["slba"].astype(np.int64) * 512
            ends = starts + (commands["nlb"].astype(np.int64) + 1) * 512
            hit = (starts <= self.position) & (ends > self.position)
            if hit.any() and self.tries < self.times:
                self.tries += 1
                results, statuses = results.copy(), statuses.copy()
                results[hit], statuses[hit] = self.outcome
            return original(reads, indices, results, statuses)

        monkeypatch.setattr(ReadCommands, "complete", complete)


EIO = (0, 7 << 8 | errno.EIO)
UNRECOVERED = (0, 0x281)
SHORT = (512, 0)


@pytest.fixture
def reader(
    xnvme: Library, mapped: tuple[Catalog, Path], request: pytest.FixtureRequest
) -> Iterator[Reader]:
    options = getattr(request, "param", {"retries": 3})
    with XnvmeBlockReader(mapped[0], bmap=mapped[1], **options) as reader:
        yield reader


@pytest.mark.parametrize(
    ("outcome", "what"),
    [
        (EIO, ": cannot read {} bytes"),
        (
            UNRECOVERED,
            ": NVMe status Unrecovered Read Error (SCT 2h, SC 81h): cannot read {} bytes",
        ),
        (SHORT, ": short read: 512 of {} bytes"),
    ],
    ids=["errno", "NVMe status", "short"],
)
@pytest.mark.parametrize("retries", [0, 3])
def test_a_bad_sector_is_reported_with_sample_extent_lba_and_status(
    xnvme: Library,
    mapped: tuple[Catalog, Path],
    monkeypatch: pytest.MonkeyPatch,
    outcome: tuple[int, int],
    what: str,
    retries: int,
) -> None:
    catalog, bmap = mapped
    contents = contents_of(catalog)
    logical, physical, length = bmap_tools.load(bmap).extents[1].tolist()
    if outcome == UNRECOVERED:  # such a status is NVMe's own; a loop device cannot have it
        monkeypatch.setattr(XnvmeDevice, "io", "io_uring_cmd", raising=False)
    bad = BadSector(physical + 2 * 4096 + 512, outcome)
    with XnvmeBlockReader(catalog, bmap=bmap, retries=retries) as reader:
        bad.install(monkeypatch)
        with pytest.raises(OSError) as caught:
            read(reader, np.array([0, 2, 1]))
        tries = bad.tries
        assert read(reader, np.array([0, 2])) == [contents[0], contents[2]]
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == os.fsdecode(catalog.path(1))
    where = f"{what.format(length)} at LBA {physical // 512} of /dev/loop"
    assert where in str(caught.value)
    extent = f"(extent 0, logical {logical}, physical {physical}, length {length})"
    assert extent in str(caught.value)
    assert tries == 1 + retries


@pytest.mark.parametrize("outcome", [EIO, SHORT], ids=["status", "short"])
@pytest.mark.parametrize("times", [1, 3])
def test_a_read_that_fails_no_more_often_than_it_is_retried_is_right(
    reader: Reader,
    mapped: tuple[Catalog, Path],
    monkeypatch: pytest.MonkeyPatch,
    outcome: tuple[int, int],
    times: int,
) -> None:
    bad = BadSector(int(bmap_tools.load(mapped[1]).extents[1, 1]), outcome, times)
    bad.install(monkeypatch)
    assert read(reader, np.arange(3)) == contents_of(mapped[0])
    assert bad.tries == times


def test_a_command_for_several_samples_fails_for_the_one_whose_bytes_are_bad(
    reader: Reader, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, bmap = mapped
    extents = bmap_tools.load(bmap).extents
    ends = extents[:-1, 1] + extents[:-1, 2]
    assert (ends == extents[1:, 1]).any(), "no two files are adjacent"
    first = int(np.flatnonzero(ends == extents[1:, 1])[0])
    bad = BadSector(int(extents[first + 1, 1]), EIO)
    bad.install(monkeypatch)
    with pytest.raises(OSError) as caught:
        read(reader, np.array([first, first + 1]))
    assert caught.value.filename == os.fsdecode(catalog.path(first + 1))
    assert f"at LBA {extents[first + 1, 1] // 512} of" in str(caught.value)


def test_of_several_bad_samples_the_first_of_the_batch_is_named(
    reader: Reader, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 2):
        BadSector(int(bmap_tools.load(mapped[1]).extents[number, 1]), EIO).install(monkeypatch)
    for samples, named in (([1, 2, 0], 2), ([0, 1, 2], 0)):
        with pytest.raises(OSError) as caught:
            read(reader, np.array(samples))
        assert caught.value.filename == os.fsdecode(mapped[0].path(named))


def test_a_read_that_cannot_be_submitted_names_the_sample(
    reader: Reader, mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ReadCommands, "submit", lambda _, indices, __: [-errno.EINVAL] * len(indices)
    )
    with pytest.raises(OSError, match="cannot submit a read of") as caught:
        read(reader, np.array([1]))
    assert (caught.value.errno, caught.value.filename) == (
        errno.EINVAL,
        os.fsdecode(mapped[0].path(1)),
    )


def test_a_device_that_does_not_answer_is_named(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, ext4: Disk
) -> None:
    def silent(*_: Any) -> None:
        raise OSError(errno.ETIMEDOUT, "libxnvme: the device does not answer")

    monkeypatch.setattr(Queue, "run", silent)
    with pytest.raises(TimeoutError, match="does not answer") as caught:
        read(reader, np.array([1]))
    assert caught.value.filename == ext4.device


def test_a_device_that_loses_its_end_fails_and_nothing_is_under_way(
    xnvme: Library, tmp_path: Path
) -> None:
    with disk(tmp_path, size=32 << 20) as made:
        (made.mount / "class").mkdir()
        for number in range(60):
            content = np.random.default_rng(number).bytes(200_000)
            (made.mount / "class" / f"{number:02d}").write_bytes(content)
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        contents = contents_of(from_directory(made.mount, file_filters="*"))
        run("umount", str(made.mount))
        whole = made.image.read_bytes()
        for io in (io for io in IOS if offers(xnvme, io)):
            try:
                fail_at_the_end(made, bmap, contents, io)
            finally:
                with open(made.image, "r+b") as image:
                    image.write(whole)
        run("mount", made.device, str(made.mount))


def fail_at_the_end(made: Disk, bmap: Path, contents: list[bytes], io: str) -> None:
    catalog = from_tree(XnvmeBlockReader.tree(bmap=bmap), file_filters="*")
    starts, lengths = bmap_tools.load(bmap).extents[:, 1:].T
    cut = int(np.sort(starts)[30])
    left = np.flatnonzero(starts + lengths <= cut)
    options: dict[str, Any] = {"io": io, "queue_depth": 8, "max_transfer": 16384}
    with pytest.warns(MapNotChecked):
        opened = XnvmeBlockReader(catalog, bmap=bmap, uri=made.device, **options)
    with opened as reader:
        assert read(reader, np.arange(60)) == contents
        batch = make_batch(reader, np.arange(60))
        os.truncate(made.image, cut)
        with pytest.raises(OSError, match="cannot read"):
            fill(reader, batch)
        batch.buffer[:] = 0x5A
        time.sleep(0.01)
        assert (batch.buffer == 0x5A).all()
        assert left.size
        assert read(reader, left) == [contents[sample] for sample in left]


# Resources


def test_buffers_outlive_the_reader(xnvme: Library, mapped: tuple[Catalog, Path]) -> None:
    with XnvmeBlockReader(mapped[0], bmap=mapped[1]) as reader:
        buffer = reader.allocate(1 << 20)
        content = read(reader, np.array([0]), buffer=buffer)[0]
    assert buffer[: len(content)].tobytes() == content
    with pytest.raises(ValueError, match="closed"):
        reader.allocate(1)


# In a pipeline


@pytest.mark.usefixtures("pipelines_end")
def test_samples_labels_and_order_are_those_of_fn_readers_file(
    io: str, root: Path, tmp_path: Path
) -> None:
    random = np.random.default_rng(3)
    for index in range(40):
        folder = root / f"class{index % 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"{index:02d}.jpg").write_bytes(random.bytes(int(random.integers(1, 99_999))))
    (root / "class1b").mkdir()
    order = {"random_shuffle": True, "seed": 5, "initial_fill": 16}
    options = {"bmap": str(make_map(root, tmp_path / "bmap.json")), "io": io, "queue_depth": 16}
    expected = take(build(fn.readers.file, file_root=str(root), **order), 25)
    ours = build(readers.file, **order, backend="xnvme-block", backend_options=options)
    drop_caches()
    assert take(ours, 25) == expected
