"""What the engines that read files have in common."""

import errno
import os
import time
from functools import partial

import numpy as np
import pytest

from dali_storage.backends.linux import aio, engines
from dali_storage.backends.linux.libc import make_iovecs


def pieces(memory, length):
    """Two pieces of memory per read, each `length` bytes long, one after the other."""
    starts = memory.ctypes.data + np.arange(0, memory.size, 2 * length)
    return make_iovecs((starts, length), (starts + length, length))


@pytest.fixture(params=[partial(aio.read, 8), engines.preadv], ids=["aio", "preadv"])
def read(request):
    return request.param


def test_ranges_are_read_whole_and_short(file, read):
    content = file.read_bytes()
    memory = np.zeros(600, np.uint8)
    with open(file, "rb") as opened:
        results = read([opened.fileno()] * 3, pieces(memory, 100), [7, 99_900, 100_000])
    assert results.dtype == np.int64
    assert results.tolist() == [200, 100, 0]
    assert memory[:300].tobytes() == content[7:207] + content[99_900:]
    assert not memory[300:].any()


def test_a_read_that_fails_does_not_harm_its_neighbours(file, read):
    expected = file.read_bytes()[:200]
    fd, folder = os.open(file, os.O_RDONLY), os.open(file.parent, os.O_RDONLY)
    memory = np.zeros(800, np.uint8)
    results = read([fd, 1_000_000, folder, fd], pieces(memory, 100), [0] * 4)
    os.close(fd)
    os.close(folder)
    refused = -errno.EISDIR if read is engines.preadv else -errno.EINVAL
    assert results.tolist() == [200, -errno.EBADF, refused, 200]
    assert memory[:200].tobytes() == memory[600:].tobytes() == expected


def test_a_read_that_must_not_block_gives_what_is_cached(tmp_path):
    (tmp_path / "file").write_bytes(bytes(200))
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    until = time.monotonic() + 60
    while time.monotonic() < until:  # the kernel may forget the page at any time
        os.pread(fd, 200, 0)
        if engines.preadv([fd], pieces(np.ones(200, np.uint8), 100), [0], os.RWF_NOWAIT) == [200]:
            break
    else:
        pytest.fail("a cached page is never read without blocking")
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    results = engines.preadv([fd], pieces(np.ones(200, np.uint8), 100), [0], os.RWF_NOWAIT)
    os.close(fd)
    assert results.tolist() in ([-errno.EAGAIN], [200])  # tmpfs forgets nothing
