"""The functions of the C library that backends call, each bound once.

A function bound by `CDLL` releases the interpreter lock (GIL) around the call: right for whatever
may block. Releasing it costs more than a short call where other threads want the lock, because
taking it back means to be woken up. So a call that cannot block has a twin bound by `PyDLL`, whose
name ends in `_with_gil`.
"""

from __future__ import annotations

import ctypes

import numpy as np

IOVEC = np.dtype([("base", "<u8"), ("len", "<u8")])
"""struct iovec of a 64-bit machine: address and bytes of a piece of memory."""

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000

_without_errno, _with_errno, _held = (
    ctypes.CDLL(None),
    ctypes.CDLL(None, use_errno=True),
    ctypes.PyDLL(None),
)

syscall = _with_errno.syscall
"""Any system call; errno is in `ctypes.get_errno()`."""
syscall.restype = ctypes.c_long

preadv2 = _with_errno.preadv2
preadv2.argtypes = [
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int),
    *(ctypes.c_int64, ctypes.c_int),
]
preadv2.restype = ctypes.c_ssize_t

open_ = _without_errno.open
open_.argtypes = [ctypes.c_char_p, ctypes.c_int]

statx, statx_with_gil = _without_errno.statx, _held.statx
statx.argtypes = statx_with_gil.argtypes = [
    *(ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
    *(ctypes.c_uint, ctypes.c_void_p),
]

statfs = _without_errno.statfs
statfs.argtypes = [ctypes.c_char_p, ctypes.c_void_p]

madvise = _without_errno.madvise
madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

dup3_with_gil = _held.dup3
dup3_with_gil.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int]

openat2_with_gil = _held.syscall
"""openat2(2), which the C library does not wrap: its number, then its arguments."""
openat2_with_gil.argtypes = [
    *(ctypes.c_long, ctypes.c_int, ctypes.c_char_p),
    *(ctypes.c_void_p, ctypes.c_size_t),
]
openat2_with_gil.restype = ctypes.c_long

BZERO: int = ctypes.cast(_without_errno.bzero, ctypes.c_void_p).value or 0
"""The address of bzero(3), for foreign code to call."""
