"""The ring of a thread; what it reads is tested with the other engines, and by the readers."""

import errno
import fcntl
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial

import numpy as np
import pytest

from dali_storage.backends.linux import libc, uring
from dali_storage.backends.linux.libc import make_iovecs
from dali_storage.backends.linux.uring import CQE, SQE, Ring
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.contract.stages import turn_given_by
from dali_storage.samples.discovery import from_files
from dali_storage.testing import read
from tests.kit.interrupts import is_interrupted
from tests.kit.process import alone, status_of_fork

FLAGS = os.O_RDONLY | os.O_NONBLOCK


@pytest.fixture
def ring():
    with closing(Ring()) as made:
        yield made


@pytest.fixture
def files(tmp_path):
    """Paths of 300 files, and their contents, all different."""
    contents = [b"%05d" % index * (index % 7 + 1) for index in range(300)]
    paths = [os.fsencode(tmp_path / f"{index}") for index in range(300)]
    for path, content in zip(paths, contents, strict=True):
        with open(path, "wb") as file:
            file.write(content)
    return paths, contents


@pytest.fixture
def pipe(tmp_path):
    """The path of a pipe, and a descriptor of its writer."""
    os.mkfifo(tmp_path / "pipe")
    fd = os.open(tmp_path / "pipe", os.O_RDWR)
    yield os.fsencode(tmp_path / "pipe"), fd
    os.close(fd)


def read_files(ring, paths, length=40):
    memory = np.zeros((len(paths), length), np.uint8)
    first = memory.ctypes.data + np.arange(len(paths)) * length
    iovecs = make_iovecs((first, length - 3), (first + length - 3, 3))
    results = ring.read_files(paths, np.full(len(paths), FLAGS), iovecs).tolist()
    got = [row[: max(size, 0)].tobytes() for row, size in zip(memory, results, strict=True)]
    return results, got


def in_thread(call):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result(60)


def test_the_structures_are_laid_out_as_in_the_kernel():
    assert (SQE.itemsize, CQE.itemsize) == (64, 16)
    assert SQE.fields is not None
    # u8 opcode, u8 flags, u16 ioprio, s32 fd, u64 off, u64 addr, u32 len, u32 flags, u64 user_data,
    # u16 buf_index, u16 personality, u32 file_index
    places = {
        name: SQE.fields[name][1] for name in ("fd", "off", "addr", "len", "op_flags", "slot")
    }
    assert places == {"fd": 4, "off": 8, "addr": 16, "len": 24, "op_flags": 28, "slot": 44}


def test_entries_go_around_the_ring_and_each_file_gets_its_own_bytes(ring, files):
    paths, contents = files
    for count in (1, 200, 256, 7, 255, 130):  # 512 entries
        results, got = read_files(ring, paths[:count])
        assert results == [len(content) for content in contents[:count]]
        assert got == contents[:count]


def test_a_file_that_cannot_be_opened_is_not_that_of_the_batch_before(ring, files):
    paths, contents = files
    read_files(ring, paths[:3])
    os.unlink(paths[1])
    results, got = read_files(ring, paths[:3])
    assert results == [len(contents[0]), -errno.ECANCELED, len(contents[2])]
    assert got[::2] == contents[:3:2]


def test_no_file_stays_open(ring, files):
    paths, _ = files
    read_files(ring, paths[:2])
    with open(paths[1], "rb+") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # refused if it is open elsewhere
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)


@pytest.mark.parametrize("taken", [0, 1, 3, 6])
def test_what_the_kernel_does_not_take_is_not_submitted_later(ring, files, monkeypatch, taken):
    """A read without its open before it would find another file, or none."""
    paths, contents = files
    real = libc.syscall

    def syscall(number, fd, submit, *arguments):
        return real(number, fd, taken if submit == 8 else submit, *arguments)

    monkeypatch.setattr(libc, "syscall", syscall)
    results, got = read_files(ring, paths[:4])
    whole = taken // 2
    assert got == contents[:whole] + [b""] * (4 - whole)
    assert results[whole:] == [-errno.ECANCELED] * (4 - whole)
    monkeypatch.undo()
    assert read_files(ring, paths[:4])[1] == contents[:4]


