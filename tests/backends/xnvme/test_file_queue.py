import os
from contextlib import closing

import numpy as np
import pytest

from dali_storage.backends.xnvme.file_queue import FileQueue
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.process import descriptors
from tests.kit.xnvme import Descriptors, require_io


def test_a_long_file_is_read_in_pieces(xnvme, file, io, monkeypatch):
    monkeypatch.setattr("dali_storage.backends.xnvme.file_queue._MOST", 7000)
    memory = np.zeros((5, 100_000), np.uint8)
    with closing(FileQueue(xnvme, io, 2)) as queue, open(file, "rb") as opened:
        work = Descriptors(queue, [opened.fileno()] * 5, memory)
        queue.run(work, memory)
        assert sorted(work.ended) == list(range(5))
    assert all(row.tobytes() == file.read_bytes() for row in memory)


@pytest.mark.parametrize(("release", "cleared"), [("5.14.0-70.el9", True), ("6.1", False)])
def test_o_nonblock_is_cleared_before_linux_5_15_for_io_uring(
    xnvme, file, monkeypatch, release, cleared
):
    monkeypatch.setattr("platform.release", lambda: release)
    memory = np.zeros((1, 4096), np.uint8)
    require_io(xnvme, "io_uring")
    with closing(FileQueue(xnvme, "io_uring", 2)) as queue:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        queue.run(Descriptors(queue, [fd], memory), memory)
        assert os.get_blocking(fd) == cleared
        os.close(fd)
    assert memory.tobytes() == file.read_bytes()[:4096]


def test_no_file_stays_open_in_a_queue(xnvme, file, io):
    memory = np.zeros((3, 100), np.uint8)
    with closing(FileQueue(xnvme, io, 2)) as queue:
        fd = os.open(file, os.O_RDONLY)
        queue.run(Descriptors(queue, [fd, -1, fd], memory), memory)
        os.close(fd)
        assert not descriptors(file)
    with pytest.raises(ValueError, match="closed"):
        queue.run(Descriptors(queue, [], memory[:0]), None)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("linux.libc.dup3_with_gil", lambda *_: 0),
        *(("xnvme.device.XnvmeDevice.descriptor", wrong) for wrong in (0, 1 << 20)),
    ],
)
def test_a_library_that_keeps_its_descriptors_elsewhere_is_refused(xnvme, monkeypatch, name, wrong):
    monkeypatch.setattr(f"dali_storage.backends.{name}", wrong)
    with pytest.raises(BackendUnavailable, match="descriptors"):
        FileQueue(xnvme, "emu", 4)
