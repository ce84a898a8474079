"""What a single file is, and where its data lies."""

from __future__ import annotations

import os
import stat
import time
from typing import TypeAlias

from .attributes import Attributes
from .extent_map import FileSystem
from .fiemap import Extent, Fiemap, usable_extents
from .report import reason

Status: TypeAlias = tuple[int, int, int, int]
"""Size (bytes), inode, mtime and ctime (ns) of a file."""
UNKNOWN_STATUS: Status = (0, 0, 0, 0)
Outcome: TypeAlias = list[Extent] | str | None
"""A file's extents, or why it has none, or None: it changed, and has to be looked at again."""

TICK_NS = 50_000_000
"""A file that changed less long before it was looked at may change again without a trace.

The kernel's time stamps come from a clock that stands still for up to 10 ms.
"""
_SECOND_NS = 1_000_000_000

# O_NONBLOCK: should a FIFO have taken a file's place since the directory was listed. The time of
# the last access stays as it is: neither opening nor FIEMAP changes it.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_LATEST_NS = 2**63 - 1


class Inspector:
    """Looks at one file after another; for one thread at a time.

    Args:
        device: the st_dev of the file system; files on others are not mapped.
        file_system: that.
    """

    def __init__(self, device: int, file_system: FileSystem) -> None:
        self._device = device
        self._block_size = file_system.block_size
        self._fiemap = Fiemap()
        self._attributes = Attributes(file_system.type)

    def inspect(self, name: bytes, directory: int) -> tuple[Status, Outcome]:
        """Look at a file in a directory that is open as `directory`."""
        try:
            fd = os.open(name, _FLAGS, dir_fd=directory)
        except OSError as error:
            return inspect_closed(name, directory)[0], reason(error)
        try:
            before = os.fstat(fd)
            began_ns = time.time_ns()
            outcome = self._outcome(fd, before)
            status = _status(os.fstat(fd))
        except OSError as error:
            return inspect_closed(name, directory)[0], reason(error)
        finally:
            os.close(fd)
        if status != _status(before) or abs(began_ns - status[3]) < settling_ns(status[3]):
            return status, None
        return status, outcome

    def _outcome(self, fd: int, status: os.stat_result) -> list[Extent] | str:
        if not stat.S_ISREG(status.st_mode):
            return "it is not a regular file"
        if status.st_dev != self._device:
            return "it is on another file system"
        if max(status.st_mtime_ns, status.st_ctime_ns) > _LATEST_NS:
            return "its time stamps are later than a map can say, of the year 2262"
        if not status.st_size:
            return []
        return self._attributes.obstacle(fd) or usable_extents(
            self._fiemap.raw_extents(fd), status.st_size, self._block_size
        )


def settling_ns(ctime_ns: int) -> int:
    """How long after its ctime a file cannot change any more without a trace.

    Inodes of 128 bytes, as in ext2 and ext3, have whole seconds only.
    """
    return TICK_NS if ctime_ns % _SECOND_NS else TICK_NS + _SECOND_NS


def inspect_closed(name: bytes, directory: int) -> tuple[Status, str]:
    """The same for what must not be opened: it is never mapped."""
    try:
        return _status(os.stat(name, dir_fd=directory)), "it is not a regular file"
    except OSError as error:
        return UNKNOWN_STATUS, reason(error)


def _status(found: os.stat_result) -> Status:
    times = found.st_mtime_ns, found.st_ctime_ns
    return found.st_size, found.st_ino, min(times[0], _LATEST_NS), min(times[1], _LATEST_NS)
