"""A memory cgroup of this process's own, version 1 or 2: the data are then larger than memory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from .workload import NotHereError

_LEAST_BYTES = 700 << 20
"""Room for the buffers of every leg, 508 MB seen; what DALI has before is counted where it was."""
_NEED = "a memory cgroup of its own needs root and writable cgroups (in a container: --privileged)"


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Let this process use `size` bytes from now on, with the pages of the files that it reads.

    Raises a NotHereError where that is not possible.
    """
    if size < _LEAST_BYTES:
        raise NotHereError(
            f"a memory of {size >> 20} MiB; at least {_LEAST_BYTES >> 20} are needed"
        )
    before, parent, limit, swap = _place()
    own = os.path.join(parent, f"dali-storage-benchmark-{os.getpid()}")
    try:
        os.mkdir(own)
    except OSError as error:
        raise NotHereError(f"{own}: {error.strerror}: {_NEED}") from error
    try:
        _write(os.path.join(own, limit), size)
        with suppress(FileNotFoundError):  # a kernel without swap
            _write(os.path.join(own, swap), 0)
        _write(os.path.join(own, "cgroup.procs"), os.getpid())
        yield
    except FileNotFoundError as error:
        if error.filename != os.path.join(own, limit):
            raise
        what = f"the memory controller is not in {parent}/cgroup.subtree_control"
        raise NotHereError(f"{what}: {_NEED}") from error
    finally:
        with suppress(OSError):
            _write(os.path.join(before, "cgroup.procs"), os.getpid())
        os.rmdir(own)


def _write(path: str, number: int) -> None:
    # Not for writing only: a file that is missing is not made.
    with open(path, "r+", encoding="ascii") as file:
        file.write(str(number))


def _place() -> tuple[str, str, str, str]:
    """The cgroup of this process, that of its own one to be, and the files of the two limits."""
    with open("/proc/self/cgroup", encoding="utf-8") as lines:
        own = {names: path for _, names, path in (line.rstrip().split(":", 2) for line in lines)}
    with open("/proc/self/mountinfo", encoding="utf-8") as lines:
        mounts = [line.split() for line in lines if " - cgroup" in line]
    for words in mounts:
        where, kind, options = words[4], words[words.index("-") + 1], words[-1].split(",")
        if kind == "cgroup" and "memory" in options:
            path = next(path for names, path in own.items() if "memory" in names.split(","))
            before = _below(where, path)
            return before, before, "memory.limit_in_bytes", "memory.swappiness"
    for words in mounts:
        if words[words.index("-") + 1] == "cgroup2":
            # A cgroup with processes has no others below that limit memory, except the root.
            return _below(words[4], own[""]), words[4], "memory.max", "memory.swap.max"
    raise NotHereError(f"no cgroups are mounted: {_NEED}")


def _below(mount: str, path: str) -> str:
    """The directory of a cgroup; that of the mount in a container that sees only its own."""
    found = mount + path.rstrip("/")
    return found if os.path.isdir(found) else mount
