"""The number of processors for this process: by its affinity, and by its container's quota."""

import functools
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_FILES = ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")  # of cgroups 2 and 1


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
        for group in _groups(root):
            for files in _FILES:
                with suppress(OSError, ValueError, ArithmeticError):  # "max" is no number
                    text = " ".join((group / file).read_text() for file in files)
                    used, period = map(int, text.split())
                    if min(used, period) > 0:  # -1: no quota
                        quotas.append(math.ceil(used / period))
    return min(quotas)


def _groups(root: Path) -> Iterator[Path]:
    """Yield the directories of the cgroups of this process, and of the cgroups above."""
    mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in mounts:  # ..., root, mount point, ..., file system, source, options
            has_cpu = "cpu" in {*controllers.split(",")} & {*mount[-1].split(",")}  # version 1
            if has_cpu or (mount[-3] == "cgroup2" and not controllers):
                top = root / mount[4].lstrip("/")
                group = top / path.removeprefix(mount[3]).lstrip("/")
                yield from (each for each in (group, *group.parents) if each.is_relative_to(top))
