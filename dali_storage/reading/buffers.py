"""The pool of batch buffers.

Every batch leases a buffer, which returns to the pool when the last array on the buffer dies. No
iterations are counted, so this is right at every prefetch depth, with every executor of DALI, and
for users who keep an output forever.
"""

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ..contract._types import Buffer
from ..contract.options import Choice
from ..runtime import machine

_SMALLEST = 64 << 10  # bytes
_AMPLE = 8 << 30  # bytes of memory
_GRANULE = 2 << 20  # bytes: a huge page
_BUFFERS = 1 << 30  # bytes: what storage of 10 GB/s delivers in 100 ms, longer than a read takes


Fence: TypeAlias = Callable[[], Callable[[], None]]
"""Marks what has been queued to read a buffer; its result blocks until that is done."""


def buffer_bytes(memory: int | None) -> Choice[int]:
    """Return the most bytes of batches for a reader, where `memory` is free; None: unknown."""
    if memory is None or memory >= 8 * _BUFFERS:
        return Choice(_BUFFERS, "an eighth of the free memory is more, or unknown")
    return Choice(memory // 8, f"an eighth of the free memory, {machine.gigabytes(memory)}")


@dataclass(slots=True, eq=False)
class Room:
    """How many batches a reader reads ahead and keeps; those that DALI or the user hold are theirs.

    Several small batches that are read at once count as one.

    Attributes:
        limit: the most bytes, and the reason.
        depth: the most batches to read ahead.
        memory: the bytes that the process may use; None: unknown, or not to be looked at.
        held: how many batches DALI's queue, or the user, holds.
        largest: the bytes of the largest batch so far; 0: no size is known.
        short: True if the memory has no room for the batches that are `needed`.
        ahead: the number of batches to read ahead; at least one unless memory is `short`.
        now: the same, but at most one while no size is known.
        spare: how many more fit, beside those read ahead and the one that is delivered.
    """

    limit: Choice[int]
    depth: int
    memory: int | None = None
    held: int = 0
    largest: int = field(default=0, init=False)
    short: bool = field(init=False)
    ahead: int = field(init=False)
    now: int = field(init=False)
    spare: int = field(init=False)

    def __post_init__(self) -> None:
        self.note(0)

    def note(self, nbytes: int) -> None:
        """Learn the size of a batch."""
        self.largest = max(self.largest, nbytes)
        fit = self.limit.value // max(self.largest, 1) - 1
        self.short = self.memory is not None and self.needed > self.memory
        self.ahead = 0 if self.short else min(self.depth, max(fit, 1))
        is_ample = self.memory is None or self.memory > _AMPLE
        self.now = self.ahead if self.largest else int(is_ample)
        self.spare = 0 if self.short else max(fit - self.ahead, 0)

    @property
    def needed(self) -> int:
        """The bytes of a batch that is read, one that is delivered, those held, and their copies.

        DALI copies what leaves a pipeline undecoded.
        """
        return (2 + 2 * self.held) * self.largest

    @property
    def shortage(self) -> str:
        """What memory is `short` of, for messages."""
        return f"may need {self.needed:,} bytes, and {self.memory:,} are free"


def make_room(depth: int, nbytes: int | None, held: int) -> Room:
    """Make the room for `depth` batches, of at most `nbytes` bytes.

    None: of `buffer_bytes()`, and none where the memory has no room beside those `held`.
    """
    if nbytes is not None:
        return Room(Choice(nbytes, "as given"), depth, None, held)
    memory = machine.cache_memory()
    return Room(buffer_bytes(memory), depth, memory, held)


class Lease(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """A leased buffer: 1-D uint8. Every slice keeps the lease alive.

    The class is a subclass because numpy collapses chains of views: the base of a slice of a slice
    is the first array of *another type*. Slices of a plain view would refer to the arena, not the
    lease.
    """


class _Loan(weakref.ref[Any]):
    """A reference to a lease, appended to the idle buffers when the lease dies."""

    arena: Buffer


class BufferPool:
    """Reused buffers: the page faults of a new buffer would slow every batch down.

    There are never more buffers than were leased at the same time. Each has room for the largest
    batch so far; untouched pages use no memory. Idle buffers for which the reader has no
    room are freed.

    Attributes:
        room: learns the sizes of batches.
    """

    def __init__(
        self, allocate: Callable[[int], Buffer], room: Room, fence: Fence | None = None
    ) -> None:
        """Make an empty pool. `allocate(nbytes)` returns a new buffer: `Reader.allocate`.

        A `fence` is for memory that a GPU may still read when its lease ends. The fence is called
        then, in any thread, and its result before the buffer is leased again.
        """
        self._allocate = allocate
        self.room = room
        self._fence = fence
        self._capacity = 0
        # A deque, because its operations are atomic. A lock could deadlock: a lease may die in any
        # thread, also in this one, when the garbage collector runs inside of the pool.
        self._idle: deque[_Loan | tuple[Buffer, Callable[[], None]]] = deque()
        self._lent: dict[int, _Loan] = {}  # by id; also those that are idle

    def lease(self, nbytes: int) -> Buffer:
        """Lease at least `nbytes`. The buffer still contains bytes of an earlier batch."""
        if nbytes > self.room.largest:
            self.room.note(nbytes)
        arena: Any = self._take(nbytes)
        self._keep(-(-self.room.spare // 2))  # the other half is for `BatchStream.recent`
        lease: Buffer = arena.view(Lease) if isinstance(arena, np.ndarray) else arena[:]
        if self._fence is None:
            # The callback is C code. One in Python would lose a Ctrl-C in the main thread.
            loan = _Loan(lease, self._idle.append)
            loan.arena = arena
            # A weak reference that has died itself calls nobody.
            self._lent[id(loan)] = loan
        else:
            finalize: Any = weakref.finalize
            # Not at exit: nobody will lease the buffer again, and CUDA may be shut down.
            finalize(lease, _put_back, self._idle.append, arena, self._fence).atexit = False
        return lease

    def clear(self) -> None:
        """Free the buffers that are not leased."""
        self._idle.clear()
        self._lent.clear()

    def _keep(self, most: int) -> None:
        with contextlib.suppress(IndexError):  # another lane has taken the last one
            while len(self._idle) > most:
                idle = self._idle.popleft()
                if isinstance(idle, _Loan):
                    del self._lent[id(idle)]

    def _take(self, nbytes: int) -> Buffer:
        with contextlib.suppress(IndexError):  # none is idle
            while True:
                # No look before: another lane could take the last one in between.
                idle = self._idle.pop()
                if isinstance(idle, _Loan):
                    arena, wait = self._lent.pop(id(idle)).arena, None
                else:
                    arena, wait = idle
                if arena.nbytes >= nbytes:  # drop buffers that are too small
                    if wait is not None:
                        wait()
                    return arena
        capacity = self._capacity  # read once: another lane may change it
        if nbytes > capacity:
            # An eighth more, so that a slightly larger batch does not replace all buffers again.
            wanted = nbytes + nbytes // 8
            # Less than a huge page for small batches: the kernel would clear all of it.
            granule = min(max(1 << (wanted - 1).bit_length(), _SMALLEST), _GRANULE)
            capacity = -(-wanted // granule) * granule
            self._capacity = capacity
        return self._allocate(capacity)


def _put_back(append: Callable[[tuple[Buffer, Any]], None], arena: Buffer, fence: Fence) -> None:
    # If no fence can be set, CUDA is shutting down or broken: the buffer is freed, which waits.
    with contextlib.suppress(Exception):
        append((arena, fence()))
