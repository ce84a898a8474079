"""The xnvme-block backend, on loop devices and their images; real NVMe is tests/nvme_vm's."""

import errno
import gc
import sys
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage.backends import xnvme_block
from dali_storage.backends.xnvme.abi import COMMAND
from dali_storage.backends.xnvme.device import XnvmeDevice
from dali_storage.backends.xnvme.file_queue import IOS
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.backends.xnvme.read_commands import ReadCommands
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract._types import address_of
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import fill, make_batch, read
from dali_storage.testing.probes import raises_naming, require_no_leak
from tests.kit.file_reading import of_reading
from tests.kit.mapped import NEEDS_ROOT, OnDisk, RawDiskTests
from tests.kit.xnvme import offers, require_io

pytestmark = NEEDS_ROOT


class OfXnvmeBlock(OnDisk):
    backend = XnvmeBlockReader

    @pytest.fixture(autouse=True)
    def library(self, xnvme):
        require_io(xnvme, self.options.get("io", IOS[0]))


class TestIoUringOnExt4(OfXnvmeBlock):
    batches = 5_000


@of_reading
class TestIoUringOnXfsOf4096ByteSectorsByItsDisk(OfXnvmeBlock):
    file_system, sector, partition = "xfs", 4096, True
    options: ClassVar[dict[str, Any]] = {"queue_depth": 2, "queues": 3, "max_transfer": 4096}

    def uri(self):
        return self.disk_used.disk


@of_reading
class TestIoUringOnXfsPartitionSpinning(OfXnvmeBlock):
    file_system, partition = "xfs", True
    options: ClassVar[dict[str, Any]] = {"spin": True, "queue_depth": 1, "queues": 1}
    openings = 500


@of_reading
class TestIoUringOnTheImageOfExt4Of4096ByteSectors(OfXnvmeBlock):
    sector, partition = 4096, True

    def uri(self):
        return self.disk_used.image


@of_reading
class TestLibaioOnExt4Of4096ByteSectors(OfXnvmeBlock):
    sector = 4096
    options: ClassVar[dict[str, Any]] = {"io": "libaio", "queue_depth": 8}
    openings = 10  # the kernel takes 33 ms to end an AIO context


@of_reading
class TestEmuToPageLockedMemory(OfXnvmeBlock):
    options: ClassVar[dict[str, Any]] = {"io": "emu", "mem": "pinned", "gpu": 1}

    @pytest.fixture(autouse=True)
    def cuda(self, gpus):
        yield
        gc.collect()
        assert not gpus.registered


@of_reading
class TestThrpoolOnXfsOf4096ByteSectors(OfXnvmeBlock):
    file_system, sector = "xfs", 4096
    options: ClassVar[dict[str, Any]] = {"io": "thrpool", "queue_depth": 16, "retries": 0}
    openings = 100


class TestOnDisks(RawDiskTests):
    backend = XnvmeBlockReader
    retries: ClassVar[list[dict[str, int]]] = [{"retries": 3}, {"retries": 0}]
    outcomes: ClassVar[dict[str, str]] = {
        "error": "cannot read",
        "status": "NVMe status Unrecovered Read Error (SCT 2h, SC 81h): cannot read",
        "short": "short read: 512 of",
    }

    @pytest.fixture(autouse=True)
    def library(self, xnvme):
        offered = [io for io in IOS if offers(xnvme, io)]
        self.ways = [{"io": io, "queue_depth": 16, "queues": 1} for io in offered]

    def break_sector(self, patch, position, outcome="error", times=10**9):
        codes = {"error": (0, 7 << 8 | errno.EIO), "status": (0, 0x281), "short": (512, 0)}
        original, tries = ReadCommands.complete, list[int]()
        if outcome == "status":  # it is NVMe's own; a loop device cannot have it
            patch.setattr(XnvmeDevice, "io", "io_uring_cmd", raising=False)

        def complete(reads, indices, results, statuses):
            commands = reads._heads[indices].view(COMMAND)
            starts = commands["slba"].astype(np.int64) * 512
            ends = starts + (commands["nlb"].astype(np.int64) + 1) * 512
            hit = (starts <= position) & (ends > position)
            if hit.any() and len(tries) < times:
                tries.append(position)
                results, statuses = results.copy(), statuses.copy()
                results[hit], statuses[hit] = codes[outcome]
            return original(reads, indices, results, statuses)

        patch.setattr(ReadCommands, "complete", complete)
        return tries


