"""How far a command is: a bar on a terminal where rich is installed, elsewhere a line now and then.

It is drawn when there is progress, never from a thread of its own, and seldom: it shares the
interpreter with the work.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from .report import say
from .survey import Tick

_BAR_SECONDS = 0.25
_LINE_SECONDS = 10.0


@contextmanager
def progress(step: str, total: int) -> Iterator[Tick]:
    """Show that a step of `total` files goes on; tell the result how many are done."""
    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(step, total) as tick:
            yield tick
    else:
        say(f"{step}: {total:,} files")
        yield _seldom(_LINE_SECONDS, lambda done: say(f"{step}: {done:,} of {total:,} files"))


@contextmanager
def _bar(step: str, total: int) -> Iterator[Tick]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(step, total=total)
        yield _seldom(_BAR_SECONDS, lambda done: bar.update(task, completed=done, refresh=True))


def _seldom(seconds: float, show: Tick) -> Tick:
    shown = time.monotonic()

    def tick(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= seconds:
            shown = now
            show(done)

    return tick
