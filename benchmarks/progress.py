"""Progress on standard error: a bar on a terminal, and lines that stay."""

import sys
from contextlib import AbstractContextManager, nullcontext

from bmap_tools import console
from bmap_tools.console import Tick


def say(text: str) -> None:
    """Print a line."""
    print(text, file=sys.stderr)


def progress(step: str, samples: int) -> AbstractContextManager[Tick]:
    """Show a bar for a step while it lasts; call the result with the number of samples done."""
    return console.bar(step, samples) if sys.stderr.isatty() else nullcontext(lambda done: None)
