"""Opening, sizing and closing many files at little cost to the other threads of the process.

Python gives the interpreter lock away at every system call. Where a call takes a microsecond and
other threads want the lock, that is a bad bargain: taking it back means to be woken up. So on local
file systems what need not wait for a disk is called without giving the lock away, and the rest as
Python does it. Which is which the kernel says: openat2(2) with RESOLVE_CACHED opens a file only if
the way to it is cached. On a network file system, or one in user space, any call may wait for a
server, and is made as Python does it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from ...errors import os_error
from ..linux import libc

T = TypeVar("T")

_OPENAT2 = 437  # on every machine: system calls of later than 2019 have one number everywhere
_RESOLVE_CACHED = 0x20
_STATX_BASIC_STATS = 0x7FF
STATX = np.dtype(  # of struct statx, <linux/stat.h>; the same on every machine
    {
        "names": ["mode", "inode", "size", "ctime_s", "ctime_ns", "mtime_s", "mtime_ns"],
        "formats": ["<u2", "<i8", "<i8", "<i8", "<u4", "<i8", "<u4"],
        "offsets": [28, 32, 40, 96, 104, 112, 120],
        "itemsize": 256,
    }
)

_LOCAL = frozenset(  # f_type of struct statfs, <linux/magic.h>
    (
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # XFS
        0x9123683E,  # btrfs
        0xF2F52010,  # F2FS
        0xCA451A4E,  # bcachefs
        0x2FC12FC1,  # ZFS
        0x01021994,  # tmpfs
    )
)


def is_local(directory: bytes) -> bool:
    """Whether a directory is on a file system that waits for nothing but its disks."""
    status = (ctypes.c_long * 64)()  # struct statfs; f_type is its first field
    return libc.statfs(directory, status) == 0 and status[0] in _LOCAL


def open_cached(fds: list[int], paths: Sequence[bytes], flags: int) -> bool:
    """Open what need not wait for a disk: `paths[i]` where `fds[i]` is -1, and put it there.

    Returns:
        Whether all are open now. None is opened where there is no openat2(2): before Linux 5.12, or
        in a sandbox that forbids it.
    """
    how = np.array([flags | os.O_CLOEXEC, 0, _RESOLVE_CACHED], np.uint64)  # struct open_how
    places = [place for place, fd in enumerate(fds) if fd < 0]
    arguments = (repeat(_OPENAT2), repeat(libc.AT_FDCWD), (paths[place] for place in places))
    opened = map(libc.openat2_with_gil, *arguments, repeat(how.ctypes.data), repeat(how.nbytes))
    for place, fd in zip(places, opened, strict=True):
        fds[place] = fd
    return min(fds, default=0) >= 0


def open_missing(fds: list[int], paths: Sequence[bytes], flags: int) -> None:
    """Open `paths[i]` where `fds[i]` is -1, and put it there; waits as long as it takes.

    Raises:
        OSError: the first of them that cannot be opened, by its path; the others stay in `fds`.
    """
    places = [place for place, fd in enumerate(fds) if fd < 0]
    wanted = (paths[place] for place in places)
    for place, fd in zip(
        places, map(libc.open_, wanted, repeat(flags | os.O_CLOEXEC)), strict=True
    ):
        fds[place] = fd
    for place in places:
        if fds[place] < 0:
            fds[place] = _open_or_say_why(paths[place], flags)


def _open_or_say_why(path: bytes, flags: int) -> int:
    try:
        return os.open(path, flags)
    except OSError as error:
        raise _open_failure(error, path, flags) from None


def statuses(fds: Sequence[int], paths: Sequence[bytes], local: bool) -> npt.NDArray[np.void]:
    """What the file system says of n open files, STATX[n]; `local` as `is_local()` says.

    Raises:
        OSError: one of them cannot be asked about; names its path.
    """
    status = np.zeros(len(fds), STATX)
    unknown: list[int] = list(range(len(fds)))
    if local:
        addresses = range(status.ctypes.data, status.ctypes.data + status.nbytes, STATX.itemsize)
        arguments = (repeat(b""), repeat(libc.AT_EMPTY_PATH), repeat(_STATX_BASIC_STATS), addresses)
        unknown = [
            place
            for place, failed in enumerate(map(libc.statx_with_gil, fds, *arguments))
            if failed
        ]
    for place in unknown:
        status[place] = _columns(_named(os.fstat, fds[place], paths[place]))
    return status


def statuses_of_paths(paths: Sequence[bytes]) -> npt.NDArray[np.void]:
    """What the file system says of n paths, following links: STATX[n]. Waits as long as it takes.

    Raises:
        OSError: the first of them that cannot be asked about; names its path.
    """
    status = np.zeros(len(paths), STATX)
    addresses = range(status.ctypes.data, status.ctypes.data + status.nbytes, STATX.itemsize)
    arguments = (repeat(0), repeat(_STATX_BASIC_STATS), addresses)
    results = list(map(libc.statx, repeat(libc.AT_FDCWD), paths, *arguments))
    for place in [place for place, failed in enumerate(results) if failed]:
        status[place] = _columns(_named(os.stat, paths[place], paths[place]))
    return status


def regular_sizes(fds: Sequence[int], paths: Sequence[bytes], local: bool) -> IntArray:
    """The sizes of n open files in bytes, int64[n]; `local` as `is_local()` says.

    Raises:
        OSError: one of them is not a regular file, or cannot be sized; names its path.
    """
    status = statuses(fds, paths, local)
    odd = np.flatnonzero(status["mode"] & 0o170000 != stat.S_IFREG)
    for place in odd[:1].tolist():
        if stat.S_ISDIR(int(status["mode"][place])):
            raise os_error(errno.EISDIR, paths[place])
        raise os_error(errno.EINVAL, paths[place], ": not a regular file")
    return status["size"]


def close_all(fds: Iterable[int]) -> None:
    """Close those that are open (not negative), neighbouring numbers by one system call.

    Once this has begun, Ctrl-C does not keep it from closing them all.
    """
    mine = [*fds]  # if this takes them from where they were known, then by one instruction
    try:
        ordered = sorted(filter((-1).__lt__, mine))
        neighbours = zip([-2, *ordered], [*ordered, -2], strict=True)
        gaps = [(before, after) for before, after in neighbours if after != before + 1]
        starts = [after for _, after in gaps[:-1]]
        ends = [before + 1 for before, _ in gaps[1:]]
        closing = map(os.closerange, starts, ends)
    except BaseException:
        close_all(mine)
        raise
    deque(closing, maxlen=0)


def _named(stat: Callable[[T], os.stat_result], target: T, path: bytes) -> os.stat_result:
    try:
        return stat(target)
    except OSError as error:
        raise os_error(error.errno or errno.EIO, path) from None


def _columns(status: os.stat_result) -> tuple[int, ...]:
    """A row of STATX."""
    ctime, mtime = divmod(status.st_ctime_ns, 10**9), divmod(status.st_mtime_ns, 10**9)
    return status.st_mode & 0xFFFF, status.st_ino, status.st_size, *ctime, *mtime


def _open_failure(error: OSError, path: bytes, flags: int) -> OSError:
    if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
        return os_error(error.errno or errno.EIO, path)
    if os.path.isdir(path):
        return os_error(errno.EISDIR, path)
    hint = ": its file system has no O_DIRECT; use the option direct=False"
    return os_error(errno.EINVAL, path, hint)
