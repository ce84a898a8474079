import ctypes
import errno
import gc
import os
import re
import struct
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from dali_storage.backends.linux import aio, libc
from dali_storage.backends.linux.aio import IO_EVENT, IOCB, AioContext
from dali_storage.backends.linux.libc import IOVEC, make_iovecs
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.interrupts import interrupted
from tests.kit.process import alone, status_of_fork
from tests.kit.tiers import by_tier


@pytest.fixture
def file(tmp_path):
    content = np.random.default_rng(1).bytes(100_000)
    (tmp_path / "file").write_bytes(content)
    fd = os.open(tmp_path / "file", os.O_RDONLY)
    yield fd, content
    os.close(fd)


def pieces(buffer, starts, length):
    return make_iovecs((buffer.ctypes.data + np.asarray(starts), length))


def test_the_structures_are_laid_out_as_in_the_kernel():
    # struct iocb: u64 data, u32 key, u32 rw_flags, u16 opcode, s16 prio, u32 fd, u64 buf,
    # u64 nbytes, s64 offset, u64 reserved, u32 flags, u32 resfd
    assert IOCB.itemsize == struct.calcsize("=QIIHhIQQqQII") == 64
    assert IOCB.fields is not None
    assert [IOCB.fields[name][1] for name in ("fd", "buf", "nbytes", "offset")] == [20, 24, 32, 40]
    assert IO_EVENT.itemsize == struct.calcsize("=QQqq")
    assert IOVEC.itemsize == 2 * ctypes.sizeof(ctypes.c_void_p)


@pytest.mark.parametrize("rw_flags", [0, os.RWF_NOWAIT])
@pytest.mark.parametrize("depth", [1, 7, 64, 300])
def test_any_number_of_reads_goes_through_any_depth(file, depth, rw_flags):
    fd, content = file
    offsets = np.random.default_rng(depth).integers(0, 99_000, 200)
    buffer = np.zeros(200 * 1000, np.uint8)
    with closing(AioContext(depth)) as context:
        results = context.read(
            np.full(200, fd), pieces(buffer, np.arange(200) * 1000, 1000), offsets, rw_flags
        )
        context.close()  # twice is fine
    assert results.tolist() == [1000] * 200
    rows = [row.tobytes() for row in buffer.reshape(200, 1000)]
    assert rows == [content[offset : offset + 1000] for offset in offsets.tolist()]


def test_reads_that_are_not_complete_at_once_are_waited_for_without_the_interpreter_lock(
    file, monkeypatch
):
    asked = []

    def nothing_yet(*arguments):
        asked.append(1)
        assert len(asked) == 1, "it polls"
        return 0

    monkeypatch.setattr(libc, "syscall_with_gil", nothing_yet)
    buffer = np.zeros(1000, np.uint8)
    with closing(AioContext(4)) as context:
        iovecs = pieces(buffer, [0], 1000)
        assert context.read([file[0]], iovecs, [500], os.RWF_NOWAIT).tolist() == [1000]
    assert asked
    assert buffer.tobytes() == file[1][500:1500]


def test_a_machine_without_contexts_is_refused_with_the_limit():
    limit = int(Path("/proc/sys/fs/aio-max-nr").read_text())
    with pytest.raises(BackendUnavailable, match=r"fs\.aio-max-nr"):
        AioContext(limit + 1)


def test_an_unknown_machine_is_refused_with_the_sandbox_as_a_reason(monkeypatch):
    monkeypatch.setattr(aio, "_SETUP", -1)
    with pytest.raises(BackendUnavailable, match="seccomp"):
        AioContext(1)


def read_one(fd, depth):
    memory = np.zeros(100, np.uint8)
    assert aio.read(depth, [fd], pieces(memory, [0], 100), [0]).tolist() == [100]
    return memory.tobytes()


@pytest.fixture
def contexts(monkeypatch):
    """Counts the open contexts of a depth that no other code of this process uses."""
    opened = {}
    monkeypatch.setattr(aio, "_idle", defaultdict(list))
    monkeypatch.setattr(aio, "_open", opened)
    return lambda depth: gc.collect() * 0 + list(opened.values()).count(depth)


OURS = 61  # a depth


def test_reads_in_sequence_use_one_context(file, contexts):
    for _ in range(100):
        assert read_one(file[0], OURS) == file[1][:100]
    assert contexts(OURS) == 1


def test_an_error_leaves_no_read_under_way_and_no_context_behind(file, contexts, monkeypatch):
    memory = np.zeros(100_000, np.uint8)
    iovecs = pieces(memory, [0], memory.size)
    read_one(file[0], OURS)
    with monkeypatch.context() as failing, pytest.raises(OSError, match="no events"):
        failing.setattr(AioContext, "_reap", Mock(side_effect=OSError(errno.EIO, "no events")))
        aio.read(OURS, [file[0]], iovecs, [0])
    assert memory.tobytes() == file[1]
    assert contexts(OURS) == 0
    assert read_one(file[0], OURS) == file[1][:100]


