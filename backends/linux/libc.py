"""C library functions for the backends, each bound once.

A function bound by `CDLL` releases the interpreter lock (GIL) around the call, as any blocking call
should. Under contention, release and reacquisition cost more than a short call, because the thread
must be woken up. So a call that cannot block has a twin bound by `PyDLL`, with a name that ends in
`_with_gil`.
"""

import ctypes
from ctypes import c_char_p, c_int, c_int64, c_long, c_size_t, c_ssize_t, c_uint, c_void_p

import numpy as np
import numpy.typing as npt

IOVEC = np.dtype([("base", "<u8"), ("len", "<u8")])
"""struct iovec of a 64-bit machine: address and bytes of a piece of memory."""

STATX = np.dtype(  # the fields of struct statx, <linux/stat.h>, that are compared
    {
        "names": ["mode", "inode", "size", "ctime_s", "ctime_ns", "mtime_s", "mtime_ns"],
        "formats": ["<u2", "<i8", "<i8", "<i8", "<u4", "<i8", "<u4"],
        "offsets": [28, 32, 40, 96, 104, 112, 120],
        "itemsize": 256,
    }
)

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

_without_errno = ctypes.CDLL(None)
_with_errno = ctypes.CDLL(None, use_errno=True)
_held = ctypes.PyDLL(None)

syscall, syscall_with_gil = _with_errno.syscall, _held["syscall"]
"""Any system call; errno is in `ctypes.get_errno()`, except for the twin."""
syscall.restype = syscall_with_gil.restype = c_long

preadv2 = _with_errno.preadv2
preadv2.argtypes = [c_int, c_void_p, c_int, c_int64, c_int]
preadv2.restype = c_ssize_t

open_, close = _without_errno.open, _without_errno.close
open_.argtypes, close.argtypes = [c_char_p, c_int], [c_int]

statx, statx_with_gil = _without_errno.statx, _held.statx
statx.argtypes = statx_with_gil.argtypes = [c_int, c_char_p, c_int, c_uint, c_void_p]

statfs = _without_errno.statfs
statfs.argtypes = [c_char_p, c_void_p]

madvise = _without_errno.madvise
madvise.argtypes = [c_void_p, c_size_t, c_int]

mmap = _with_errno.mmap
mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_int64]
mmap.restype = c_void_p

munmap = _without_errno.munmap
munmap.argtypes = [c_void_p, c_size_t]

dup3_with_gil = _held.dup3
dup3_with_gil.argtypes = [c_int, c_int, c_int]

openat2_with_gil = _held["syscall"]
"""openat2(2), for which the C library has no wrapper: its number, then its arguments."""
openat2_with_gil.argtypes = [c_long, c_int, c_char_p, c_void_p, c_size_t]
openat2_with_gil.restype = c_long

BZERO: int = ctypes.cast(_without_errno.bzero, c_void_p).value or 0
"""The address of bzero(3), for foreign code to call."""


def row_addresses(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.uint64]:
    """The address of each row of a C-contiguous array."""
    return rows.ctypes.data + np.arange(len(rows), dtype=np.uint64) * rows.strides[0]


def make_iovecs(*pieces: tuple[npt.ArrayLike, npt.ArrayLike]) -> npt.NDArray[np.void]:
    """Make IOVEC[n, k]: the k pieces of memory of n reads, as addresses and lengths in bytes."""
    iovecs = np.empty((np.size(pieces[0][0]), len(pieces)), IOVEC)
    for piece, (addresses, lengths) in enumerate(pieces):
        iovecs["base"][:, piece], iovecs["len"][:, piece] = addresses, lengths
    return iovecs
