"""Reads of many open files that may stop short, by kernel AIO or preadv2."""

import mmap
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from .libc import IOVEC

Read: TypeAlias = Callable[[npt.ArrayLike, npt.NDArray[np.void], npt.ArrayLike, int], IntArray]
"""`preadv.read()`, or `aio.read()` of some depth."""


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
        rest["base"][:, 0] += got.astype(np.uint64)
        rest["len"][:, 0] -= got.astype(np.uint64)
        more = self._by(self._fds[indices], rest, got, rw_flags)
        self.got[indices] = got = got + np.maximum(more, 0)
        if not rw_flags & os.RWF_NOWAIT:  # whatever failed without blocking is tried again
            self.errors[indices] = np.maximum(-more, 0)
            at_end = (more <= 0) | (got > self._sizes[indices]) | (got % self._unit != 0)
            self.done[indices] = at_end


class RangeReads:
    """Reads of n ranges of open files.

    Attributes:
        got: int64[n], bytes read of each so far.
        errors: int64[n], errno of each; 0 if it has not failed.
        left: int64[k], the indices of those that have neither been read nor failed.
    """

    def __init__(
        self,
        read: Read,
        fds: IntArray,
        memory: IntArray,
        starts: IntArray,
        sizes: IntArray,
        needed: IntArray,
        unit: int,
    ) -> None:
        """Read nothing yet; all arrays are int64[n].

        Args:
            read: reads ranges once.
            fds: the open files.
            memory: the addresses to read to.
            starts: bytes into the files; multiples of `unit`.
            sizes: bytes to read; multiples of `unit`.
            needed: bytes that a file must have there; less is the end of a file.
            unit: bytes.
        """
        self.got, self.errors = np.zeros_like(sizes), np.zeros_like(sizes)
        self.left = np.arange(sizes.size)
        self._by = read
        self._fds, self._memory, self._starts = fds, memory, starts
        self._sizes, self._needed, self._unit = sizes, needed, unit

    def read(self, rw_flags: int = 0) -> None:
        """Read once of each that is left; with RWF_NOWAIT what is cached, see `Reads`."""
        left, got = self.left, self.got[self.left]
        iovecs = np.empty((left.size, 1), IOVEC)
        iovecs["base"][:, 0] = self._memory[left] + got
        iovecs["len"][:, 0] = self._sizes[left] - got
        more = self._by(self._fds[left], iovecs, self._starts[left] + got, rw_flags)
        self.got[left] = got = got + np.maximum(more, 0)
        short = got < self._needed[left]
        if not rw_flags & os.RWF_NOWAIT:  # whatever failed without blocking is tried again
            self.errors[left] = np.maximum(-more, 0)
            short &= (more > 0) & (got % self._unit == 0)
        self.left = left[short]