@pytest.mark.long
@alone
def test_ctrl_c_while_a_reader_is_opened_leaves_no_context_behind():
    def rings():
        gc.collect()
        return Path("/proc/self/maps").read_text().count("[aio]")

    for point in range(0, 40, by_tier(5, 1)):  # every fifth in `make test`
        assert aio.unavailable(64) is None
        before = rings()
        with suppress(KeyboardInterrupt), interrupted(aio.unavailable, point):
            aio.unavailable(48)
        assert rings() - before == len(aio._open) - 1, point
        while aio._close_an_idle_one():
            pass
        assert rings() < before, point


@pytest.fixture
def limit(monkeypatch):
    """Sets how many contexts the kernel allows, beside those that there are already."""
    real, ids, most = libc.syscall, set[int](), [0]

    def limited(number, *arguments):
        if number == aio._SETUP and len(ids) >= most[0]:
            ctypes.set_errno(errno.EAGAIN)
            return -1
        if number == aio._DESTROY:
            ids.discard(arguments[0].value)
        result = real(number, *arguments)
        if number == aio._SETUP and result == 0:
            ids.add(arguments[1]._obj.value)
        return result

    monkeypatch.setattr(aio, "_idle", defaultdict(list))
    monkeypatch.setattr(aio, "_open", {})
    monkeypatch.setattr(libc, "syscall", limited)
    yield lambda allowed: most.__setitem__(0, allowed)
    while aio._close_an_idle_one():
        pass


def test_a_lane_waits_for_the_context_of_another_one(file, limit):
    limit(1)
    ours, theirs = os.pipe()
    until = time.monotonic() + 60
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(read_one, ours, 4)
        while len(aio._open) == len(aio._idle[4]) and time.monotonic() < until:  # not borrowed yet
            time.sleep(0.001)
        second = threads.submit(read_one, file[0], 4)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.1)
        assert aio.unavailable(4) is None  # a new reader is not refused meanwhile
        os.write(theirs, file[1][:100])
        assert first.result(60) == second.result(60) == file[1][:100]
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("allowed", [1, 3])
def test_many_threads_share_few_contexts(file, limit, allowed):
    def run(number):
        return all(read_one(file[0], 4 << number % 2) == file[1][:100] for _ in range(5))

    limit(allowed)
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(run, range(8)))
    assert 1 <= len(aio._open) <= 8


def test_no_context_at_all_is_refused_and_later_works(file, limit):
    limit(0)
    with pytest.raises(BackendUnavailable, match=r"in use; raise the limit .*fs\.aio-max-nr"):
        read_one(file[0], 4)
    for depth in (1, 4):
        assert re.search(r"in use; raise the limit .*fs\.aio-max-nr", str(aio.unavailable(depth)))
    limit(1)
    assert aio.unavailable(4) is None
    assert read_one(file[0], 4) == file[1][:100]
    assert aio.unavailable() is None


@alone
@pytest.mark.long
def test_a_forked_process_has_contexts_of_its_own(file):
    def read_and_close():
        assert read_one(file[0], 4) == file[1][:100]
        context.close()  # a child leaves the kernel's context alone
        aio._idle.clear()

    assert read_one(file[0], 4) == file[1][:100]
    context = AioContext(4)
    assert status_of_fork(read_and_close) == 0
    assert read_one(file[0], 4) == file[1][:100]
    context.close()


def test_reads_that_the_kernel_refuses_for_now_are_submitted_again(file, monkeypatch):
    """It takes two, and no third one while one of them is under way."""
    real, taken = libc.syscall, iter([2, 0])

    def syscall(number, context, *arguments):
        if number == aio._SUBMIT and (count := next(taken, None)) is not None:
            ctypes.set_errno(errno.EAGAIN)
            return int(real(number, context, ctypes.c_long(count), arguments[1])) if count else -1
        if number == aio._GETEVENTS:  # one at a time
            arguments = ctypes.c_long(1), ctypes.c_long(1), *arguments[2:]
        return int(real(number, context, *arguments))

    buffer = np.zeros(5 * 1000, np.uint8)
    with closing(AioContext(8)) as context:
        monkeypatch.setattr(libc, "syscall", syscall)
        starts = np.arange(5) * 1000
        assert context.read(file[0], pieces(buffer, starts, 1000), starts).tolist() == [1000] * 5
    assert buffer.tobytes() == file[1][:5000]
    assert next(taken, None) is None
