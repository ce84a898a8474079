"""Where on its device a file's data lies: the FIEMAP ioctl.

The layouts and the flags are those of <linux/fiemap.h>, the same on every machine; the kernel's
Documentation/filesystems/fiemap.rst says what they mean.
"""

from __future__ import annotations

import fcntl
import struct
from collections.abc import Iterable
from typing import TypeAlias

RawExtent: TypeAlias = tuple[int, int, int, int]
"""Of an extent as the kernel tells it: logical, physical and length in bytes, and its flags."""
Extent: TypeAlias = tuple[int, int, int]
"""Of an extent as a map holds it: logical, physical (-1: unwritten) and length, in bytes."""

_IOCTL = 0xC020660B  # FS_IOC_FIEMAP: _IOWR('f', 11, struct fiemap)
_HEADER = struct.Struct("=QQIIII")  # struct fiemap: start, length, flags, mapped, count, reserved
_EXTENT = struct.Struct("=QQQ16xI12x")  # struct fiemap_extent: logical, physical, length, flags
_TO_THE_END = 2**64 - 1  # FIEMAP_MAX_OFFSET
_SYNC = 0x1  # FIEMAP_FLAG_SYNC: write the file's data first, so that it has a place
_LAST = 0x1
_UNWRITTEN = 0x800

# fcntl.ioctl() keeps the interpreter lock, and with it all other threads, where the buffer is
# larger than 1024 bytes.
_ROOM = (1024 - _HEADER.size) // _EXTENT.size

_OBSTACLES = {  # FIEMAP_EXTENT_*; the special ones first, for they bring the general ones along
    0x200: "its data lies inside of its inode",  # DATA_INLINE
    0x400: "its last block is shared with other files",  # DATA_TAIL
    0x80: "its data is encrypted on the device",  # DATA_ENCRYPTED
    0x8: "its data is encoded (compressed) on the device",  # ENCODED
    0x4: "its data has no place on the device yet",  # DELALLOC
    0x2: "the file system does not tell where its data lies",  # UNKNOWN
    0x100: "its data is not aligned to blocks",  # NOT_ALIGNED
}
_ANY_OBSTACLE = sum(_OBSTACLES)


class Fiemap:
    """The ioctl with a buffer that is used again and again; for one thread at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray(_HEADER.size + _ROOM * _EXTENT.size)

    def raw_extents(self, fd: int, *, sync: bool = True) -> list[RawExtent]:
        """All extents of an open file, in the order of their logical offset.

        Args:
            fd: the file; open for reading is enough.
            sync: have the file's data written first.

        Raises:
            OSError: the file system does not support it (EOPNOTSUPP, ENOTTY), or failed.
        """
        found: list[RawExtent] = []
        start, flags, buffer = 0, _SYNC if sync else 0, self._buffer
        while True:
            _HEADER.pack_into(buffer, 0, start, _TO_THE_END - start, flags, 0, _ROOM, 0)
            fcntl.ioctl(fd, _IOCTL, buffer)
            count = _HEADER.unpack_from(buffer)[3]
            if not count:
                return found
            for place in range(count):
                found.append(_EXTENT.unpack_from(buffer, _HEADER.size + place * _EXTENT.size))
            logical, _, length, last_flags = found[-1]
            if last_flags & _LAST:
                return found
            start, flags = logical + length, 0


def mapped(raw: Iterable[RawExtent], size: int, block_size: int) -> list[Extent] | str:
    """What a map holds of a file: its extents, or in words why it cannot have any.

    Space that is reserved beyond the file's last block is unwritten, whatever it holds. Neighbours
    become one where both their logical and their physical ranges touch.

    Args:
        raw: all extents of the file, by their logical offset.
        size: of the file, bytes.
        block_size: of the file system, bytes.
    """
    end = -(-size // block_size) * block_size
    merged: list[Extent] = []
    for logical, physical, length, flags in raw:
        if logical < end:
            if flags & _ANY_OBSTACLE:
                return next(reason for flag, reason in _OBSTACLES.items() if flags & flag)
            length = min(length, end - logical)
        if logical >= end or flags & _UNWRITTEN:
            physical = -1
        if merged and logical != end and _touch(merged[-1], logical, physical):
            logical, physical, before = merged.pop()
            length += before
        merged.append((logical, physical, length))
    return merged


def _touch(extent: Extent, logical: int, physical: int) -> bool:
    first_logical, first_physical, length = extent
    if first_logical + length != logical:
        return False
    if first_physical < 0 or physical < 0:
        return first_physical == physical
    return first_physical + length == physical
