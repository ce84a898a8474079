"""Inspection of single files: status, extents, and reasons not to map a file."""

import fcntl
import os
import stat
import sys
import time
from typing import TypeAlias

from . import fiemap
from .console import reason
from .extent_map import FileSystem
from .fiemap import Extent

Status: TypeAlias = tuple[int, int, int, int]
"""Size (bytes), inode, mtime and ctime (ns) of a file."""
UNKNOWN_STATUS: Status = (0, 0, 0, 0)
Outcome: TypeAlias = list[Extent] | str
"""A file's extents, or the reason why there are none."""
Inspected: TypeAlias = tuple[Status, Outcome]
KEPT_CHANGING = "it kept changing while it was mapped"

TICK_NS = 50_000_000
"""A file that changed less than this before its inspection may change again without a trace.

The kernel's clock for time stamps advances every 10 ms or more often.
"""
_SECOND_NS = 1_000_000_000

_INT64_MAX = 2**63 - 1

# <linux/fs.h>
_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS: _IOR('f', 1, long), though the kernel writes an int
_FSGETXATTR = 0x801C581F  # FS_IOC_FSGETXATTR: _IOR('X', 31, struct fsxattr), whose flags are first
_FSXATTR_BYTES = 28
_EXT = {  # FS_*_FL
    0x4000: "its new data goes to the journal first (chattr +j)",  # FS_JOURNAL_DATA_FL
    0x800: "its data is encrypted on the device",  # FS_ENCRYPT_FL
    0x4: "its data is compressed on the device",  # FS_COMPR_FL
}
_XFS = {0x1: "its data is on the real-time device"}  # FS_XFLAG_REALTIME


def inspect(name: bytes, directory: int, device: int, file_system: FileSystem) -> Inspected:
    """Inspect a file of an open directory. The outcome is KEPT_CHANGING after a change meanwhile.

    A file outside of `device` (the st_dev of the file system) is not mapped.
    """
    try:
        fd = open_file(name, directory)
        try:
            before = os.fstat(fd)
            began_ns = time.time_ns()
            outcome = _outcome(fd, before, device, file_system)
            status = _status(os.fstat(fd))
        finally:
            os.close(fd)
    except OSError as error:
        return inspect_unopened(name, directory)[0], reason(error)
    if status != _status(before) or abs(began_ns - status[3]) < settling_ns(status[3]):
        return status, KEPT_CHANGING
    return status, outcome


def open_file(path: bytes, directory: int | None = None) -> int:
    """Open a file to read; neither this nor FIEMAP changes the access time.

    A FIFO, which may have replaced the file since the directory was listed, is not waited for. The
    end of another process's lease (F_SETLEASE in fcntl(2)) is.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_NONBLOCK, dir_fd=directory)
    except BlockingIOError:
        held = os.open(path, os.O_PATH | os.O_CLOEXEC, dir_fd=directory)
        try:
            if not stat.S_ISREG(os.fstat(held).st_mode):
                raise
            return os.open(f"/proc/self/fd/{held}", flags)
        finally:
            os.close(held)


def _outcome(fd: int, status: os.stat_result, device: int, file_system: FileSystem) -> Outcome:
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_dev != device:
        return "it is on another file system"
    if max(status.st_mtime_ns, status.st_ctime_ns) > _INT64_MAX:
        return "its time stamps are beyond the year 2262, which a map cannot store"
    if not status.st_size:
        return []
    return unsupported_attribute(fd, file_system.type) or fiemap.usable_extents(
        fiemap.raw_extents(fd), status.st_size, file_system.block_size
    )


def unsupported_attribute(fd: int, file_system: str) -> str | None:
    """The reason why an open file cannot be read by its extents, if not visible to FIEMAP; or None.

    ext4 reports extents of an encrypted or journaled file like any other, XFS extents of a
    real-time file as if on the same device.

    Raises:
        OSError: the file system does not report attributes.
    """
    request, reasons = (_FSGETXATTR, _XFS) if file_system == "xfs" else (_GETFLAGS, _EXT)
    buffer = bytearray(_FSXATTR_BYTES)
    fcntl.ioctl(fd, request, buffer)
    flags = int.from_bytes(buffer[:4], sys.byteorder)
    return next((why for flag, why in reasons.items() if flags & flag), None)


def settling_ns(ctime_ns: int) -> int:
    """The time after its ctime in which a file may still change without a trace.

    Inodes of 128 bytes, as in ext2 and ext3, have whole seconds only.
    """
    return TICK_NS if ctime_ns % _SECOND_NS else TICK_NS + _SECOND_NS


def inspect_unopened(name: bytes, directory: int) -> Inspected:
    """Inspect, as `inspect()`, a special file, which must not be opened and is never mapped."""
    try:
        return _status(os.stat(name, dir_fd=directory)), "it is not a regular file"
    except OSError as error:
        return UNKNOWN_STATUS, reason(error)


def _status(found: os.stat_result) -> Status:
    # A map cannot store larger ones: time stamps, or inodes of a file system mounted below.
    numbers = found.st_ino, found.st_mtime_ns, found.st_ctime_ns
    inode, mtime_ns, ctime_ns = (min(it, _INT64_MAX) for it in numbers)
    return found.st_size, inode, mtime_ns, ctime_ns
