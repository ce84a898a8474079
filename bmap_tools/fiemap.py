"""The FIEMAP ioctl: the locations of a file's data on its device, for one file or for many.

The layouts and flags are from <linux/fiemap.h>, the same on every machine; the kernel's
Documentation/filesystems/fiemap.rst explains them.
"""

import ctypes
import fcntl
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .extent_map import UNWRITTEN, IntArray

RawExtent: TypeAlias = tuple[int, int, int, int]
"""An extent in the form of the kernel: logical, physical and length in bytes, and its flags."""
Extent: TypeAlias = tuple[int, int, int]
"""An extent in the form of a map: logical, physical (or UNWRITTEN) and length, in bytes."""

_IOCTL = 0xC020660B  # FS_IOC_FIEMAP: _IOWR('f', 11, struct fiemap)
_HEADER = struct.Struct("=QQIIII")  # struct fiemap: start, length, flags, mapped, count, reserved
_EXTENT = struct.Struct("=QQQ16xI12x")  # struct fiemap_extent: logical, physical, length, flags
_TO_THE_END = 2**64 - 1  # FIEMAP_MAX_OFFSET
_SYNC = 0x1  # FIEMAP_FLAG_SYNC: write the file's data first, to give all data an address
_LAST = 0x1
_IS_UNWRITTEN = 0x800
_HARMLESS = _LAST | 0x1000 | 0x2000  # MERGED and SHARED do not affect the location of the data

_BATCH_ROOM = 2  # extents per file: enough to distinguish one from several
_BATCH_WORDS = (_HEADER.size + _BATCH_ROOM * _EXTENT.size) // 8
# PyDLL keeps the interpreter lock: a release for so short a call costs more than the call.
_ioctl = ctypes.PyDLL(None).ioctl
_ioctl_without_gil = ctypes.CDLL(None).ioctl
_ioctl.argtypes = _ioctl_without_gil.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p]

# fcntl.ioctl() releases the interpreter lock only if the buffer has at most 1024 bytes.
_ROOM = (1024 - _HEADER.size) // _EXTENT.size
_BUFFER_BYTES = _HEADER.size + _ROOM * _EXTENT.size
_BUFFER_WORDS = _BUFFER_BYTES // 8

_UNSUPPORTED = {  # FIEMAP_EXTENT_*; special ones first, because they imply general ones
    0x200: "its data lies inside of its inode",  # DATA_INLINE
    0x400: "its last block is shared with other files",  # DATA_TAIL
    0x80: "its data is encrypted on the device",  # DATA_ENCRYPTED
    0x8: "its data is encoded (compressed) on the device",  # ENCODED
    0x4: "its data has no address on the device yet",  # DELALLOC
    0x2: "the file system does not report where its data is",  # UNKNOWN
    0x100: "its data is not aligned to blocks",  # NOT_ALIGNED
}
_ANY_UNSUPPORTED = sum(_UNSUPPORTED)


NO_ANSWERS: IntArray = np.empty((0, _BUFFER_WORDS), "<i8")
"""See `answers()`."""


def raw_extents(fd: int, *, sync: bool = True) -> list[RawExtent]:
    """Query all extents of an open file, in the order of their logical offsets.

    With `sync`, the file's data is written first.

    Raises:
        OSError: the file system does not support FIEMAP (EOPNOTSUPP, ENOTTY), or failed.
    """
    pages = _pages(fd, _TO_THE_END, _SYNC if sync else 0)
    return [extent for page in pages for extent in _extents(page)]


