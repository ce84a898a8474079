"""Ctrl-C at a chosen point, where that of a user comes once in a thousand times."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dali_storage.reader import Reader
from dali_storage.testing import SnapshotReaderTests


@contextmanager
def interrupted(function: Callable[..., Any], point: int) -> Iterator[None]:
    """Raise KeyboardInterrupt at a point after `function` has been called first.

    Point 0 is its beginning; the others are the beginnings of functions and the ends of those of C
    that follow, wherever they are: it is there that Python looks after signals.
    """
    seen = 0

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal seen
        if seen or frame.f_code is function.__code__:
            seen += event in ("call", "c_return")
            if seen == point + 1:
                raise KeyboardInterrupt  # and Python looks no more

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


class LosesNoFiles(SnapshotReaderTests):
    """Nor does a Ctrl-C leave a file open, which is more than a plain `os.open()` can promise."""

    def test_ctrl_c_leaves_nothing_under_way(self, reader: Reader, contents: list[bytes]) -> None:
        before = os.listdir("/proc/self/fd")
        super().test_ctrl_c_leaves_nothing_under_way(reader, contents)
        assert len(os.listdir("/proc/self/fd")) <= len(before)
