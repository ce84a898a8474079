"""The counters of a reader: what was given to DALI, how long each stage took, and for whom."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ..contract.reader import Durations
from ..reading.buffers import Room
from ..runtime.histogram import Histogram, Times
from .activity import Activities, Activity

if TYPE_CHECKING:
    from .statistics import ReaderStatistics


class Tally:
    """The counters of a reader. They outlive the reader, and do not keep it alive.

    Attributes:
        activities: one for each of its threads.
        waited: seconds that the pipeline waited in all; `reset()` leaves it.
    """

    def __init__(
        self,
        activities: Activities,
        room: Room,
        bad: Sized = (),
        requests: Durations | None = None,
        choices: Mapping[str, str] | None = None,
    ) -> None:
        """`bad`: the bad samples. `requests` and `choices`: the backend's own, as it names them."""
        self.activities = activities
        self.waited = 0.0
        self._room, self._bad, self._requests = room, bad, requests
        self._choices = dict(choices or {})
        self._reset_at, self._since = 0.0, time.monotonic()
        self._batches = self._bytes = 0
        self._ready = [0] * (room.depth + 1)

    def count(self, ready: int, nbytes: int) -> None:
        """Count a batch that was given."""
        self._ready[min(ready, self._room.depth)] += 1  # one more after a Ctrl-C
        self._bytes += nbytes
        self._batches += 1

    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms of nanoseconds, by stage."""
        own = self.activities.times.merged()
        return own | self._requests.merged() if self._requests is not None else own

    def reset(self) -> None:
        """Count from zero."""
        # Not set to 0, because the asking thread may be adding to it.
        self._reset_at, self._since = self.waited, time.monotonic()
        self._batches = self._bytes = 0
        self._ready = [0] * len(self._ready)
        self.activities.reset()
        if self._requests is not None:
            self._requests.reset()

    def _limits(self) -> dict[str, str]:
        room, ahead = self._room, self._room.ahead
        found = {"buffer_bytes": str(room.limit)}
        if ahead < room.depth:
            why = f"for {room.depth} batches of {room.largest:,} bytes, buffer_bytes is too small"
            found["depth"] = f"{ahead} ({f'batches {room.shortage}' if room.short else why})"
        return found

    @property
    def statistics(self) -> ReaderStatistics:
        """The figures until now."""
        from .statistics import ReaderStatistics, StageTimes

        counts = self._ready.copy()
        return ReaderStatistics(
            batches=self._batches,
            bytes=self._bytes,
            wait_seconds=self.waited - self._reset_at,
            depth=self._room.ahead,
            ready=sum(n * count for n, count in enumerate(counts)) / max(self._batches, 1),
            replaced=len(self._bad),
            times={name: StageTimes.of(it) for name, it in sorted(self.histograms().items())},
            ready_counts=tuple(counts) if self._batches else (),
            slowest=tuple(self.activities.slowest()),
            choices=self._choices | self._limits(),
            seconds=time.monotonic() - self._since,
        ).of(self)


@dataclass(slots=True, eq=False)
class Watched:
    """An open or opening reader for the watchdog and reports; keeps nothing of the reader alive.

    Attributes:
        name: the reader's name, unique among open readers.
        stall_after: the argument of the readers.
        activities: one for each thread of the reader.
        tally: counts delivered batches; None before the lanes begin.
        crossed: for each thread, when its stage began, and how many of `_TIMES` it had lasted at
            the last look.
        warned: when the last warning was, by the watchdog's clock; None before.
    """

    name: str
    stall_after: float | None
    activities: Sequence[Activity] = ()
    tally: Tally | None = None
    crossed: dict[str, tuple[int, int]] = field(default_factory=dict, init=False)
    warned: int | None = field(default=None, init=False)

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """The calling thread opens the reader in the block."""
        activity = Activity("opening", Times(), 0)
        self.activities = [activity]
        activity.adopt()
        try:
            yield
        finally:
            activity.leave()
            activity.release()
            self.activities = ()

    def read(self, tally: Tally) -> None:
        """Watch the lanes from now on, and the thread that asks for batches."""
        self.tally = tally
        self.activities = [*tally.activities.lanes, tally.activities.asker]


class OpenReaders:
    """The readers that read, by unique names; keeps none of them."""

    def __init__(self) -> None:
        self._of: dict[str, weakref.ref[Tally]] = {}

    def add(self, tally: Tally) -> Callable[[], object]:
        """Add a reader, until it is gone or what is returned is called."""
        name, number = tally.activities.name, 1
        unique = name
        while True:
            remove = partial(self._remove, unique)
            reference = weakref.ref(tally, remove)
            # One call of C, so two readers never get one name, and no lock is needed.
            if self._of.setdefault(unique, reference) is reference:
                return partial(remove, reference)
            number += 1
            unique = f"{name}-{number}"

    def _remove(self, name: str, reference: weakref.ref[Tally]) -> None:
        # A closed reader that dies later must not remove the next one of its name.
        if self._of.get(name) is reference:
            self._of.pop(name, None)

    def items(self) -> list[tuple[str, Tally]]:
        """The names and the counters, in the order in which the readers began to read."""
        found = [(name, reference()) for name, reference in self._of.copy().items()]
        return [(name, tally) for name, tally in found if tally is not None]

    def clear(self) -> None:
        """Forget all readers; in a fork, which has none of their threads."""
        self._of.clear()


OPEN = OpenReaders()
"""The open readers of this process."""

os.register_at_fork(after_in_child=OPEN.clear)


def metrics(readers: OpenReaders = OPEN) -> dict[str, float]:
    """Return the figures of all open readers of this process, for TensorBoard, W&B and MLflow.

    Returns:
        Numbers by names such as "dali_storage/Reader/waiting_p99_seconds". Readers of the same name
        are numbered, as in "Reader-2".
    """
    found: dict[str, float] = {}
    for reader, tally in readers.items():
        its, start = tally.statistics, f"dali_storage/{reader}"
        for name in ("batches", "bytes", "wait_seconds", "depth", "ready", "replaced"):
            found[f"{start}/{name}"] = float(getattr(its, name))
        for stage, times in its.times.items():
            found[f"{start}/{stage}_count"] = float(times.count)
            found[f"{start}/{stage}_total_seconds"] = times.total
            for name in ("p50", "p95", "p99", "max"):
                found[f"{start}/{stage}_{name}_seconds"] = getattr(times, name)
    return found