@pytest.mark.parametrize("ctrl_c", [False, True])
def test_an_error_is_raised_when_nothing_is_written_any_more(ring, files, pipe, ctrl_c):
    """And the results of that run are not those of the next one."""
    path, fd = pipe
    memory = np.zeros(100, np.uint8)
    iovecs = make_iovecs((memory.ctypes.data, 100), (0, 0))
    timer = threading.Timer(0.4, os.write, (fd, b"late" * 25))

    def fail():
        timer.start()
        if not ctrl_c:  # which comes later, while the kernel is waited for
            raise ZeroDivisionError

    before = turn_given_by(fail)
    try:
        with nullcontext() if ctrl_c else pytest.raises(ZeroDivisionError):
            call = partial(ring.read_files, [path], np.array([FLAGS]), iovecs)
            assert is_interrupted(call, 0.2 if ctrl_c else 60)
    finally:
        turn_given_by(before)
    assert memory.tobytes() == b"late" * 25
    timer.join()
    assert read_files(ring, files[0][:5])[1] == files[1][:5]


def test_a_pipe_whose_writer_writes_nothing_is_not_waited_for(files, pipe, monkeypatch):
    """The kernel would wait, despite O_NONBLOCK."""
    monkeypatch.setattr(uring, "_STALL_S", 0)
    paths, contents = files
    with closing(Ring()) as ring:
        results, got = read_files(ring, [paths[4], pipe[0], paths[5]])
    assert results == [len(contents[4]), -errno.ECANCELED, len(contents[5])]
    assert got[::2] == contents[4:6]


def test_a_thread_has_one_ring_until_it_ends():
    def look():
        mine = uring.ring()
        assert mine is not None
        assert uring.ring() is mine
        assert mine._fd in uring._open
        return mine._fd, os.readlink(f"/proc/self/fd/{mine._fd}")

    fd, name = in_thread(look)
    assert name == "anon_inode:[io_uring]"
    assert fd not in uring._open


@pytest.fixture(params=["EMFILE", "ENOMEM", "many rings"])
def no_ring(request, monkeypatch):
    """Threads get no new ring, and have none."""
    monkeypatch.setattr(uring, "_mine", threading.local())
    if request.param == "many rings":
        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
        monkeypatch.setattr(uring, "_open", {*range(-64, 0)})
        return
    real, number = uring._call, getattr(errno, request.param)

    def refuse(call, *arguments):
        if call == uring._SETUP:
            raise OSError(number, os.strerror(number))
        return real(call, *arguments)

    monkeypatch.setattr(uring, "_call", refuse)


@pytest.mark.usefixtures("no_ring")
def test_a_lane_without_a_ring_reads_in_another_way(files):
    paths, contents = files
    with PythonFileReader(from_files([*map(os.fsdecode, paths)]), io="io_uring") as reader:
        for _ in range(2):  # the sizes are unknown, and known
            assert read(reader, np.arange(300)) == contents
    assert uring.ring() is None


@pytest.mark.parametrize("lacking", [uring.READV, uring.OPENAT, uring.STATX])
def test_a_kernel_that_lacks_an_opcode_is_refused_and_not_used(one_file, monkeypatch, lacking):
    monkeypatch.setattr(Ring, "opcodes", lambda _: {*range(60)} - {lacking})
    with PythonFileReader(one_file) as reader:
        assert reader.io == "aio"
    with pytest.raises(BackendUnavailable, match=r"cannot open or read.*leave out .* io"):
        PythonFileReader(one_file, io="io_uring")


@alone
def test_a_forked_process_has_rings_of_its_own(files):
    paths, contents = files

    def read_in_fork():
        return before is not uring.ring() and read_files(uring.ring(), paths[:9])[1] == contents[:9]

    before = uring.ring()
    assert status_of_fork(read_in_fork) == 0
    assert read_files(before, paths[:9])[1] == contents[:9]
