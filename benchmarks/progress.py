"""Progress on standard error: a bar on a terminal, and lines that stay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bmap_tools import console
from bmap_tools.console import Tick


def say(text: str) -> None:
    """Print a line."""
    print(text, file=sys.stderr)


@contextmanager
def progress(step: str, samples: int) -> Iterator[Tick]:
    """Show a bar for a step while it lasts; call the result with the number of samples done."""
    if sys.stderr.isatty():
        with console.bar(step, samples) as tick:
            yield tick
    else:
        yield lambda done: None
