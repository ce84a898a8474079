"""Leaks, and files opened for writing, as the operating system reports them."""

import contextlib
import ctypes
import functools
import gc
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import gt
from pathlib import Path
from typing import Any

import pytest

from .reading import names_path

_IN_MODIFY, _IN_CLOSE_WRITE = 0x2, 0x8  # <sys/inotify.h>; the second: a file opened to write
# Bytes of growth that are no leak: allocators keep some memory for later, and the kernel may turn
# memory in use into a huge page of 2 MiB. A lost buffer is as large.
_GROWTH = 4 << 20


@contextmanager
def nothing_is_left(connections: int = 0, seconds: float = 0.0) -> Iterator[None]:
    """Assert that the block leaves no open file, no thread and no memory behind.

    As many `connections`, with a thread for each, may be kept for the next use. What threads of
    others close, they have some `seconds` for.
    """
    files, threads, memory = _footprint()
    files, threads = files + connections, threads + connections
    yield
    until = time.monotonic() + seconds
    while any(map(gt, after := _footprint(), (files, threads))) and time.monotonic() < until:
        time.sleep(0.01)
    files_after, threads_after, memory_after = after
    assert files_after <= files, "files stay open"
    assert threads_after <= threads, "threads do not end"
    assert memory_after - memory < _GROWTH, "memory is not freed"


@contextmanager
def raises_naming(error: type[OSError] | tuple[type[OSError], ...], path: bytes) -> Iterator[None]:
    """Assert that the block raises an error that has this path as its `filename`."""
    with pytest.raises(error) as caught:
        yield
    assert names_path(caught.value, path)


def require_lanes(monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> None:
    """Have methods of a class, such as `read()` of a backend, fail in the main thread."""

    def checked(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any) -> Any:
            assert threading.current_thread() is not threading.main_thread(), method
            return method(*arguments)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, checked(getattr(owner, name)))


@contextmanager
def opened_for_writing(directory: bytes) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a file in `directory` was changed or opened to write.

    inotify(7) reports all system calls; Python's audit hooks would report its own only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        watch = libc.inotify_add_watch(fd, directory, _IN_MODIFY | _IN_CLOSE_WRITE)
        assert watch >= 0, os.strerror(ctypes.get_errno())

        def was_opened() -> bool:
            try:
                queue, seen = os.read(fd, 1 << 16), 0
            except BlockingIOError:
                return False
            while queue:
                _, mask, _, length = struct.unpack_from("=iIII", queue)
                seen, queue = seen | mask, queue[16 + length :]
            return bool(seen & (_IN_MODIFY | _IN_CLOSE_WRITE))

        yield was_opened
    finally:
        os.close(fd)


def _footprint() -> tuple[int, int, int]:
    """The open files of this process, its threads in any language, its memory in bytes."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)  # or else some MiB of free memory would count, or not
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has just ended
            names.append(Path("/proc/self/task", task, "comm").read_text())
    # The kernel's own threads for io_uring come and go, and hold nothing open.
    threads = sum(not name.startswith("iou-") for name in names)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return len(os.listdir("/proc/self/fd")), threads, resident
