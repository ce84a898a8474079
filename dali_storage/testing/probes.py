"""Probes for leaks and for files opened for writing, by the operating system's reports."""

import contextlib
import ctypes
import functools
import gc
import os
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from .reading import names_path

_IN_MODIFY, _IN_CLOSE_WRITE = 0x2, 0x8  # <sys/inotify.h>; the second: a file opened to write
# Bytes of growth without a leak: allocators keep some memory for later, and the kernel may turn
# memory in use into a huge page of 2 MiB. A lost buffer is as large.
_GROWTH = 4 << 20
_PATIENCE_S = 60.0  # only a leak takes as long


def require_no_leak(run: Callable[[], object], connections: int = 0) -> None:
    """Assert that `run()` does not leave an open file, a thread or memory at each call.

    `connections`, with a thread for each, may be kept for the next use. Other threads of this
    process may open or allocate something meanwhile, but not at each call.
    """
    for patience in (1, 1, _PATIENCE_S):
        before = _footprint()
        run()
        if not (left := _left(before, connections, patience)):
            return
    raise AssertionError(left)


@contextmanager
def raises_naming(
    error: type[OSError] | tuple[type[OSError], ...],
    path: bytes | str | Path,
    match: str | None = None,
) -> Iterator[pytest.ExceptionInfo[OSError]]:
    """Assert that the block raises an error with this path as `filename`."""
    with pytest.raises(error, match=match) as caught:
        yield caught
    assert names_path(caught.value, os.fsencode(path))


def require_lanes(monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> None:
    """Make methods of a class, such as `read()` of a backend, fail in the main thread."""

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
    """Yield a function: whether a file in `directory` was changed or opened for writing.

    inotify(7) reports all system calls; audit hooks would report only calls from Python.
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


def _left(before: tuple[int, int, int], connections: int, patience: float) -> str:
    """Describe leaks since `before`, after `patience` seconds; "" as soon as there are none.

    Threads of a library may end late, and a joined thread is listed for a moment longer.
    """
    until = time.monotonic() + patience
    while True:
        files, threads, memory = (
            now - then for now, then in zip(_footprint(), before, strict=True)
        )
        if files <= connections and threads <= connections and memory < _GROWTH:
            return ""
        if time.monotonic() > until:
            return f"{files} files stay open, {threads} threads run, {memory} bytes are not freed"
        time.sleep(0.01)


def _footprint() -> tuple[int, int, int]:
    """Count the open files and threads, in any language, and the memory of this process."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)  # or else some MiB of free memory would count, or not
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has just ended
            names.append(Path("/proc/self/task", task, "comm").read_text())
    # The kernel's own threads for io_uring come and go, and hold nothing open.
    threads = sum(not name.startswith("iou-") for name in names)
    # Without the pages of mapped files, which grow when code runs for the first time.
    (memory,) = re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return len(os.listdir("/proc/self/fd")), threads, int(memory) << 10
