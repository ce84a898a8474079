"""The activity of each thread of a reader: its stage, since when, and how long stages took.

A stage that a thread enters is one tuple in a list. The list is summed up once a batch, so this
costs a hot reader less than one percent.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from dataclasses import dataclass
from time import monotonic_ns

from ..contract.stages import Describe, Watch, observed_by
from ..runtime.histogram import Times
from ..runtime.profiling import Log, make_log

_SLOWEST = 5
_WAITS = frozenset({"queued", "waiting"})  # for other threads, so no sample is slow by them


@dataclass(frozen=True, slots=True, order=True)
class SlowBatch:
    """A slow batch.

    Attributes:
        seconds: the time of its longest stage.
        stage: this stage.
        name: the first sample and the number of the others, of all batches that were read at once.
    """

    seconds: float
    stage: str
    name: str


class Activity:
    """The work of one thread. Only this thread changes the object; all others may read it.

    Attributes:
        name: the names of the reader and the lane, such as "Reader:0".
        thread: the kernel's number of the thread, None before it has begun.
        batch: the number of the batch under way; None if there is none.
        log: the stages of this batch until now, each with `time.monotonic_ns()` of its beginning.
        described_by: describes the work; see `describe()`.
        slow: the batches that took longest, a heap.
    """

    def __init__(self, name: str, times: Times, number: int) -> None:
        """Make the activity of the thread with this `number` in `times`."""
        self.name = name
        self.thread: int | None = None
        self.batch: int | None = None
        self.log: Log = make_log()
        self.described_by: Describe | None = None
        self.slow: list[SlowBatch] = []
        self._times = times
        self._number = number
        self._outer: Watch | None = None
        self._count = 1  # batches

    @property
    def current(self) -> tuple[str, int] | None:
        """The stage and when it began (`time.monotonic_ns()`); None between two batches."""
        try:
            return self.log[-1]
        except IndexError:  # it ended meanwhile
            return None

    def describe(self) -> str:
        """Return a description of the work; empty if unknown."""
        return _described(self.described_by)

    def adopt(self) -> None:
        """Make this the activity of the calling thread."""
        self.thread = threading.get_native_id()
        self._outer = observed_by(self)

    def release(self) -> None:
        """End the activity of the calling thread; an outer activity goes on."""
        observed_by(self._outer)
        self._outer = None

    def begin(self, batch: int, count: int = 1) -> None:
        """Begin a batch, or `count` at once; forget the rest of an interrupted one."""
        self._end()
        self.batch, self._count = batch, count

    def note(self, describe: Describe | None) -> Describe | None:
        """Set the description of the work; return the previous one."""
        before, self.described_by = self.described_by, describe
        return before

    def leave(self, waited: float | None = None) -> None:
        """End the batch, and count the time of each stage. `waited`: the seconds of "waiting".

        Batches that were read at once have equal shares of it.
        """
        now, describe = monotonic_ns(), self.described_by
        sums: dict[str, int] = {}
        for stage, began in reversed(self.log):
            if stage != "waiting":  # other stages may be part of it
                sums[stage] = sums.get(stage, 0) + now - began
            now = began
        self._end()
        longest, slowest = 0, ""
        for stage, ns in sums.items():
            ns //= self._count
            self._times.record(self._number, stage, ns, self._count)
            if ns > longest and stage not in _WAITS:
                longest, slowest = ns, stage
        if waited is not None:
            self._times.record(self._number, "waiting", round(1e9 * waited))
        # Looked up once: `reset()` may replace the list in another thread.
        slow, seconds = self.slow, longest / 1e9
        if longest and (len(slow) < _SLOWEST or seconds > slow[0].seconds):
            heapq.heappush(slow, SlowBatch(seconds, slowest, _described(describe)))
            if len(slow) > _SLOWEST:
                heapq.heappop(slow)

    def _end(self) -> None:
        self.batch = None
        self.log.clear()
        self.described_by = None


class Activities:
    """The activities of a reader's threads, and the times of their stages.

    They outlive the reader, and do not keep it alive.

    Attributes:
        name: the reader's name.
        times: histograms of the stages, in nanoseconds.
        lanes: the activities of the lanes.
        asker: the activity of the thread that asks for batches.
    """

    def __init__(self, name: str, lanes: int) -> None:
        self.name = name
        self.times = Times()
        self.lanes = [Activity(f"{name}:{lane}", self.times, lane) for lane in range(lanes)]
        self.asker = Activity(f"{name}:asking", self.times, lanes)

    def slowest(self) -> list[SlowBatch]:
        """The five batches that took longest, the slowest first."""
        found = [slow for activity in (*self.lanes, self.asker) for slow in activity.slow.copy()]
        return heapq.nlargest(_SLOWEST, found)

    def reset(self) -> None:
        """Forget all durations."""
        self.times.reset()
        for activity in (*self.lanes, self.asker):
            # A new list, because the thread may be changing the old one.
            activity.slow = []


def _described(describe: Describe | None) -> str:
    with contextlib.suppress(Exception):  # the reader may be closed meanwhile
        return describe() if describe is not None else ""
    return ""
