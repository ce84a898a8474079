"""What the attributes of a single file say against reading its extents from the device.

Source: <linux/fs.h>. FIEMAP does not show these: ext4 gives the extents of an encrypted or a
journaled file as if they were plain, XFS those of a real-time file as if on the same device.
"""

from __future__ import annotations

import fcntl
import sys

_GETFLAGS = 0x80086601  # FS_IOC_GETFLAGS: _IOR('f', 1, long); the kernel writes an int all the same
_FSGETXATTR = 0x801C581F  # FS_IOC_FSGETXATTR: _IOR('X', 31, struct fsxattr), its flags come first
_FSXATTR_BYTES = 28
_EXT = {  # FS_*_FL
    0x4000: "new data of it goes to the journal first (chattr +j)",  # FS_JOURNAL_DATA_FL
    0x800: "its data is encrypted on the device",  # FS_ENCRYPT_FL
    0x4: "its data is compressed on the device",  # FS_COMPR_FL
}
_XFS = {0x1: "its data is on the real-time device"}  # FS_XFLAG_REALTIME


class Attributes:
    """The attributes of files of one file system; for one thread at a time.

    Args:
        file_system: its type: "ext2", "ext3", "ext4" or "xfs".
    """

    def __init__(self, file_system: str) -> None:
        self._request, self._obstacles = (
            (_FSGETXATTR, _XFS) if file_system == "xfs" else (_GETFLAGS, _EXT)
        )
        self._any_obstacle = sum(self._obstacles)
        self._buffer = bytearray(_FSXATTR_BYTES)

    def obstacle(self, fd: int) -> str | None:
        """Why an open file's data cannot be read by its extents; None if it can.

        Raises:
            OSError: the file system does not tell.
        """
        fcntl.ioctl(fd, self._request, self._buffer)
        flags = int.from_bytes(self._buffer[:4], sys.byteorder)
        if not flags & self._any_obstacle:
            return None
        return next(reason for flag, reason in self._obstacles.items() if flags & flag)
