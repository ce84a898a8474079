"""How many requests are sent at once, by the response times of the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from ...runtime.histogram import Times

_FEW, _QUICK = 16, 0.01  # requests: more do not help if a store responds within so many seconds


class Pace:
    """Permits for requests, and the times that these took; for any number of threads.

    Attributes:
        most: permits.
        few: as many as an engine uses until the store is slow.
        times: how long each "request", "retry" and "hedge" took, and the store told to be "paused".
    """

    def __init__(self, most: int) -> None:
        self.most, self.few, self.times = most, min(_FEW, most), Times()
        self._permits = SimpleQueue[None]()
        self._wakes = deque[Callable[[], None]]()  # at most one
        self._rest = 0.0  # until when
        self._recent: deque[float] = deque(maxlen=_FEW)  # seconds; empty before the first answer
        self.end()

    @property
    def reached(self) -> bool:
        """True once the store has answered."""
        return bool(self._recent)

    @property
    def resting(self) -> float:
        """Seconds in which no request begins."""
        return max(self._rest - time.monotonic(), 0.0)

    def rest(self, seconds: float) -> None:
        """Begin no request for some seconds, as the store has told."""
        if (more := seconds - self.resting) > 0:
            self._rest = time.monotonic() + seconds
            self.note("paused", more)

    def take(self) -> None:
        """Wait for a permit."""
        self._permits.get()

    def try_take(self, wake: Callable[[], None]) -> bool:
        """Take a permit, if there is one; otherwise, `wake` is called once there is."""
        for waiting in ((), (wake,)):  # twice, as a permit may be given back meanwhile
            self._wakes.clear()
            self._wakes.extend(waiting)
            try:
                self._permits.get_nowait()
                return True
            except Empty:
                pass
        return False

    def give_back(self) -> None:
        self._permits.put(None)
        with suppress(IndexError):  # one call of C: another thread's wake may come meanwhile
            self._wakes.pop()()

    def end(self) -> None:
        """Give so many permits that nobody waits any more."""
        for _ in range(self.most):
            self._permits.put(None)

    def note(self, kind: str, seconds: float) -> None:
        """Note a time; those of a "request", which was answered, are response times."""
        if kind == "request":
            self._recent.append(seconds)
        self.times.record(threading.get_ident(), {kind: round(1e9 * seconds)})

    def grown(self, count: int) -> int:
        """One more than `count` requests if the store, not a processor, is slow; or the same."""
        recent = sorted(self._recent.copy())
        slow = bool(recent) and recent[len(recent) // 2] > _QUICK
        return count + (slow and count < self.most)
