"""The observer of a reader that users get: statistics, the report, and warnings of stalls."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sized
from numbers import Real
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..contract.reader import Reader
from ..contract.stages import enter
from ..reading.buffers import Room
from ..reading.slots import Observer
from ..runtime.profiling import show_name
from . import stalls
from .activity import Activities
from .tally import OPEN, Tally, Watched

if TYPE_CHECKING:
    from .statistics import ReaderStatistics


class Observed(Observer):
    """Measures a reader; its threads get its name, for debuggers and top.

    Attributes:
        tally: the counters, also after the reader is closed; None before it reads.
    """

    def __init__(self, name: str, shown: str, stall_after: float | None = None) -> None:
        """`name` is the reader's in figures, `shown` in reports; `stall_after` as the argument."""
        self._name, self._shown, self._stall_after = name, shown, stall_after
        self._watched: Watched | None = None
        self._remove: Callable[[], object] = lambda: None
        self._asked = math.inf
        self.tally: Tally | None = None

    @property
    def statistics(self) -> ReaderStatistics:
        """The figures of the batches until now; zeros before the reader reads."""
        from .statistics import ReaderStatistics

        return ReaderStatistics().of(self) if self.tally is None else self.tally.statistics

    def reset(self) -> None:
        """Count from zero, as a reader does that has not begun."""
        if self.tally is not None:
            self.tally.reset()

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """See `Observer`; the reader is watched until `forget()`."""
        self._watched = watched = stalls.WATCHDOG.watch(self._shown, self._stall_after)
        try:
            with watched.opening():
                yield
        except BaseException:
            self.forget()
            raise

    def begin(self, reader: Reader, room: Room, bad: Sized) -> None:
        """See `Observer`."""
        self.end()  # an earlier beginning, which a Ctrl-C ended
        activities = Activities(self._name, reader.lanes)
        choices = {name: str(choice) for name, choice in reader.choices.items()}
        self.tally = Tally(activities, room, bad, reader.times, choices)
        self._lanes, self._asker = activities.lanes, activities.asker
        self._remove = OPEN.add(self.tally)
        if self._watched is not None:
            self._watched.read(self.tally)

    def be_lane(self, lane: int) -> None:
        """See `Observer`."""
        show_name()
        self._lanes[lane].adopt()

    def ask(self, index: int) -> None:
        """See `Observer`."""
        self._asked = perf_counter()
        self._asker.adopt()
        self._asker.begin(index)
        enter("waiting")

    def answer(self, ready: int, nbytes: int | None) -> None:
        """See `Observer`."""
        assert self.tally is not None
        waited = max(perf_counter() - self._asked, 0.0)  # 0 if a Ctrl-C came before `_asked`
        self._asked = math.inf
        self.tally.waited += waited
        self._asker.release()
        self._asker.leave(waited)
        if nbytes is not None:
            self.tally.count(ready, nbytes)

    def end(self) -> None:
        """See `Observer`."""
        self._remove()  # its name may soon be another's

    def forget(self) -> None:
        """See `Observer`."""
        self.end()
        if self._watched is not None:
            stalls.WATCHDOG.forget(self._watched)


def observed(observer: Observer) -> Observed:
    """Return the observer of a reader that has figures; every reader of a user has them."""
    assert isinstance(observer, Observed)
    return observer


def stall_seconds(value: Any) -> float | None:
    """Check the argument stall_after; raises as `prepare()`."""
    if value is None:
        return None
    if not isinstance(value, bool) and isinstance(value, Real):
        with contextlib.suppress(OverflowError):  # of float()
            if 0 < (seconds := float(value)) < math.inf:
                return seconds
    what = "stall_after must be a number of seconds above 0, or None for no warnings"
    raise ValueError(f"{what}, not {value!r:.80}")
