from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from dali_storage.backends.linux import aio_context
from dali_storage.backends.linux.aio_context import IO_EVENT, IOCB, AioContext
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


def test_the_layouts_are_the_kernels() -> None:
    # struct iocb: u64 data, u32 key, u32 rw_flags, u16 opcode, s16 prio, u32 fd, u64 buf,
    # u64 nbytes, s64 offset, u64 reserved, u32 flags, u32 resfd
    assert IOCB.itemsize == struct.calcsize("=QIIHhIQQqQII") == 64
    assert IOCB.fields is not None
    assert [IOCB.fields[name][1] for name in ("fd", "buf", "nbytes", "offset")] == [20, 24, 32, 40]
    assert IO_EVENT.itemsize == struct.calcsize("=QQqq")
    assert IOVEC.itemsize == 2 * ctypes.sizeof(ctypes.c_void_p)


@pytest.mark.parametrize("depth", [1, 7, 64, 300])
def test_any_number_of_reads_goes_through_any_depth(file: tuple[int, bytes], depth: int) -> None:
    fd, content = file
    offsets = np.random.default_rng(depth).integers(0, 99_000, 200)
    buffer = np.zeros(200 * 1000, np.uint8)
    with closing(AioContext(depth)) as context:
        results = context.read(
            np.full(200, fd), pieces(buffer, np.arange(200) * 1000, 1000), offsets
        )
    assert results.tolist() == [1000] * 200
    for index, offset in enumerate(offsets.tolist()):
        assert (
            buffer[index * 1000 : (index + 1) * 1000].tobytes() == content[offset : offset + 1000]
        )


def test_a_refused_read_does_not_harm_its_neighbours(
    file: tuple[int, bytes], tmp_path: Path
) -> None:
    fd, content = file
    folder = os.open(tmp_path, os.O_RDONLY)
    buffer = np.zeros(500, np.uint8)
    with closing(AioContext(8)) as context:
        fds = [fd, 1_000_000, fd, folder, fd]
        results = context.read(fds, pieces(buffer, np.arange(5) * 100, 100), np.arange(5) * 100)
    os.close(folder)
    assert results.tolist() == [100, -errno.EBADF, 100, -errno.EINVAL, 100]
    for index in (0, 2, 4):
        assert (
            buffer[index * 100 : (index + 1) * 100].tobytes()
            == content[index * 100 : (index + 1) * 100]
        )


def test_the_end_of_a_file_gives_fewer_bytes(file: tuple[int, bytes]) -> None:
    fd, content = file
    buffer = np.zeros(2000, np.uint8)
    with closing(AioContext(2)) as context:
        results = context.read(
            [fd, fd], pieces(buffer, np.array([0, 1000]), 1000), [99_900, 100_000]
        )
    assert results.tolist() == [100, 0]
    assert buffer[:100].tobytes() == content[-100:]


def test_closing_twice_is_fine() -> None:
    context = AioContext(1)
    context.close()
    context.close()


def test_the_error_of_a_used_up_machine_names_the_limit() -> None:
    limit = int(Path("/proc/sys/fs/aio-max-nr").read_text())
    with pytest.raises(BackendUnavailable, match=r"fs\.aio-max-nr"):
        AioContext(limit + 1)


def test_the_error_of_an_unknown_machine_names_the_sandbox_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(aio_context, "_SETUP", -1)
    with pytest.raises(BackendUnavailable, match="seccomp"):
        AioContext(1)


@pytest.mark.parametrize("point", range(6))
def test_a_second_ctrl_c_leaves_no_read_under_way(
    file: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    memory = np.zeros(100_000, np.uint8)
    iovecs = pieces(memory, np.array([0]), memory.size)
    with closing(AioContext(4)) as context:
        monkeypatch.setattr(context, "_reap", interrupt)
        with pytest.raises(KeyboardInterrupt), interrupted(interrupt, point):
            context.read([file[0]], iovecs, [0])
        assert memory.tobytes() == file[1]
