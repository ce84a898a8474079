"""The position in a stream of batches."""

import operator
from collections import deque
from collections.abc import Callable
from functools import partial

_UNCOUNTED = 64
"""Batches that an iterator may hold, and that DALI before 2.3 takes first, with separate queues."""


next_index: Callable[[int], int] = partial(operator.add, 1)
"""Returns the batch after a batch, unless batches are left out."""


class Position:
    """The index of the next batch of a stream, and of the batches on their way to the user.

    Attributes:
        successor: returns the index of the batch after a batch, by default the next one. Skipped
            batches are not read, and none after a batch that is its own successor. May be set at
            any time; must be a pure function.
    """

    def __init__(self) -> None:
        """Begin at the first batch."""
        self.successor: Callable[[int], int] = next_index
        # A deque, because `advance()` must be C code.
        self._indices = deque([0])

    @property
    def next(self) -> int:
        """The index of the next batch, counted from 0 across epochs; `seek()` changes the index."""
        return self._indices[-1]

    def seek(self, index: int) -> None:
        """Make this the next batch for DALI, in place of the planned successor.

        Batches that DALI already has and has not yet delivered still come first. Batches read ahead
        are dropped, unless the new position needs them.

        Raises:
            ValueError: the index is negative.
        """
        if operator.index(index) < 0:
            raise ValueError(f"the position of a reader must be at least 0, not {index}")
        self._indices[-1] = operator.index(index)

    def advance(self, pending: int) -> Callable[[], object]:
        """Return a function that moves on to the successor.

        Only the indices of the last `pending` batches and of a few more are kept.
        """
        while len(self._indices) > pending + _UNCOUNTED:
            self._indices.popleft()
        # C code, called together with the feeding: a Ctrl-C in between would repeat a batch.
        return partial(self._indices.append, self.successor(self.next))

    def delivered(self, pending: int) -> int:
        """Return the index of the user's next batch; the last `pending` batches are undelivered."""
        return self._indices[-1 - pending]

    def latest(self, pending: int) -> list[int]:
        """Return the index of the user's last batch, if any, and of the undelivered ones."""
        return [*self._indices][-2 - pending : -1]