# Page-locked memory


def test_page_locked_memory_is_that_of_libxnvme(io, mapped, gpus):
    with mapped.open(XnvmeBlockReader, io=io, mem="pinned") as reader:
        assert (reader.device, reader.gpu, reader.pinned) == ("cpu", 0, True)
        assert not gpus.registered
        buffer = reader.allocate(1 << 20)
        assert gpus.registered == {address_of(buffer): buffer.nbytes}
        assert read(reader, np.arange(3), buffer=buffer) == mapped.contents
    del reader
    assert gpus.registered
    del buffer
    assert not gpus.registered


def test_memory_that_cannot_be_page_locked_is_freed(xnvme, mapped, gpus):
    with mapped.open(XnvmeBlockReader, mem="pinned") as reader:
        gpus.capacity = 1 << 20

        def allocate():
            with pytest.raises(MemoryError, match="CUDA cannot page-lock 67108864 bytes"):
                reader.allocate(64 << 20)

        require_no_leak(allocate)
        assert read(reader, np.arange(3)) == mapped.contents


@pytest.mark.parametrize(
    ("options", "missing", "message"),
    [
        ({}, "CuPy", r"CuPy, which cannot be imported.*; pip install .*\[cuda12\]'"),
        ({"mem": "gpu", "uri": "0000:ff:1f.7"}, "CuPy", "CuPy, which cannot be imported"),
        ({"gpu": 2}, "GPUs", "CUDA cannot be used"),
        ({"gpu": 2}, "GPU 2", "there is no GPU 2; choose one from 0 to 1"),
    ],
)
def test_without_cupy_or_the_gpu_nothing_is_opened(
    mapped, monkeypatch, gpus,
    options, missing, message
):  # fmt: skip
    monkeypatch.setenv("XNVME_LIBRARY_PATH", "/no/such/libxnvme.so")
    monkeypatch.setattr(xnvme_block, "require_controller", lambda _: None)
    gpus.count = None if missing == "GPUs" else 2
    if missing == "CuPy":
        monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=message):
        mapped.open(XnvmeBlockReader, **{"mem": "pinned", **options})


def test_gpu_memory_is_flushed_after_the_reads_of_each_batch(xnvme, mapped, monkeypatch):
    calls = []
    run = Queue.run
    with mapped.open(XnvmeBlockReader) as reader:
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
        ({"mem": "gpu"}, ValueError, "mem='gpu' needs the PCI address .*, not None; or use mem='"),
        ({"mem": "gpu", "uri": "/dev/ng0n1"}, ValueError, "needs the PCI address .* '/dev/ng0n1'"),
        ({"mem": "gpu", "uri": "0000:ff:1f.7"}, FileNotFoundError, "lspci -D"),
        ({"gpu": 0}, ValueError, "gpu 0 is for mem='pinned' or 'gpu', not for 'cpu'"),
    ],
)
def test_options_that_do_not_fit_the_memory_are_refused(mapped, options, error, message):
    with pytest.raises(error, match=message):
        mapped.open(XnvmeBlockReader, **options)


# Reads that fail


@pytest.fixture
def reader(xnvme, mapped):
    with mapped.open(XnvmeBlockReader) as reader:
        yield reader


def test_a_read_that_cannot_be_submitted_names_the_sample(reader, mapped, monkeypatch):
    monkeypatch.setattr(
        ReadCommands, "submit", lambda _, indices, __: [-errno.EINVAL] * len(indices)
    )
    with raises_naming(OSError, mapped.catalog.path(1), "cannot submit a read of") as caught:
        read(reader, np.array([1]))
    assert caught.value.errno == errno.EINVAL


def test_a_device_that_does_not_answer_is_named(reader, monkeypatch, ext4):
    def silent(*_):
        raise OSError(errno.ETIMEDOUT, "libxnvme: the device does not answer")

    monkeypatch.setattr(Queue, "run", silent)
    with raises_naming(TimeoutError, ext4.device, "does not answer"):
        read(reader, np.array([1]))
