"""Ctrl-C at a chosen point, where that of a user comes once in a thousand times."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


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
