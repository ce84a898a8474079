import errno
import os
from contextlib import closing

import numpy as np
import pytest

from dali_storage.backends.xnvme.device import XnvmeDevice
from dali_storage.backends.xnvme.file_queue import FileQueue
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.process import descriptors
from tests.kit.xnvme import Descriptors, require_io


@pytest.fixture
def files(tmp_path):
    """A hundred of 3000 bytes each, its number."""
    fds = []
    for number in range(100):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 3000)
        fds.append(os.open(tmp_path / str(number), os.O_RDONLY))
    yield fds
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize("depth", [1, 2, 64])
def test_one_queue_reads_many_files(xnvme, io, files, depth):
    memory = np.zeros((100, 3000), np.uint8)
    with closing(FileQueue(xnvme, io, depth)) as queue:
        for _ in range(3):
            memory[:] = 255
            work = Descriptors(queue, files, memory)
            queue.run(work, memory)
            assert not work.errors.any()
            assert (work.got == 3000).all()
            assert sorted(work.ended) == list(range(100))
            assert (memory == np.arange(100)[:, np.newaxis]).all()


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


def test_a_failed_read_has_its_errno_and_affects_no_other(xnvme, files, io):
    memory = np.zeros((3, 3000), np.uint8)
    with closing(FileQueue(xnvme, io, 4)) as queue:
        work = Descriptors(queue, [files[1], files[2], files[3]], memory)
        work._memory[1] = 4096  # no memory is there
        queue.run(work, memory)
        assert work.errors.tolist() == [0, errno.EFAULT, 0]
        assert (memory[0] == 1).all()
        assert (memory[2] == 3).all()


def test_a_closed_queue_is_refused(xnvme):
    queue = FileQueue(xnvme, "emu", 1)
    queue.close()
    queue.close()
    with pytest.raises(ValueError, match="closed"):
        queue.run(Descriptors(queue, [], np.zeros((0, 1), np.uint8)), None)


def test_a_library_that_does_not_read_where_the_descriptor_is_moved_is_refused(xnvme, monkeypatch):
    monkeypatch.setattr("dali_storage.backends.linux.libc.dup3_with_gil", lambda *_: 0)
    with pytest.raises(BackendUnavailable, match="descriptors"):
        FileQueue(xnvme, "emu", 4)


def test_a_library_that_keeps_its_descriptors_elsewhere_is_refused(xnvme, monkeypatch):
    for wrong in (0, 1 << 20):
        monkeypatch.setattr(XnvmeDevice, "descriptor", wrong)
        with pytest.raises(BackendUnavailable, match="descriptors"):
            FileQueue(xnvme, "emu", 4)
