"""The machine, described so that figures can be compared, and its page cache."""

import glob
import os
import platform
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali

from bmap_tools import file_system
from bmap_tools.console import bar

from .workload import BadInputError, Workload, paths, summarize_error

PROC = "/proc"
_DROP_CACHES = "/proc/sys/vm/drop_caches"


def describe(workload: Workload) -> dict[str, Any]:
    """The facts that the figures depend on."""
    root = workload.root
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": usable_cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "file_system": "not mounted" if root is None else file_system_type(root),
        "python": platform.python_version(),
        "dali": nvidia.dali.__version__,
        "numpy": np.__version__,
        "load": os.getloadavg()[0],
        "page_cache": "cold" if workload.settings.cold else "hot",
    }


def usable_cores() -> int:
    """The number of cores that this process may run on, for example those of a container."""
    return len(os.sched_getaffinity(0))


def available_memory_bytes() -> int:
    """The kernel's estimate of how much memory can be used without swapping."""
    return 1024 * int((_field("/proc/meminfo", "MemAvailable") or "0").split()[0])


def cpu_of_others() -> tuple[float, float]:
    """The time now, and the seconds that the processors were taken by others until then.

    By other programs, in user mode, and by other machines; not by this process and its children.
    Kernel threads are not counted, because they also work for this process.
    """
    with open(f"{PROC}/stat", encoding="ascii") as lines:
        user, nice, *_, steal = map(int, lines.readline().split()[1:9])
    its, ticks = os.times(), user + nice + steal
    for listed in glob.glob(f"{PROC}/self/task/*/children"):
        with suppress(OSError):  # a thread or a child that ends now
            for child in Path(listed).read_text("ascii").split():
                ticks -= int(
                    Path(f"{PROC}/{child}/stat").read_text().rpartition(")")[2].split()[11]
                )
    ours = its.user + its.children_user
    return time.monotonic(), ticks / os.sysconf("SC_CLK_TCK") - ours


def busy_share(since: tuple[float, float]) -> float:
    """The share of all processors that others have taken since a `cpu_of_others()`."""
    (start, before), (end, after) = since, cpu_of_others()
    return max(after - before, 0) / max(end - start, 1e-9) / (os.cpu_count() or 1)


def file_system_type(directory: str) -> str:
    """The type of the file system of a directory, for example ext4."""
    fd = os.open(directory, os.O_PATH)
    try:
        return file_system.mount_of(fd).type
    except OSError:
        return "unknown"
    finally:
        os.close(fd)


def _can_drop_caches() -> bool:
    return os.geteuid() == 0 and os.access(_DROP_CACHES, os.W_OK)


def check_can_drop_caches() -> None:
    """Raise a BadInputError if this process cannot drop the page cache."""
    if not _can_drop_caches():
        raise BadInputError(
            "cold: the page cache is dropped before every round, which needs root and a writable "
            f"{_DROP_CACHES}: run it with sudo (in a container: --privileged), or omit --cold"
        )


def drop_caches() -> None:
    """Drop all cached file contents, directory entries and inodes."""
    os.sync()  # dirty pages cannot be dropped
    with open(_DROP_CACHES, "w", encoding="ascii") as control:
        control.write("3\n")


def make_cold(workload: Workload) -> None:
    """Drop the page cache; without permission, only the pages of the files of the workload."""
    if _can_drop_caches():
        drop_caches()
        return
    for path in files_of(workload):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def is_cold(path: bytes) -> bool:
    """Whether the first byte of a file is not in the page cache; False if that is unknown."""
    with open(path, "rb", buffering=0) as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:  # of tmpfs, which cannot drop its pages
            return False
    return False


def files_of(workload: Workload) -> list[bytes]:
    """The files that a round reads."""
    if workload.shards:
        return [os.fsencode(file) for found in workload.shards.values() for file in found.files]
    return [*paths(workload.catalog, np.unique(workload.order))]


def fill_page_cache(workload: Workload) -> None:
    """Read every file of the workload once; a BadInputError names one that cannot be read."""
    files, buffer = files_of(workload), bytearray(1 << 20)
    try:
        with bar("filling the page cache", len(files)) as tick:
            for done, path in enumerate(files, 1):
                with open(path, "rb", buffering=0) as file:
                    while file.readinto(buffer):
                        pass
                tick(done)
    except OSError as error:
        raise BadInputError(f"cannot read the data: {summarize_error(error)}") from error


def _field(path: str, name: str) -> str | None:
    """The first value of `name` in a file of `name : value` lines."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
