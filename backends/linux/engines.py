"""Choice of the engine that reads many files: io_uring, kernel AIO, or preadv2 without either."""

import ctypes
import errno
import os
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.errors import BackendUnavailable
from . import aio, libc, uring
from .libc import IOVEC
from .reads import Read

Io: TypeAlias = Literal["io_uring", "aio", "preadv"]

RING_FIRST: tuple[Io, ...] = ("io_uring", "aio", "preadv")
AIO_FIRST: tuple[Io, ...] = ("aio", "io_uring", "preadv")


def choose(
    backend: str, io: Io | None, depth: int, order: Sequence[Io] = AIO_FIRST
) -> tuple[Io, Read]:
    """Choose a backend's engine for up to `depth` reads at once; return its name and function.

    None: the first in `order` that is available; "preadv" with a RuntimeWarning at the line of the
    backend's caller.

    Raises:
        BackendUnavailable: the engine does not work on this machine.
    """
    working = [each for each in order if missing(each, depth) is None]
    chosen = io or (working or ["aio"])[0]
    if (problem := missing(chosen, depth)) is not None:
        if io is None:
            raise problem
        others = " or ".join(f"io={each!r}" for each in order if each in working or not working)
        remedy = f"{problem.remedy}; or use the python-file option {others}"
        raise BackendUnavailable(problem.reason, remedy)
    if chosen == "preadv" != io:
        what = f"{backend}: reading by preadv, which is slower: {missing('aio', depth)}"
        # 4: this, the constructor, the check of its options, and the caller.
        warnings.warn(what, RuntimeWarning, stacklevel=4)
    if chosen == "io_uring":
        return chosen, partial(_by_ring, depth, without_ring(depth))
    return chosen, partial(aio.read, depth) if chosen == "aio" else preadv


def without_ring(depth: int) -> Read:
    """What reads open files where there is no ring, or not yet: kernel AIO, or else preadv2."""
    return preadv if missing("aio", depth) else partial(aio.read, depth)


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


def _by_ring(
    depth: int,
    without: Read,
    fds: npt.ArrayLike,
    iovecs: npt.NDArray[np.void],
    offsets: npt.ArrayLike,
    rw_flags: int = 0,
) -> IntArray:
    """Read by the ring of the calling thread, or as `without` while there is none."""
    if (ring := uring.ring()) is None:
        return without(fds, iovecs, offsets, rw_flags)
    return ring.read(fds, iovecs, offsets, rw_flags, at_once=depth)


def _preadv_unavailable() -> BackendUnavailable | None:
    # A descriptor that nobody has: EBADF shows that the call itself is allowed.
    if libc.preadv2(-1, None, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EBADF:
        return None
    reason = f"preadv2 failed ({os.strerror(ctypes.get_errno())}); a sandbox may forbid it"
    return BackendUnavailable(reason, "allow preadv2 in its seccomp profile")
