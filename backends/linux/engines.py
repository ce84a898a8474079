"""Choice of the engine that reads many files: io_uring, kernel AIO, or preadv2 without either."""

import ctypes
import errno
import os
import warnings
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.errors import BackendUnavailable
from . import aio, libc, uring
from .libc import IOVEC
from .transfers import Engine

Io: TypeAlias = Literal["io_uring", "aio", "preadv"]


def choose(backend: str, io: Io | None, depth: int, *, whole: bool = False) -> tuple[Io, Engine]:
    """Choose a backend's engine for up to `depth` reads at once; return its name and function.

    None: for `whole` files "io_uring" where available, "aio" where available, otherwise "preadv"
    with a RuntimeWarning at the line of the backend's caller. The function reads open files; with
    "io_uring", this is what a `uring.Ring` does not do: by kernel AIO if available.

    Raises:
        BackendUnavailable: the engine does not work on this machine.
    """
    by_ring = io == "io_uring" or (io is None and whole and not uring.unavailable())
    chosen: Io = "io_uring" if by_ring else io or "aio"
    if (reason := missing(chosen, depth)) is not None:
        if io is not None:
            remedy = f"{reason.remedy}; or leave out the python-file option io"
            raise BackendUnavailable(reason.reason, remedy)
        if missing("preadv", depth) is not None:
            raise reason
        chosen, what = "preadv", f"{backend}: reading by preadv, which is slower: {reason}"
        # 4: this, the constructor, the check of its options, and the caller.
        warnings.warn(what, RuntimeWarning, stacklevel=4)
    without_aio = chosen == "preadv" or (by_ring and missing("aio", depth))
    return chosen, preadv if without_aio else partial(aio.read, depth)


def missing(io: str, depth: int) -> BackendUnavailable | None:
    """The reason why `io` does not work here; None if available."""
    if io == "io_uring":
        return uring.unavailable()
    return aio.unavailable(depth) if io == "aio" else _preadv_unavailable()


def preadv(
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


def _preadv_unavailable() -> BackendUnavailable | None:
    # A descriptor that nobody has: EBADF shows that the call itself is allowed.
    if libc.preadv2(-1, None, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EBADF:
        return None
    reason = f"preadv2 failed ({os.strerror(ctypes.get_errno())}); a sandbox may forbid it"
    return BackendUnavailable(reason, "allow preadv2 in its seccomp profile")
