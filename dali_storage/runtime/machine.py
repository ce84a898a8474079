"""The processors and the memory that this process may use, and its threads.

The limits of a container are those of its control groups and of all above, of version 1 or 2.
"""

import functools
import math
import os
import re
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_COMM = 15  # bytes of a thread's name in the kernel
_KEPT = 0.6  # of the memory of the page cache
_QUOTAS = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # of cgroups 2 and 1
_LIMITS = ("max", "current"), ("high", "current"), ("limit_in_bytes", "usage_in_bytes")  # of memory
_CACHED = ("inactive_file", "active_file"), ("total_inactive_file", "total_active_file")


def processors() -> int:
    """Return how many processors this process may keep busy at once; at least 1."""
    return int(min(len(os.sched_getaffinity(0)), quota()))


@functools.cache
def quota(root: Path = Path("/")) -> float:
    """Return the CPU quota of this process's cgroups, in processors, rounded up; inf: no quota.

    `root` is the place of /proc and the cgroups. Unreadable files set no quota.
    """
    quotas = [math.inf]
    with suppress(OSError, ValueError, IndexError):
        for group in _groups(root, "cpu"):
            for files in _QUOTAS:
                with suppress(OSError, ValueError, ArithmeticError):  # "max" is no number
                    text = " ".join((group / file).read_text() for file in files)
                    used, period = map(int, text.split())
                    if min(used, period) > 0:  # -1: no quota
                        quotas.append(math.ceil(used / period))
    return min(quotas)


def cache_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that the page cache may use for this process: now free, or cached files.

    The least of MemAvailable and of what the limits of its cgroups leave. None: unknown. Unreadable
    files of cgroups set no limit. `root` as of `quota()`.
    """
    try:
        free = [1024 * _table(root / "proc/meminfo")["MemAvailable"]]
    except (OSError, ValueError, KeyError):
        return None
    with suppress(OSError, ValueError, IndexError):
        for group in _groups(root, "memory"):
            for files in _LIMITS:
                with suppress(OSError, ValueError):  # "max" is no number
                    limit, used = (int((group / f"memory.{it}").read_text()) for it in files)
                    stat = _table(group / "memory.stat")
                    # Cached files leave when others need the memory. Version 1 has sums, too.
                    cached = max(sum(stat.get(name, 0) for name in names) for names in _CACHED)
                    free.append(max(limit - max(used - cached, 0), 0))
    return min(free)


def cacheable(memory: int) -> int:
    """Return how many bytes of files stay in a page cache that may use `memory` bytes."""
    return int(_KEPT * memory)


def start_thread(thread: threading.Thread, remedy: str, root: Path = Path("/")) -> None:
    """Start a thread; without one, raise RuntimeError with the limits that there are and a remedy.

    `root` as of `quota()`.
    """
    try:
        thread.start()
    except RuntimeError as error:
        most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        known = [f"RLIMIT_NPROC (ulimit -u) is {most:,}"] if most >= 0 else []
        with suppress(OSError, ValueError, IndexError):
            for group in _groups(root, "pids"):
                with suppress(OSError, ValueError):  # "max" is no number
                    known.append(
                        f"{group / 'pids.max'} is {int((group / 'pids.max').read_text()):,}"
                    )
        raise RuntimeError(f"{error}: {' and '.join(known) or 'no memory'}; {remedy}") from None


def gigabytes(nbytes: int) -> str:
    """Return a number of bytes, for messages."""
    return f"{nbytes / 1e9:,.1f} GB" if nbytes < 10e9 else f"{nbytes / 1e9:,.0f} GB"


def show_name() -> None:
    """Give the calling thread the name in the kernel that it has in Python, shortened to fit.

    Python does so from 3.14 on, and cuts the end off, where the number is. Here,
    "dali_storage:Reader:0" becomes "dali:Reader:0", and a long name is cut in front of its number.
    """
    if not sys.platform.startswith("linux"):
        return
    first, _, rest = threading.current_thread().name.partition(":")
    name, colon, number = rest.rpartition(":")
    begin = f"{first.removesuffix('_storage')}:{name}".encode("utf-8", "replace")
    end = f"{colon}{number}".encode("utf-8", "replace")
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        file.write((begin[: _COMM - len(end)] + end)[:_COMM])


def _table(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    return {name: int(number) for name, number in re.findall(r"(\w+):? +(\d+)", path.read_text())}


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the directories of the cgroups of this process, and of the cgroups above."""
    mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in mounts:  # ..., root, mount point, ..., file system, source, options
            has_it = controller in {*controllers.split(",")} & {*mount[-1].split(",")}  # version 1
            if has_it or (mount[-3] == "cgroup2" and not controllers):
                top = root / mount[4].lstrip("/")
                group = top / path.removeprefix(mount[3]).lstrip("/")
                yield from (each for each in (group, *group.parents) if each.is_relative_to(top))
