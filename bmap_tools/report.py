"""What the commands say: results on the standard output, messages on that of errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from itertools import islice

_LISTED = 20


class BadInputError(ValueError):
    """The command cannot do what it was asked to; the message says why, and what helps."""


def put(line: str) -> None:
    """Print a line of the result; what the encoding of the output does not know, as escapes."""
    encoding = sys.stdout.encoding or "utf-8"
    print(line.encode(encoding, "backslashreplace").decode(encoding))


def say(text: str) -> None:
    """Show a message."""
    print(f"bmap_tools: {text}", file=sys.stderr, flush=True)


def say_files(heading: str, lines: Iterable[str], count: int) -> None:
    """Show a line, and below it the first of `count` lines about files, and how many more."""
    say(heading)
    for line in islice(lines, _LISTED):
        print(f"  {line}", file=sys.stderr)
    if count > _LISTED:
        print(f"  and {count - _LISTED:,} more", file=sys.stderr, flush=True)


def text(name: bytes) -> str:
    """A name to show: as it is, or with escapes where it would not show or move the cursor."""
    decoded = os.fsdecode(name)
    return decoded if decoded.isprintable() else repr(name)


def reason(error: OSError) -> str:
    """What went wrong, without the name that it went wrong with."""
    return error.strerror or str(error)