def single_extents(
    fds: Sequence[int], sizes: IntArray, block_size: int
) -> tuple[IntArray, IntArray]:
    """Query the extents of many open files with at most one each: one fast system call per file.

    The calls keep the interpreter lock, so leave out files known to have many extents: the kernel
    may read these from the disk. Data still in memory is not written first. `sizes`, int64[n], and
    `block_size` of the file system are in bytes.

    Returns:
        counts: int64[n], 0 or 1; -1 if `raw_extents()` is needed: the file has several extents, or
            a special one (unwritten, inline ...), or the call failed.
        extents: int64[n, 3]: logical, physical and length in bytes, up to the end of the file's
            last block; only valid where the count is 1.
    """
    # struct fiemap and its extents as 64-bit words, two fields of 32 bits in one, the lower first:
    # start, length, (flags, mapped), (count, reserved);
    # logical, physical, length, reserved, reserved, (flags, reserved), reserved; and once more.
    words = np.zeros((len(fds), _BATCH_WORDS), "<i8")
    words[:, 1] = np.maximum(sizes, 1)  # extents beyond the end of the file do not matter
    words[:, 3] = _BATCH_ROOM
    addresses = range(words.ctypes.data, words.ctypes.data + words.nbytes, _BATCH_WORDS * 8)
    failed = np.fromiter(map(_ioctl, fds, repeat(_IOCTL), addresses), np.bool_, len(fds))
    counts, extents, flags = words[:, 2] >> 32, words[:, 4:7].copy(), words[:, 9] & 0xFFFFFFFF
    is_plain = (counts == 0) | ((counts == 1) & (flags & ~_HARMLESS == 0))
    counts[failed | ~is_plain] = -1
    ends = -(-sizes // block_size) * block_size
    extents[:, 2] = np.minimum(extents[:, 2], ends - extents[:, 0])
    return counts, extents


def answers(fd: int, end: int) -> IntArray:
    """Query the kernel's raw answers about an open file up to `end` (bytes): int64[n, words].

    Each row is a struct fiemap with the next 17 extents, as in `single_extents()`. Word 0 is their
    start in the file, word 1 the length of the queried range in bytes. Data still in memory is not
    written first. Raises as `raw_extents()`.
    """
    return np.frombuffer(b"".join(_pages(fd, end, 0)), "<i8").reshape(-1, _BUFFER_WORDS)


def extents_in(answers: IntArray) -> list[RawExtent]:
    """Unpack the extents in successive answers."""
    return [extent for page in answers for extent in _extents(page.data)]


def hold(fds: Sequence[int], answers: IntArray, *, keep_lock: bool) -> npt.NDArray[np.bool_]:
    """Repeat n queries about open files; return bool[n], true for unchanged answers.

    Needs 1 us each. `keep_lock` keeps the interpreter lock, see `single_extents()`.
    """
    now = np.zeros(answers.shape, "<i8")
    now[:, :2], now[:, 3] = answers[:, :2], answers[:, 3]
    addresses = range(now.ctypes.data, now.ctypes.data + now.nbytes, _BUFFER_BYTES)
    calls = map(_ioctl if keep_lock else _ioctl_without_gil, fds, repeat(_IOCTL), addresses)
    failed = np.fromiter(calls, np.bool_, len(fds))
    same: npt.NDArray[np.bool_] = (now == answers).all(axis=1) & ~failed
    return same


def _pages(fd: int, end: int, flags: int) -> Iterator[bytearray]:
    """Iterate over the kernel's answers, until there are no more extents before `end`."""
    start = 0
    while start < end:
        page = bytearray(_BUFFER_BYTES)
        _HEADER.pack_into(page, 0, start, end - start, flags, 0, _ROOM, 0)
        fcntl.ioctl(fd, _IOCTL, page)
        yield page
        if not (found := _extents(page)) or found[-1][3] & _LAST:
            return
        start, flags = found[-1][0] + found[-1][2], 0


def _extents(page: bytearray | memoryview) -> list[RawExtent]:
    count = _HEADER.unpack_from(page)[3]
    places = range(_HEADER.size, _HEADER.size + count * _EXTENT.size, _EXTENT.size)
    return [_EXTENT.unpack_from(page, place) for place in places]


def usable_extents(raw: Iterable[RawExtent], size: int, block_size: int) -> list[Extent] | str:
    """Convert the extents of a file to the form of a map, or return why the file has none.

    Space reserved beyond the file's last block counts as unwritten in any case. Neighbours are
    merged if both their logical and their physical ranges are adjacent. `raw` are all extents of
    the file, in the order of their logical offsets.
    """
    end = -(-size // block_size) * block_size
    merged: list[Extent] = []
    for logical, physical, length, flags in raw:
        if logical < end:
            if flags & _ANY_UNSUPPORTED:
                return next(reason for flag, reason in _UNSUPPORTED.items() if flags & flag)
            length = min(length, end - logical)
        if logical >= end or flags & _IS_UNWRITTEN:
            physical = UNWRITTEN
        if merged and logical != end and _adjacent(merged[-1], logical, physical):
            logical, physical, before = merged.pop()
            length += before
        merged.append((logical, physical, length))
    return merged


def _adjacent(extent: Extent, logical: int, physical: int) -> bool:
    start, address, length = extent
    after = UNWRITTEN if address == UNWRITTEN else address + length
    return (start + length, after) == (logical, physical)
