"""Data that is made once a run, also if several processes of pytest-xdist share the run."""

import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The directory `name` of this run, filled by `make` in the first process that asks for it.

    Tests only read it. If `make` fails, the next process tries again.
    """
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base  # as pytest-xdist names them
    directory, made = shared / name, shared / f"{name}.made"
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            directory.mkdir(exist_ok=True)
            make(directory)
            made.touch()
    return directory
