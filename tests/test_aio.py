from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.linux import aio, aio_context, libc
from dali_storage.backends.linux.libc import IOVEC
from dali_storage.errors import BackendUnavailable

from .interrupts import interrupted


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    content = np.random.default_rng(1).bytes(100_000)
    (tmp_path / "file").write_bytes(content)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd, content
    os.close(fd)


def pieces(buffer: np.ndarray, starts: np.ndarray, length: int) -> np.ndarray:
    iovecs = np.zeros((len(starts), 1), IOVEC)
    iovecs["base"][:, 0] = buffer.ctypes.data + starts
    iovecs["len"][:, 0] = length
    return iovecs


def contexts() -> int:
    """How many contexts this process has: each has a ring that is mapped."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("[aio]")


def read_one(fd: int, depth: int) -> bytes:
    memory = np.zeros(100, np.uint8)
    assert aio.read(depth, [fd], pieces(memory, np.array([0]), 100), [0]).tolist() == [100]
    return memory.tobytes()


def test_reads_in_sequence_use_one_context(file: tuple[int, bytes]) -> None:
    read_one(file[0], 64)
    before = contexts()
    for _ in range(100):
        assert read_one(file[0], 64) == file[1][:100]
    assert contexts() == before


def test_threads_that_read_at_the_same_time_have_contexts_of_their_own(
    file: tuple[int, bytes],
) -> None:
    def run(_: int) -> bool:
        return all(read_one(file[0], 64) == file[1][:100] for _ in range(300))

    before = contexts()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, range(8)))
    assert contexts() <= before + 8


@pytest.mark.parametrize("point", range(0, 60, 3))
def test_ctrl_c_leaves_no_context_behind(file: tuple[int, bytes], point: int) -> None:
    read_one(file[0], 64)
    before = contexts()
    with contextlib.suppress(KeyboardInterrupt), interrupted(aio.read, point):
        read_one(file[0], 64)
    assert read_one(file[0], 64) == file[1][:100]
    assert contexts() <= before


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Sets how many contexts the kernel allows, beside those that there are already."""
    real, ids, most = libc.syscall, set[int](), [0]

    def limited(number: int, *arguments: Any) -> int:
        if number == aio_context._SETUP and len(ids) >= most[0]:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        if number == aio_context._DESTROY:
            ids.discard(arguments[0].value)
        result: int = real(number, *arguments)
        if number == aio_context._SETUP and result == 0:
            ids.add(arguments[1]._obj.value)
        return result

    monkeypatch.setattr(aio, "_pools", {})
    monkeypatch.setattr(libc, "syscall", limited)
    yield lambda allowed: most.__setitem__(0, allowed)
    while aio._close_an_idle_one():
        pass


def test_an_idle_context_of_another_depth_makes_room(
    file: tuple[int, bytes], limit: Callable[[int], None]
) -> None:
    limit(1)
    for depth in (4, 8, 8, 4):
        assert read_one(file[0], depth) == file[1][:100]


def test_a_lane_waits_for_the_context_of_another_one(
    file: tuple[int, bytes], limit: Callable[[int], None]
) -> None:
    limit(1)
    ours, theirs = os.pipe()
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read_one, ours, 4)
        while not contexts_are_borrowed(4):
            time.sleep(0.001)
        second = threads.submit(read_one, file[0], 4)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.1)
        aio.require(4)  # a new reader is not refused meanwhile
        os.write(theirs, file[1][:100])
        assert first.result(timeout=30) == second.result(timeout=30) == file[1][:100]
    os.close(ours)
    os.close(theirs)


def contexts_are_borrowed(depth: int) -> bool:
    pool = aio._pool(depth)
    return pool.count_open() > len(pool._idle)


def test_no_context_at_all_is_refused_and_later_works(
    file: tuple[int, bytes], limit: Callable[[int], None]
) -> None:
    limit(0)
    for refused in (lambda: aio.require(4), lambda: read_one(file[0], 4)):
        with pytest.raises(BackendUnavailable, match=r"in use; raise the limit .*fs\.aio-max-nr"):
            refused()
    assert "fs.aio-max-nr" in str(aio.unavailable())
    limit(1)
    aio.require(4)
    assert read_one(file[0], 4) == file[1][:100]
    assert aio.unavailable() is None


FORK = """
import os, sys
import numpy as np
from dali_storage.backends.linux import aio
from dali_storage.backends.linux.aio_context import AioContext
from dali_storage.backends.linux.libc import IOVEC

def read_one():
    memory = np.zeros(5, np.uint8)
    iovecs = np.array([[(memory.ctypes.data, 5)]], IOVEC)
    assert aio.read(4, [fd], iovecs, [0]).tolist() == [5]
    assert memory.tobytes() == b"bytes"

fd = os.open(sys.argv[1], os.O_RDONLY)
read_one()
context = AioContext(4)
child = os.fork()
read_one()  # in both
context.close()  # the child leaves the kernel's context alone
if not child:
    del aio._pools
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
read_one()
print("read")
"""


def test_a_forked_process_has_contexts_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    command = [sys.executable, "-c", FORK, str(tmp_path / "file")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == ("read\n", "")
