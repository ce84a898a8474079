"""The processors and the memory that this process may use, and the defaults that follow from them.

The limits of a container are those of its control groups and of all above, of version 1 or 2. Each
rule is a function of figures.
"""

import functools
import math
import os
import re
import resource
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..contract.options import Choice

KEPT = 0.6  # of the memory for the page cache may be filled by a data set
_BUFFERS = 1 << 30  # bytes: what storage of 10 GB/s delivers in 100 ms, longer than a read takes

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


def copying_lanes(count: int) -> Choice[int]:
    """The lanes that may copy whole files at once on `count` processors."""
    # Measured on 2 and 16: more compete for the interpreter lock, whatever DALI's threads do.
    return Choice(1 if count < 4 else 2 if count < 8 else 3, f"{count} processors")


def lanes(local: bool) -> Choice[int]:
    """The batches to read at once: more where each request has to wait for a network."""
    return Choice(3, "a local file system") if local else Choice(16, "not a known local one")


def buffer_bytes(memory: int | None) -> Choice[int]:
    """The bytes of batches that a reader may read ahead and keep."""
    if memory is None or memory >= 8 * _BUFFERS:
        return Choice(_BUFFERS, "an eighth of the free memory is more, or unknown")
    return Choice(memory // 8, f"an eighth of the free memory, {_gb(memory)}")


def cached_share(nbytes: int, memory: int | None) -> Choice[float]:
    """The share of `nbytes` on a local disk to read through the page cache, the rest around it.

    Only a fixed share, because the kernel evicts what a shuffled epoch needs next.
    """
    if memory is None:
        return Choice(1.0, "the memory that may hold the data set is unknown")
    if nbytes <= (most := int(KEPT * memory)):
        return Choice(1.0, f"the data set fits in the memory that may hold it, {_gb(most)}")
    share, what = most / nbytes, f"the data set, {_gb(nbytes)}, is larger than the memory that may"
    return Choice(share, f"{what} hold it, {_gb(most)}; {share:.0%} of it is cached")


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:,.1f} GB" if nbytes < 10e9 else f"{nbytes / 1e9:,.0f} GB"


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
