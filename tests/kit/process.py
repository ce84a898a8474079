"""What a process has open and runs, and processes of the tests' own."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def descriptors(below: Path | str = "") -> set[tuple[int, str]]:
    """The descriptors of this process, and their files: all, or those that begin with a path.

    Compare with `<=`: what earlier tests have left may be closed at any time.
    """
    found = set[tuple[int, str]]()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing, or it was just closed
            path = os.readlink(f"/proc/self/fd/{number}").removesuffix(" (deleted)")
            found |= {(int(number), path)} if path.startswith(str(below)) else set()
    return found


def open_files(below: Path | str = "") -> set[tuple[int, str]]:
    """The `descriptors()`, without those that only a traceback refers to."""
    gc.collect()
    return descriptors(below)


def threads() -> set[threading.Thread]:
    """The threads of this process. Compare with `<=`: those of earlier tests may end any time."""
    return {*threading.enumerate()}


@contextlib.contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process, which ends with the block, also if the test fails.

    It gets SIGINT; commands that a shell runs in the background ignore it.
    """
    command = ["env", "--default-signal=INT", *map(str, command)]
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
