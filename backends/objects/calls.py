"""What a lane waits for, and who requests it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ...runtime import waiting

if TYPE_CHECKING:
    from .store import Store

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_TOGETHER = 16  # answers; a lane is not woken for each


class Call(Generic[Item, Answer]):
    """The items of one lane, and their answers. Containers change by single calls of C only.

    Attributes:
        ask: requests an item, and returns the answer.
        items: n items.
        places: n places for the bytes of items, for a client that writes to these itself.
        then: by positions, what gets True on the first answer to an item, or False on an error.
    """

    def __init__(
        self,
        ask: Callable[[Item], Answer],
        items: Sequence[Item],
        places: Sequence[memoryview] = (),
    ) -> None:
        self.ask, self.items, self.places = ask, items, places
        self.then: dict[int, Callable[[bool], object]] = {}
        self._pending = dict.fromkeys(range(len(items)))  # positions without an answer
        self._began: dict[int, float] = {}  # first requests, of items that may be hedged
        self._answers: deque[tuple[int, Any]] = deque()
        self._bell = SimpleQueue[None]()  # rings for the lane

    # For engines, in any thread.

    def needs(self, position: int) -> bool:
        return position in self._pending

    def begin(self, position: int) -> float:
        """Note that an item is requested now; return the time."""
        self._began[position] = now = time.monotonic()
        return now

    def pause(self, position: int) -> None:
        """Note that a request for an item must not be hedged: it waits for another answer."""
        self._began.pop(position, None)

    def answer(self, position: int, answer: Answer | BaseException | None) -> None:
        """Hand over an answer, an error, or None once the bytes are at their place.

        Does nothing if another request was faster, or the item is not needed any more.
        """
        self._began.pop(position, None)
        if self._pending.pop(position, self) is None:
            self._answers.append((position, answer))
            failed = isinstance(answer, BaseException)
            if then := self.then.pop(position, None):
                then(not failed)
            if failed or not self._pending or len(self._answers) >= _TOGETHER:
                self.ring()

    def ring(self) -> None:
        """Wake the lane."""
        self._bell.put(None)

    # For the lane.

    def wait(self, seconds: float | None) -> bool:
        """Wait until the lane is woken, or for some seconds; return False after these."""
        if seconds is None:
            waiting.take(self._bell)
            return True
        try:
            self._bell.get(timeout=seconds)
        except Empty:
            return False
        return True

    def arrived(self) -> Iterator[tuple[int, Any]]:
        """Take what has been handed over: positions, and answers or errors."""
        while self._answers:
            yield self._answers.popleft()

    def late(self, before: float, most: int) -> list[int]:
        """Return up to `most` needed positions requested before a time, each only once."""
        began = self._began.copy().items()
        late = [position for position, at in began if at <= before and self.needs(position)]
        del late[max(most, 0) :]
        for position in late:
            self._began.pop(position, None)
        return late

    def drop_behind(self, position: int) -> int:
        """Need no item behind this one any more; return how many were not answered."""
        behind = [other for other in list(self._pending) if other > position]
        return sum(self._pending.pop(other, self) is None for other in behind)

    def end(self) -> None:
        """Need nothing any more, and forget the places: an engine may keep the call."""
        self._pending.clear()
        self.places = ()

    def describe(self, describe: Callable[[Item], str]) -> str:
        """The first of the items that have no answer, and how many others there are."""
        positions = [*self._pending.copy()]
        if not positions:
            return ""
        first, others = describe(self.items[positions[0]]), len(positions) - 1
        return f"{first} and {others} more" if others else first


class Client(Protocol):
    """An engine beside `RequestThreads`, which writes bytes to their places itself."""

    def send(self, call: Call[Any, Any], positions: Iterable[int]) -> list[int]:
        """Request items of a call; return the positions of those left to the threads."""

    def drop(self, call: Call[Any, Any], position: int | None = None) -> None:
        """End all writes to the places of a call, or to one of them."""

    def target(self, url: bytes) -> Store | None:
        """The store whose empty key is what a URL redirects to, if that is known."""
