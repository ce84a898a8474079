"""Ctrl-C at a chosen point in the code, which a user hits once in a thousand times."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from dali_storage.contract.catalog import Catalog
from dali_storage.contract.reader import Reader
from dali_storage.testing import SnapshotReaderTests, read


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

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


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
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


class LosesNoFiles(SnapshotReaderTests):
    """A Ctrl-C leaves no file open, either. A plain `os.open()` cannot promise that."""

    def test_ctrl_c_leaves_nothing_under_way(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        read(reader, np.arange(len(contents)), catalog)  # containers stay open
        before = os.listdir("/proc/self/fd")
        super().test_ctrl_c_leaves_nothing_under_way(reader, catalog, contents)
        assert len(os.listdir("/proc/self/fd")) <= len(before)
