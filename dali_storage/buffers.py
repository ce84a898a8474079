"""The pool of batch buffers.

A batch is leased a buffer, and the buffer comes back when the last array that looks into it dies:
whoever holds one, for as long as he holds it. Nothing is counted in iterations, so it is right at
every prefetch depth, with every executor of DALI, and for a user who keeps an output for ever.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from ._types import Buffer

_GRANULE = 2 << 20  # bytes: a huge page


class Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A buffer on loan: 1-D uint8. Every slice of it keeps it, and with it the loan, alive.

    It is a subclass because numpy collapses chains of views: the base of a slice of a slice is the
    first array of *another type*. With a plain view as the lease, its slices would hold the arena
    and not the lease.
    """


class BufferPool:
    """Buffers that are used again and again; a fresh one would cost its page faults on every batch.

    There are never more of them than were on loan at once. All grow to the size of the largest
    batch seen so far; a mapping's pages that no batch has reached take no memory.
    """

    def __init__(self, allocate: Callable[[int], Buffer]) -> None:
        """`allocate(nbytes)` makes a new buffer: `Reader.allocate`."""
        self._allocate = allocate
        self._capacity = 0
        # A deque, because leases die wherever the last array dies: in DALI's threads, or in the
        # garbage collector while this very thread is in here. Its operations are atomic; a lock
        # could wait for itself.
        self._idle: deque[Buffer] = deque()

    def lease(self, nbytes: int) -> Lease:
        """A buffer of at least `nbytes`; its contents are what the last batch left there."""
        arena = self._take(nbytes)
        lease = arena.view(Lease)
        weakref.finalize(lease, self._idle.append, arena).atexit = False
        return lease

    def clear(self) -> None:
        """Free the buffers that are not on loan."""
        self._idle.clear()

    def _take(self, nbytes: int) -> Buffer:
        with contextlib.suppress(IndexError):  # none is idle
            while (arena := self._idle.pop()).size < nbytes:
                pass  # one that is too small is dropped
            return arena
        capacity = self._capacity  # once: another lane may change it meanwhile
        if nbytes > capacity:
            # An eighth more than needed, so that a slightly larger batch does not replace every
            # buffer again.
            capacity = -(-(nbytes + nbytes // 8) // _GRANULE) * _GRANULE
            self._capacity = capacity
        return self._allocate(capacity)
