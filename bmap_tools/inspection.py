"""What a single file is, and where its data is."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import time
from typing import TypeAlias

from .console import reason
from .extent_map import FileSystem
from .fiemap import Extent, Fiemap, usable_extents

Status: TypeAlias = tuple[int, int, int, int]
"""Size (bytes), inode, mtime and ctime (ns) of a file."""
UNKNOWN_STATUS: Status = (0, 0, 0, 0)
Outcome: TypeAlias = list[Extent] | str | None
"""A file's extents, or why it has none, or None if it changed and must be inspected again."""

TICK_NS = 50_000_000
"""A file that changed less than this before it was inspected may change again without a trace.

The kernel takes time stamps from a clock that advances every 10 ms or more often.
"""
_SECOND_NS = 1_000_000_000

# O_NONBLOCK: a FIFO may have replaced the file since the directory was listed. The access time
# stays as it is: neither opening a file nor FIEMAP changes it.
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_LATEST_NS = 2**63 - 1

# <linux/fs.h>
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS: _IOR('f', 1, long), though the kernel writes an int
_FSGETXATTR = 0x801C581F  # FS_IOC_FSGETXATTR: _IOR('X', 31, struct fsxattr), whose flags are first
_FSXATTR_BYTES = 28
_EXT = {  # FS_*_FL
    0x4000: "new data of it goes to the journal first (chattr +j)",  # FS_JOURNAL_DATA_FL
    0x800: "its data is encrypted on the device",  # FS_ENCRYPT_FL
    0x4: "its data is compressed on the device",  # FS_COMPR_FL
}
_XFS = {0x1: "its data is on the real-time device"}  # FS_XFLAG_REALTIME


class Attributes:
    """The attributes of files that FIEMAP does not show; for one thread at a time.

    ext4 reports the extents of an encrypted or journaled file like those of any other, XFS those of
    a real-time file as if they were on the same device.

    Args:
        file_system: the type of the file system: "ext2", "ext3", "ext4" or "xfs".
    """

    def __init__(self, file_system: str) -> None:
        self._request, self._reasons = (
            (_FSGETXATTR, _XFS) if file_system == "xfs" else (_GETFLAGS, _EXT)
        )
        self._any_reason = sum(self._reasons)
        self._buffer = bytearray(_FSXATTR_BYTES)

    def unsupported_reason(self, fd: int) -> str | None:
        """Why an open file's data cannot be read by its extents; None if it can.

        Raises:
            OSError: the file system does not report attributes.
        """
        fcntl.ioctl(fd, self._request, self._buffer)
        flags = int.from_bytes(self._buffer[:4], sys.byteorder)
        if not flags & self._any_reason:
            return None
        return next(reason for flag, reason in self._reasons.items() if flags & flag)


class Inspector:
    """Inspects one file after another; for one thread at a time.

    Args:
        device: the st_dev of the file system; files on others are not mapped.
        file_system: the file system.
    """

    def __init__(self, device: int, file_system: FileSystem) -> None:
        self._device = device
        self._block_size = file_system.block_size
        self._fiemap = Fiemap()
        self._attributes = Attributes(file_system.type)

    def inspect(self, name: bytes, directory: int) -> tuple[Status, Outcome]:
        """Inspect a file in a directory that is open as `directory`."""
        try:
            fd = os.open(name, _FLAGS, dir_fd=directory)
        except OSError as error:
            return inspect_unopened(name, directory)[0], reason(error)
        try:
            before = os.fstat(fd)
            began_ns = time.time_ns()
            outcome = self._outcome(fd, before)
            status = _status(os.fstat(fd))
        except OSError as error:
            return inspect_unopened(name, directory)[0], reason(error)
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
        return self._attributes.unsupported_reason(fd) or usable_extents(
            self._fiemap.raw_extents(fd), status.st_size, self._block_size
        )


def settling_ns(ctime_ns: int) -> int:
    """How long after its ctime a file may still change without a trace.

    Inodes of 128 bytes, as in ext2 and ext3, have whole seconds only.
    """
    return TICK_NS if ctime_ns % _SECOND_NS else TICK_NS + _SECOND_NS


def inspect_unopened(name: bytes, directory: int) -> tuple[Status, str]:
    """The same for a special file, which must not be opened and is never mapped."""
    try:
        return _status(os.stat(name, dir_fd=directory)), "it is not a regular file"
    except OSError as error:
        return UNKNOWN_STATUS, reason(error)


def _status(found: os.stat_result) -> Status:
    times = found.st_mtime_ns, found.st_ctime_ns
    return found.st_size, found.st_ino, min(times[0], _LATEST_NS), min(times[1], _LATEST_NS)
