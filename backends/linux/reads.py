"""Reads of many open files that may stop short, by kernel AIO or preadv2."""

import mmap
import os
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from .libc import IOVEC

Read: TypeAlias = Callable[[npt.ArrayLike, npt.NDArray[np.void], npt.ArrayLike, int], IntArray]
"""`preadv.read()`, or `aio.read()` of some depth."""


class FileRanges(NamedTuple):
    """Ranges of n open files; all int64[n].

    Attributes:
        fds: the descriptors.
        memory: the addresses to read to.
        starts: bytes into the files.
        sizes: bytes to read.
        needed: bytes that must arrive; if fewer do, the file ends there.
    """

    fds: IntArray
    memory: IntArray
    starts: IntArray
    sizes: IntArray
    needed: IntArray


class Reads:
    """The reads of n open files.

    Attributes:
        got: int64[n], bytes read of each so far.
        errors: int64[n], errno of each; 0 if it has not failed.
        done: bool[n], whether each has reached its current end, or has grown.
    """

    def __init__(
        self, read: Read, fds: list[int], iovecs: npt.NDArray[np.void], sizes: IntArray, unit: int
    ) -> None:
        """`unit`: bytes; what offsets must be multiples of."""
        self.got = np.zeros_like(sizes)
        self.errors = np.zeros_like(sizes)
        self.done = np.zeros(sizes.shape, bool)
        self._by = read
        self._fds = np.array(fds)
        self._iovecs = iovecs
        self._sizes = sizes
        self._unit = unit

    def read_cached(self) -> None:
        """Read what is in the page cache, and make the kernel read ahead what is not."""
        self._read(np.flatnonzero(~self.done), os.RWF_NOWAIT)
        # The read stops at the first page that is not cached, and at the end of the file. It was
        # the end for certain if the next byte would be on the same page. Otherwise a read that may
        # block decides; it does not block at the end of a file.
        whole = self.got == self._sizes
        self.done |= (whole & (self._sizes % mmap.PAGESIZE != 0)) | (self.got > self._sizes)
        self._read(np.flatnonzero(whole & ~self.done), 0)

    def read_rest(self) -> None:
        """Read each file to its end. A short read need not be the end."""
        while (indices := np.flatnonzero(~self.done)).size:
            self._read(indices, 0)

    def _read(self, indices: IntArray, rw_flags: int) -> None:
        if not indices.size:
            return
        rest, got = self._iovecs[indices], self.got[indices]
        passed = np.minimum(rest["len"], got[:, None].astype(np.uint64))
        passed[:, 1] = got.astype(np.uint64) - passed[:, 0]
        rest["base"] += passed
        rest["len"] -= passed
        more = self._by(self._fds[indices], rest, got, rw_flags)
        self.got[indices] = got = got + np.maximum(more, 0)
        if not rw_flags & os.RWF_NOWAIT:  # whatever failed without blocking is tried again
            self.errors[indices] = np.maximum(-more, 0)
            at_end = (more <= 0) | (got > self._sizes[indices]) | (got % self._unit != 0)
            self.done[indices] = at_end


def read_ranges(
    read: Read,
    ranges: FileRanges,
    unit: int,
    *,
    cached_first: bool,
    yield_turn: Callable[[], None],
) -> tuple[IntArray, IntArray]:
    """Read ranges of open files to the end, or to the end of the file.

    Args:
        read: reads ranges once.
        ranges: what to read.
        unit: bytes, of which starts and sizes are multiples.
        cached_first: read what is in the page cache first, see `Reads`.
        yield_turn: called before it blocks.

    Returns:
        The bytes read of each, and the errno of each, 0 if it has not failed: int64[n].
    """
    got, errors = np.zeros_like(ranges.sizes), np.zeros_like(ranges.sizes)
    left: IntArray | slice = slice(None)
    flags = os.RWF_NOWAIT if cached_first else 0
    while True:
        if not flags:
            yield_turn()
        done = got[left]
        iovecs = np.empty((done.size, 1), IOVEC)
        iovecs["base"][:, 0] = ranges.memory[left] + done
        iovecs["len"][:, 0] = ranges.sizes[left] - done
        more = read(ranges.fds[left], iovecs, ranges.starts[left] + done, flags)
        got[left] = done = done + np.maximum(more, 0)
        short = done < ranges.needed[left]
        if not flags:  # whatever failed without blocking is tried again
            errors[left] = np.maximum(-more, 0)
            short &= (more > 0) & (done % unit == 0)
        if not short.any():
            return got, errors
        left, flags = np.arange(got.size)[left][short], 0
