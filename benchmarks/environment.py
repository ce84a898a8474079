"""The machine: what it is, so that numbers can be compared, and its page cache."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from typing import Any

import numpy as np
import nvidia.dali

from bmap_tools.file_system import mount_of

from .progress import Display
from .work import BadInputError, Work, explain, paths

_DROP_CACHES = "/proc/sys/vm/drop_caches"


def describe(work: Work) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": usable_cores(),
        "memory_bytes": 1024 * int((_field("/proc/meminfo", "MemTotal") or "0").split()[0]),
        "kernel": platform.release(),
        "file_system": "not mounted" if work.root is None else file_system(work.root),
        "python": platform.python_version(),
        "dali": nvidia.dali.__version__,
        "numpy": np.__version__,
        "page_cache": "cold" if work.settings.cold else "hot",
    }


def usable_cores() -> int:
    """The cores that this process may run on, which in a container can be fewer than there are."""
    return len(os.sched_getaffinity(0))


def available_memory_bytes() -> int:
    """What the kernel thinks can be taken without swapping."""
    return 1024 * int((_field("/proc/meminfo", "MemAvailable") or "0").split()[0])


def file_system(path: str) -> str:
    """The type of the file system that `path` is on, such as ext4."""
    fd = os.open(path, os.O_PATH)
    try:
        return mount_of(fd).type
    except FileNotFoundError:  # a container may not see the mount
        return "unknown"
    finally:
        os.close(fd)


def check_can_drop_caches() -> None:
    """Refuse a cold measurement where it could only be a hot one.

    Raises:
        BadInputError: the page cache cannot be dropped by this process.
    """
    if os.geteuid() != 0 or not os.access(_DROP_CACHES, os.W_OK):
        raise BadInputError(
            "--cold drops the page cache before every pass, which needs root and a writable "
            f"{_DROP_CACHES}: run it with sudo (in a container: a privileged one), "
            "or leave --cold out"
        )


def drop_caches() -> None:
    """Forget all cached file contents, directory entries and inodes."""
    os.sync()  # dirty pages cannot be dropped
    with open(_DROP_CACHES, "w", encoding="ascii") as control:
        control.write("3\n")


def fill_page_cache(work: Work, display: Display) -> None:
    """Read once, untimed, every file that the measurement will read.

    Raises:
        BadInputError: one cannot be read.
    """
    samples = np.unique(work.order)
    tick = display.start("filling the page cache", len(samples))
    buffer = bytearray(1 << 20)
    try:
        for done, path in enumerate(paths(work.catalog, samples), 1):
            with open(path, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
            tick(done)
    except OSError as error:
        raise BadInputError(f"cannot read the data: {explain(error)}") from error


def _field(path: str, name: str) -> str | None:
    """The first value of `name` in a file of `name : value` lines."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return None
