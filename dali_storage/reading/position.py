"""Where a stream of batches is."""

import operator
from collections import deque
from collections.abc import Callable
from functools import partial

_HELD = 2  # batches that an iterator of DALI may have taken for itself


def next_index(index: int) -> int:
    """The batch after a batch, unless batches are left out."""
    return index + 1


class Position:
    """The index of the next batch of a stream, and of those on their way to the user.

    Attributes:
        successor: the index of the batch after a batch, by default the next one. What is left out
            is not read. May be set at any time; must be a pure function.
    """

    def __init__(self) -> None:
        """At the first batch."""
        self.successor: Callable[[int], int] = next_index
        # A deque, because `advance()` must be C code.
        self._indices = deque([0])

    @property
    def next(self) -> int:
        """The index of the next batch, counted from 0 across epochs; `seek()` changes it."""
        return self._indices[-1]

    def seek(self, index: int) -> None:
        """Make this the next batch that DALI takes, whatever was to follow.

        Batches that DALI has taken and not yet delivered still come first. What was read ahead is
        dropped, unless the new position needs it.

        Raises:
            ValueError: the index is negative.
        """
        if operator.index(index) < 0:
            raise ValueError(f"the position of a reader must be at least 0, not {index}")
        self._indices[-1] = operator.index(index)

    def advance(self, pending: int) -> Callable[[], object]:
        """What moves on to the successor when it is called: C code, which no Ctrl-C interrupts.

        Only the indices of the last `pending` batches, and of those that an iterator may have taken
        for itself, stay known, for `delivered()`.
        """
        while len(self._indices) > pending + 1 + _HELD:
            self._indices.popleft()
        return partial(self._indices.append, self.successor(self.next))

    def delivered(self, pending: int) -> int:
        """The index of the next batch for the user, who has not got the last `pending` ones."""
        return self._indices[-1 - pending]
