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
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import os_error
from ..reader import IntArray

_OPENAT2 = 437  # on every machine: system calls of later than 2019 have one number everywhere
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_RESOLVE_CACHED = 0x20
_STATX_TYPE_AND_SIZE = 0x1 | 0x200
_STATX = np.dtype(  # the first fields of struct statx, <linux/stat.h>; the same on every machine
    {
        "names": ["mode", "size"],
        "formats": ["<u2", "<i8"],
        "offsets": [28, 40],
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

_statfs = ctypes.CDLL(None).statfs
_statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
_libc = ctypes.PyDLL(None)  # PyDLL: keeps the interpreter lock
_openat2 = _libc.syscall
_openat2.argtypes = [
    *(ctypes.c_long, ctypes.c_int, ctypes.c_char_p),
    *(ctypes.c_void_p, ctypes.c_size_t),
]
_openat2.restype = ctypes.c_long
_statx = _libc.statx
_statx.argtypes = [
    *(ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
    *(ctypes.c_uint, ctypes.c_void_p),
]


def is_local(directory: bytes) -> bool:
    """Whether a directory is on a file system that waits for nothing but its disks."""
    status = (ctypes.c_long * 64)()  # struct statfs; f_type is its first field
    return _statfs(directory, status) == 0 and status[0] in _LOCAL


def open_cached(fds: list[int], paths: Sequence[bytes], flags: int) -> bool:
    """Open what need not wait for a disk: `paths[i]` where `fds[i]` is -1, and put it there.

    Returns:
        Whether all are open now. None is opened where there is no openat2(2): before Linux 5.12, or
        in a sandbox that forbids it.
    """
    how = np.array([flags | os.O_CLOEXEC, 0, _RESOLVE_CACHED], np.uint64)  # struct open_how
    address, size = how.ctypes.data, how.nbytes
    for place, path in enumerate(paths):
        if fds[place] < 0:
            fds[place] = _openat2(_OPENAT2, _AT_FDCWD, path, address, size)
    return min(fds, default=0) >= 0


def open_missing(fds: list[int], paths: Sequence[bytes], flags: int) -> None:
    """Open `paths[i]` where `fds[i]` is -1, and put it there; waits as long as it takes.

    Raises:
        OSError: the first of them that cannot be opened, by its path; the others stay in `fds`.
    """
    for place in [place for place, fd in enumerate(fds) if fd < 0]:
        try:
            fds[place] = os.open(paths[place], flags)
        except OSError as error:
            raise _open_failure(error, paths[place], flags) from None


def regular_sizes(fds: Sequence[int], paths: Sequence[bytes], local: bool) -> IntArray:
    """The sizes of n open files in bytes, int64[n]; `local` as `is_local()` says.

    Raises:
        OSError: one of them is not a regular file, or cannot be sized; names its path.
    """
    status = np.zeros(len(fds), _STATX)
    first = status.ctypes.data
    for place, fd in enumerate(fds):
        address = first + place * _STATX.itemsize
        if not local or _statx(fd, b"", _AT_EMPTY_PATH, _STATX_TYPE_AND_SIZE, address) != 0:
            status[place] = _fstat(fd, paths[place])
    odd = np.flatnonzero(status["mode"] & 0o170000 != stat.S_IFREG)
    for place in odd[:1].tolist():
        if stat.S_ISDIR(int(status["mode"][place])):
            raise os_error(errno.EISDIR, paths[place])
        raise os_error(errno.EINVAL, paths[place], ": not a regular file")
    return status["size"]


def close_all(fds: Iterable[int]) -> None:
    """Close those that are open (not negative), neighbouring numbers by one system call."""
    ordered: npt.NDArray[np.int64] = np.sort([fd for fd in fds if fd >= 0])
    if ordered.size:
        gaps = np.flatnonzero(np.diff(ordered) != 1)
        firsts = ordered[np.concatenate(([0], gaps + 1))]
        lasts = ordered[np.concatenate((gaps, [-1]))]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            os.closerange(first, last + 1)


def _fstat(fd: int, path: bytes) -> tuple[int, int]:
    try:
        status = os.fstat(fd)
    except OSError as error:
        raise os_error(error.errno or errno.EIO, path) from None
    return status.st_mode & 0xFFFF, status.st_size


def _open_failure(error: OSError, path: bytes, flags: int) -> OSError:
    if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
        return os_error(error.errno or errno.EIO, path)
    if os.path.isdir(path):
        return os_error(errno.EISDIR, path)
    hint = ": its file system has no O_DIRECT; use the python-file option direct=False"
    return os_error(errno.EINVAL, path, hint)
