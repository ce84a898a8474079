"""Reads by preadv2(2), one after the other, for machines without kernel AIO."""

import ctypes
import errno
import os

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.errors import BackendUnavailable
from . import libc
from .libc import IOVEC


def read(
    fds: npt.ArrayLike, iovecs: npt.NDArray[np.void], offsets: npt.ArrayLike, rw_flags: int = 0
) -> IntArray:
    """Read n ranges of files one after the other; otherwise as `aio.AioContext.read()`."""
    n, pieces = iovecs.shape
    results = np.empty(n, np.int64)
    first, step = iovecs.ctypes.data, pieces * IOVEC.itemsize
    ranges = zip(np.asarray(fds).tolist(), np.asarray(offsets).tolist(), strict=True)
    for index, (fd, offset) in enumerate(ranges):
        nbytes = libc.preadv2(fd, first + index * step, pieces, offset, rw_flags)
        results[index] = nbytes if nbytes >= 0 else -ctypes.get_errno()
    return results


def unavailable() -> BackendUnavailable | None:
    """The reason why `read()` fails on this machine, with a remedy; None if available."""
    # A descriptor that nobody has: EBADF shows that the call itself is allowed.
    if libc.preadv2(-1, None, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EBADF:
        return None
    reason = f"preadv2 failed ({os.strerror(ctypes.get_errno())}); a sandbox may forbid it"
    return BackendUnavailable(reason, "allow preadv2 in its seccomp profile")
