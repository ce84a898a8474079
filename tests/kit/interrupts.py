"""Ctrl-C at a chosen point in the code, which a user hits once in a thousand times."""

import gc
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def interrupted(function: Callable[..., Any], point: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at a point after the first call of `function`.

    Point 0 is the start of `function`. The following points are the starts of Python functions and
    the ends of C functions, wherever they are: these are the places where Python handles signals.
    """
    seen = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        if seen or frame.f_code is function.__code__:
            seen += event in ("call", "c_return")
            if seen == point + 1:
                raise KeyboardInterrupt  # which ends the profiling

    gc.disable()  # a finalizer would swallow the exception
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


def ends_at(instruction: int, module: object, call: Callable[[], object]) -> bool:
    """Whether a Ctrl-C before a bytecode instruction of a module's, counted from 0, ends a call."""
    seen, file = 0, getattr(module, "__file__", None)

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code.co_filename == file:
            frame.f_trace_opcodes = True
            seen += event == "opcode"
            if seen == instruction + 1:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks for one at settrace() only
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def main_thread_is_in(*functions: Callable[..., object]) -> bool:
    """Whether the main thread is within a call of one of these Python functions."""
    codes = [function.__code__ for function in functions]
    frame: FrameType | None = sys._current_frames()[threading.main_thread().ident or 0]
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def is_interrupted(call: Callable[[], None], seconds: float) -> bool:
    """Whether a Ctrl-C `seconds` after the start of a call ends it.

    A timer sends a signal that has the same effect.
    """
    handler, timer = signal.signal(signal.SIGALRM, signal.default_int_handler), (0.0, 0.0)
    try:
        timer = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:  # the test itself may have a time limit that uses the same timer
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    return False
