"""The report of all readers, also when a signal asks for it."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

# All of it now: a handler of a signal imports nothing.
from . import meter
from .reporting import paragraph
from .statistics import figures

_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Of the code itself: a handler in Python returns to the same fault."""

_STDERR, _PATIENCE = 2, 1000  # descriptor; milliseconds that it may be full


def report() -> str:
    """The present activity of each thread of each open reader of this process, as text.

    A paragraph for each reader has its statistics, and a line for each thread at work: the stage
    and its beginning, the batch, and the file, extent or object; the thread's state and wait
    channel in the kernel; file system and server of the mount. Takes no lock, opens no file of the
    user, and may be called in any thread.
    """
    readers = [*meter.OPEN.readers.copy().values()]
    head = f"dali_storage: {len(readers)} open readers in process {os.getpid()}\n"
    return head + "".join(map(_about, readers))


def report_on(number: int) -> None:
    """Have this process write `report()` to the standard error stream at each signal `number`.

    An earlier handler of the program, set in Python, is called after the report. Python calls
    handlers in the main thread, between two instructions: within a second while a batch is awaited,
    but not while the main thread is in a long call of C, such as one of another library. The
    warnings of `stall_after` come from a thread of their own. For the Python stacks of all threads
    in every case, call `faulthandler.register(number, chain=True)` after `report_on()`.

    Args:
        number: the signal, such as `signal.SIGUSR2`.

    Raises:
        ValueError: the number is no signal, or a program may not handle the signal in Python.
        RuntimeError: this is not the main thread.
    """
    where = "dali_storage.report_on()"
    known = isinstance(number, int) and not isinstance(number, bool)
    if not known or number not in signal.valid_signals() or number in _FAULTS:
        raise ValueError(f"{where} takes a signal such as signal.SIGUSR2, not {number!r}")
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(f"{where} must be called in the main thread, as signal.signal()")
    before = signal.getsignal(number)
    if isinstance(before, _Handler):
        return
    try:
        signal.signal(number, _Handler(before if callable(before) else None))
    except OSError as error:
        raise ValueError(f"{where}: {signal.Signals(number).name} has no handlers") from error


def _about(reader: meter.Meter) -> str:
    title, now = reader.title, time.monotonic_ns()
    if reader.room is None:
        return paragraph(f"{title}: no batches", reader.threads, now)
    counted = figures(reader)
    took = [f"{name} {1e3 * it.p50:.1f}/{1e3 * it.p99:.1f}" for name, it in counted.times.items()]
    what = f"{counted.summary}; p50/p99 in ms: {', '.join(took) or 'none'}"
    choices = [f"  {name}: {value}" for name, value in counted.choices.items()]
    return paragraph(f"{title}: {what}", reader.threads, now, choices)


class _Handler:
    """Writes the report, then calls the earlier handler."""

    def __init__(self, before: Callable[[int, FrameType | None], Any] | None) -> None:
        self._before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):
            _write(report().encode("utf-8", "backslashreplace"))
        if self._before is not None:
            self._before(number, frame)


def _write(text: bytes) -> None:
    """Write to the standard error stream."""
    # Without `sys.stderr`, which the interrupted main thread may be using: it cannot be reentered.
    rest, ready = memoryview(text), select.poll()
    ready.register(_STDERR, select.POLLOUT)
    # A pipe that is ready takes as many bytes without blocking.
    while rest and ready.poll(_PATIENCE):
        with contextlib.suppress(BlockingIOError):
            rest = rest[os.write(_STDERR, rest[: select.PIPE_BUF]) :]
