"""The pool of batch buffers.

Every batch leases a buffer, which returns to the pool when the last array that refers to it dies.
No iterations are counted, so this is right at every prefetch depth, with every executor of DALI,
and for users who keep an output forever.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from ._types import Buffer

_GRANULE = 2 << 20  # bytes: a huge page


class Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A leased buffer: 1-D uint8. Every slice of it keeps the lease alive.

    It is a subclass because numpy collapses chains of views: the base of a slice of a slice is the
    first array of *another type*. Slices of a plain view would refer to the arena, not the lease.
    """


class BufferPool:
    """Buffers that are reused, because the page faults of a new one would cost every batch.

    There are never more buffers than were leased at the same time. Each has room for the largest
    batch so far; pages that no batch has touched take no memory.
    """

    def __init__(self, allocate: Callable[[int], Buffer]) -> None:
        """`allocate(nbytes)` returns a new buffer: `Reader.allocate`."""
        self._allocate = allocate
        self._capacity = 0
        # A deque, because its operations are atomic. A lock could deadlock: a lease may die in any
        # thread, also in this one, when the garbage collector runs inside of the pool.
        self._idle: deque[Buffer] = deque()

    def lease(self, nbytes: int) -> Lease:
        """Lease at least `nbytes`. The buffer still contains bytes of an earlier batch."""
        arena = self._take(nbytes)
        lease = arena.view(Lease)
        weakref.finalize(lease, self._idle.append, arena).atexit = False
        return lease

    def clear(self) -> None:
        """Free the buffers that are not leased."""
        self._idle.clear()

    def _take(self, nbytes: int) -> Buffer:
        with contextlib.suppress(IndexError):  # none is idle
            while (arena := self._idle.pop()).size < nbytes:
                pass  # drop buffers that are too small
            return arena
        capacity = self._capacity  # read once: another lane may change it
        if nbytes > capacity:
            # An eighth more, so that a slightly larger batch does not replace all buffers again.
            capacity = -(-(nbytes + nbytes // 8) // _GRANULE) * _GRANULE
            self._capacity = capacity
        return self._allocate(capacity)
