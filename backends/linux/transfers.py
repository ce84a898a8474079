"""Bytes of many open files, taken by kernel AIO or preadv2; short reads are continued."""

import mmap
import os
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.stages import yield_turn

LARGE = 512 << 10  # bytes; files of 400 KB are slower if their beginning is read first
_BEGINNING = 16 << 10  # bytes

Engine: TypeAlias = Callable[[npt.ArrayLike, npt.NDArray[np.void], npt.ArrayLike, int], IntArray]
"""`engines.preadv()`, or `aio.read()` of some depth: one read of each range, which may be short."""


class Transfers:
    """Transfers from n open files to memory.

    Attributes:
        got: int64[n], bytes read of each file so far.
        errors: int64[n], errno of each file; 0 if none.
    """

    def __init__(
        self,
        engine: Engine,
        fds: npt.ArrayLike,
        iovecs: npt.NDArray[np.void],
        starts: IntArray,
        needed: IntArray,
        unit: int,
        *,
        to_end: bool = False,
    ) -> None:
        """Read nothing yet.

        Args:
            engine: reads what is left of each transfer, once.
            fds: int[n], the open files.
            iovecs: IOVEC[n, k], the memory of each read, in one or two pieces.
            starts: int64[n], bytes into the files.
            needed: int64[n], bytes to read; fewer only if the file ends there.
            unit: bytes; starts and lengths are multiples of this.
            to_end: read past the needed bytes, to see if the file has grown.
        """
        self.got = np.zeros(needed.size, np.int64)
        self.errors = np.zeros(needed.size, np.int64)
        self._done = np.zeros(needed.size, bool)  # complete, failed, or ended before
        self._engine = engine
        self._fds = np.asarray(fds)
        self._iovecs = iovecs
        self._starts = starts
        self._enough = needed + 1 if to_end else needed
        self._unit = unit
        self._to_end = to_end

    def complete(self, *, cached_first: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Transfer all; `cached_first`, bool[n]: of these, read cached pages first.

        Yields the turn before a read that may block. Returns bool[n]: true for reads that needed no
        blocking read.
        """
        self._take_cached(cached_first)
        cached = self._done.copy()
        if not cached.all():
            yield_turn()
            # A short read need not be the end.
            while (left := np.flatnonzero(~self._done)).size:
                self._submit(left, 0)
        return cached

    def _take_cached(self, wanted: npt.NDArray[np.bool_]) -> None:
        """Read cached pages, and start readahead of the others."""
        large = wanted & (self._enough >= LARGE)
        if self._to_end and large.any():
            # After a large read, the kernel reads ahead by single pages; after a small one, in
            # larger and larger folios, for half the CPU time, now and later (mm/readahead.c).
            self._submit(large.nonzero()[0], os.RWF_NOWAIT, _BEGINNING)
            wanted = wanted & ~(large & (self.got == 0))
        # This does not block, so readahead starts in all files at once.
        if (chosen := wanted.nonzero()[0]).size:
            self._submit(chosen, os.RWF_NOWAIT)
        # At the end of the file, where a read does not block, or at a page that is not cached.
        unsure = wanted & (self.got == self._enough - 1) & ~self._done
        if self._to_end and unsure.any():
            self._submit(unsure.nonzero()[0], 0)

    def _submit(self, indices: IntArray, rw_flags: int, most: int | None = None) -> None:
        rest, got = self._iovecs[indices], self.got[indices]
        if most is not None:
            rest["len"] = most, 0
        if got.any():
            before = got.astype(np.uint64)[:, None]
            passed = np.minimum(rest["len"], before)
            passed[:, 1:] = before - passed[:, :1]
            rest["base"] += passed
            rest["len"] -= passed
        more = self._engine(self._fds[indices], rest, self._starts[indices] + got, rw_flags)
        self.got[indices] = got = got + np.maximum(more, 0)
        left = self._enough[indices] - got
        # A read ends in mid-page only at the end of the file.
        done = (left <= 0) | (self._to_end & (left == 1) & (got % mmap.PAGESIZE != 0))
        if not rw_flags:  # reads that failed without blocking are retried
            self.errors[indices] = np.maximum(-more, 0)
            # A part of a unit comes from the end of a file only.
            done |= (more <= 0) | (got % self._unit != 0)
        self._done[indices] = done
