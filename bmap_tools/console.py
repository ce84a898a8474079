"""Output of the commands: results to standard output, messages and progress to standard error."""

import importlib.util
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

Tick: TypeAlias = Callable[[int], None]
"""Called with the number of completed files or bytes."""

_LISTED = 20
BAR_SECONDS = 0.25
LINE_SECONDS = 10.0


class BadInputError(ValueError):
    """A request that a command cannot fulfil; the message has the reason and the remedy."""


@contextmanager
def output() -> Iterator[None]:
    """Print in the block. If the output is closed, as by `| head`, or full, exit with status 2."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"error: the output cannot be written: {reason(error)}", file=sys.stderr)
        # The flush at exit must not fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)


def print_result(line: str) -> None:
    """Print a line of the result, with escapes for characters outside of the output's encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    with output():
        print(_visible(line).encode(encoding, "backslashreplace").decode(encoding))


def print_row(label: str, text: str) -> None:
    """Print a label and a text, which wraps at spaces: words and paths can be copied."""
    width, indent = shutil.get_terminal_size().columns, f"{label:<15} "
    wrapper = textwrap.TextWrapper(
        width, indent, " " * 16, break_long_words=False, break_on_hyphens=False
    )
    for line in wrapper.wrap(text):
        print_result(line)


def print_message(text: str) -> None:
    """Print a message of one line."""
    print(f"bmap_tools: {_visible(text)}", file=sys.stderr, flush=True)


def print_files(heading: str, lines: Sequence[str]) -> None:
    """Print a heading, the first lines about files, and the number of further lines."""
    print_message(heading)
    for line in lines[:_LISTED]:
        print(f"  {_visible(line)}", file=sys.stderr)
    if len(lines) > _LISTED:
        print(f"  and {len(lines) - _LISTED:,} more", file=sys.stderr, flush=True)


def _visible(text: str) -> str:
    """Escape control characters: the strings of a map may have any."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def printable(name: bytes) -> str:
    """Convert a file name for output, escaped if some characters are invisible or control codes."""
    decoded = os.fsdecode(name)
    return decoded if decoded.isprintable() else repr(name)


def reason(error: OSError) -> str:
    """The text of an error, without the path."""
    return error.strerror or str(error)


@contextmanager
def progress(step: str, total: int) -> Iterator[Tick]:
    """Show the progress of a step of `total` files; call the result with the completed number.

    Shows a `bar()` if possible, else a line now and then.
    """
    if _draws_bars():
        with bar(step, total) as tick:
            yield tick
    else:
        print_message(f"{step}: {total:,} files")
        yield _seldom(
            LINE_SECONDS, lambda done: print_message(f"{step}: {done:,} of {total:,} files")
        )


def _draws_bars() -> bool:
    return sys.stderr.isatty() and importlib.util.find_spec("rich") is not None


@contextmanager
def bar(step: str, total: int, *, of_bytes: bool = False) -> Iterator[Tick]:
    """Show a progress bar for `total` files or bytes; call the result with the completed number.

    The bar needs a terminal as standard error, and the package rich. The caller's thread draws the
    bar, and rarely, because drawing holds the interpreter lock.
    """
    if not _draws_bars():
        yield lambda done: None
        return
    from rich import progress as rich
    from rich.console import Console

    count = rich.DownloadColumn() if of_bytes else rich.MofNCompleteColumn()
    columns = ("{task.description}", rich.BarColumn(), count, rich.TimeRemainingColumn())
    console = Console(stderr=True)
    with rich.Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task(step, total=total)
        yield _seldom(BAR_SECONDS, lambda done: bar.update(task, completed=done, refresh=True))


def _seldom(seconds: float, show: Tick) -> Tick:
    shown = time.monotonic()

    def tick(done: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown >= seconds:
            shown = now
            show(done)

    return tick
