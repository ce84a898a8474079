"""preadv2(2): reads one after the other, where kernel AIO is not to be had."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from . import libc
from .libc import IOVEC


def read(
    fds: npt.ArrayLike, iovecs: npt.NDArray[np.void], offsets: npt.ArrayLike, rw_flags: int = 0
) -> IntArray:
    """Read n ranges of files, as `AioContext.read()`, but one after the other.

    Nothing is under way when it ends, however it ends.
    """
    n, pieces = iovecs.shape
    results = np.empty(n, np.int64)
    first, step = iovecs.ctypes.data, pieces * IOVEC.itemsize
    ranges = zip(np.asarray(fds).tolist(), np.asarray(offsets).tolist(), strict=True)
    for index, (fd, offset) in enumerate(ranges):
        nbytes = libc.preadv2(fd, first + index * step, pieces, offset, rw_flags)
        results[index] = nbytes if nbytes >= 0 else -ctypes.get_errno()
    return results
