"""The observer of a reader that users get: it counts and times, and a thread looks for stalls.

All that only a question or a warning needs is in the other modules, which are loaded then.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from queue import Empty, SimpleQueue
from time import monotonic_ns
from typing import TYPE_CHECKING, TypeAlias

from ..contract.reader import Durations, Reader
from ..contract.stages import Activity, Log, mine
from ..reading.buffers import Room
from ..reading.lanes import be_lane
from ..reading.slots import Observer
from ..runtime.histogram import Histogram, Times
from ..runtime.machine import show_name

if TYPE_CHECKING:
    from .stalls import Stall

Slow: TypeAlias = tuple[float, str, str]
"""A slow batch: the seconds of its longest stage, this stage, and its samples."""

_LOGGER = logging.getLogger("dali_storage")
SLOWEST = 5  # batches
_LATE = 5 * 10**9  # ns: no machine is that busy, so the process was stopped
_SHORTEST, _LONGEST = 0.001, 1.0  # seconds between two looks; a stop of the process is seen then


class Timed(Activity):
    """The activity of a thread, with the times of its stages. A block of `with` is a lane's batch.

    Attributes:
        count: how many batches, of equal shares, the block reads at once.
        slow: the slowest batches, a heap.
    """

    __slots__ = ("_number", "_times", "count", "slow")

    def __init__(self, name: str, times: Times, number: int) -> None:
        """Count in `times`, as the thread with this `number`."""
        super().__init__(name, _make_log())
        self.count, self.slow = 1, list[Slow]()
        self._times, self._number = times, number

    def adopt(self) -> None:
        """Make the calling thread this one."""
        self.native_id = threading.get_native_id()
        mine.activity = self

    def __enter__(self) -> None:
        """Nothing: "queued" has begun before."""

    def __exit__(self, *_: object) -> None:
        self.sum_up()

    def sum_up(self, waited: int | None = None) -> None:
        """End the batch, and count the time of each stage; `waited`: the nanoseconds of a wait."""
        now, log, longest = monotonic_ns(), self.log, 0
        sums = {} if waited is None else {"waiting": waited}
        for stage, began in reversed(log):
            if stage != "waiting":  # other stages may be part of it
                sums[stage] = ns = sums.get(stage, 0) + now - began
                if ns > longest and stage != "queued":  # for other threads, as a wait
                    longest, slowest = ns, stage
            now = began
        log.clear()
        self._times.record(self._number, sums, self.count)
        # Looked up once: `reset()` may replace the list in another thread.
        slow, seconds = self.slow, longest / self.count / 1e9
        if longest and (len(slow) < SLOWEST or seconds > slow[0][0]):
            heapq.heappush(slow, (seconds, slowest, self.described))
            if len(slow) > SLOWEST:
                heapq.heappop(slow)
        self.batch = self.describe = None


class Meter(Observer):
    """Counts and times what a reader does. May outlive the reader, and does not keep it alive.

    A block of `with` is the wait for a batch.

    Attributes:
        name: the reader's name in figures.
        key: its name among open readers, with a number if several have its name.
        shown: its name in reports.
        stall_after: the argument of the readers.
        threads: the lanes and, last, the thread that asks; or the thread that opens the reader.
        times: histograms of the stages, in nanoseconds.
        requests: the backend's own histograms; None: there are none.
        first_wait: nanoseconds of the first wait since `reset()`.
        waited: nanoseconds that the pipeline waited in all; `reset()` leaves it.
        batches: the batches that were given to DALI.
        nbytes: their bytes.
        ready: how many of them were asked for when 0, 1, 2 and so on batches had been read.
        since: when counting began, in nanoseconds.
        room: how far the reader reads ahead; None before it reads.
        bad: its bad samples.
        choices: what the backend chose; it may change.
        stall: the latest warnings; None before the first one.
    """

    def __init__(self, name: str, shown: str, stall_after: float | None = None) -> None:
        """See the attributes."""
        self.name, self.key, self.shown, self.stall_after = name, name, shown, stall_after
        self.threads: list[Timed] = []
        self.times, self.waited = Times(), 0
        self.requests: Durations | None = None
        self.room: Room | None = None
        self.bad: Sized = ()
        self.choices: Mapping[str, object] = {}
        self.stall: Stall | None = None
        self.reset()

    def reset(self) -> None:
        """Count from zero."""
        self.times.reset()
        if self.requests is not None:
            self.requests.reset()
        for thread in self.threads:
            thread.slow = []  # a new list: the thread may be changing the old one
        self.batches, self.nbytes, self.first_wait, self.since = 0, 0, 0, monotonic_ns()
        self.ready = [0] * (self.room.depth + 1 if self.room else 0)

    @property
    def title(self) -> str:
        """Its name in reports, with that in figures if several open readers have its name."""
        return self.shown if self.key == self.name else f"{self.shown} ({self.key})"

    def histograms(self) -> dict[str, Histogram]:
        """Return the histograms of nanoseconds, by stage."""
        requests = {} if self.requests is None else self.requests.merged()
        return self.times.merged() | requests

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """See `Observer`; the reader is open until `closed()`."""
        thread, outer = Timed("opening", Times(), 0), mine.activity
        try:
            self.threads = [thread]
            thread.adopt()
            OPEN.add(self)
            yield
        except BaseException:  # also a Ctrl-C in the lines above: nobody would close it
            self.closed()
            raise
        finally:
            self.threads, mine.activity = [], outer
            thread.sum_up()

    def begin(self, reader: Reader, room: Room, bad: Sized) -> None:
        """See `Observer`."""
        names = enumerate([*range(reader.lanes), "asking"])
        self.threads = [Timed(f"{self.name}:{it}", self.times, number) for number, it in names]
        self.choices = reader.choices
        self.room, self.bad = room, bad
        self.reset()
        self.requests = reader.times

    def be_lane(self, lane: int) -> None:
        """See `Observer`; the thread gets the reader's name, for debuggers and top."""
        show_name()
        self.threads[lane].adopt()

    def reading(self, lane: int, index: int, count: int) -> Timed:
        """See `Observer`."""
        thread = self.threads[lane]
        thread.batch, thread.count = index, count
        return thread

    def waiting(self, index: int, ready: int) -> Meter:
        """See `Observer`."""
        self._index, self._ready = index, ready
        return self

    def __enter__(self) -> list[int]:
        self._given, self._outer, self._asked = list[int](), mine.activity, monotonic_ns()
        asker = self.threads[-1]
        try:
            asker.log.clear()  # of a wait that a Ctrl-C ended
            asker.batch = self._index
            asker.adopt()
            asker.log.append(("waiting", self._asked))
        except BaseException:  # a Ctrl-C: the block is not entered
            self.__exit__()
            raise
        return self._given

    def __exit__(self, *_: object) -> None:
        mine.activity = self._outer
        waited = monotonic_ns() - self._asked
        self.threads[-1].sum_up(waited)
        self.waited += waited
        if not self.batches:
            self.first_wait = waited
        for nbytes in self._given:
            self.ready[min(self._ready, len(self.ready) - 1)] += 1  # one more after a Ctrl-C
            self.nbytes += nbytes
            self.batches += 1

    def closed(self) -> None:
        """See `Observer`."""
        OPEN.remove(self)


class OpenReaders:
    """The open readers, and the thread that looks for stalls while one has a `stall_after`.

    Attributes:
        readers: by unique names, in the order in which they were opened.
    """

    def __init__(
        self,
        warn: Callable[[str], object] = _LOGGER.warning,
        clock: Callable[[], int] = monotonic_ns,
    ) -> None:
        """`warn` is given each warning, in the thread. `clock`: of the stages."""
        self._warn, self._clock = warn, clock
        self.reset()

    def reset(self) -> None:
        """Forget all readers and the thread; in a fork, which has neither."""
        # Changed and copied by single calls of C, without a lock: a signal handler calls `report()`
        # and the garbage collector `remove()`, also in a thread that would be holding the lock.
        self.readers: dict[str, Meter] = {}
        self._lock = threading.Lock()  # of the thread's beginning and end
        self._bell = SimpleQueue[None]()
        self._thread: threading.Thread | None = None
        self._planned = math.inf  # when the thread looks again
        self._resumed = 0  # when the process was last seen to go on after it was stopped

    def add(self, meter: Meter) -> None:
        """Add a reader, until `remove()`. If no thread can be started, there are no warnings."""
        meter.key, number = meter.name, 1
        while self.readers.setdefault(meter.key, meter) is not meter:
            number += 1
            meter.key = f"{meter.name}-{number}"
        if meter.stall_after is None:
            return
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                if meter.stall_after < _LONGEST:  # else it looks soon enough
                    self._bell.put(None)
                return
            # A daemon: nothing waits for it at the end of the program.
            name = "dali_storage:watchdog"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # there are too many
                self._thread = None

    def remove(self, meter: Meter) -> None:
        """Remove a reader; twice is fine."""
        if self.readers.get(meter.key) is meter:
            self.readers.pop(meter.key, None)
        if self._thread and not self._watched():
            self._bell.put(None)

    def look(self) -> float:
        """Warn of hanging readers. Return the seconds until the next look."""
        now, delay = self._clock(), _LONGEST
        if now > self._planned + _LATE:
            self._resumed = now  # nothing could go on meanwhile, so all stages begin now
        for meter, stall_after in self._watched():
            try:
                delay = min(delay, self._look_at(meter, stall_after, now))
            # One reader must not end the watch of the others.
            except Exception as error:
                with contextlib.suppress(Exception):
                    self._warn(f"{meter.title} cannot be watched: {error!r}")
        delay = max(_SHORTEST, delay)
        self._planned = now + 1e9 * delay
        return delay

    def _look_at(self, meter: Meter, stall_after: float, now: int) -> float:
        """Return the seconds until a thread may have been in one stage for too long."""
        begun = [began for thread in meter.threads for _, began in thread.log[-1:]]
        age = (now - max(min(begun, default=now), self._resumed)) / 1e9
        if age < stall_after:
            return stall_after - age
        from .stalls import Stall

        meter.stall = meter.stall or Stall(stall_after, self._warn)
        return meter.stall.look(meter.title, meter.threads, now, self._resumed)

    def _watched(self) -> list[tuple[Meter, float]]:
        readers = self.readers.copy().values()
        return [(it, it.stall_after) for it in readers if it.stall_after is not None]

    def _run(self) -> None:
        # A reader that is collected here is closed elsewhere: closing may hang.
        be_lane()
        while self._goes_on():
            with contextlib.suppress(Empty):
                self._bell.get(timeout=self.look())

    def _goes_on(self) -> bool:
        """Return False if the thread ends: Python warns of a fork of a process with threads."""
        with self._lock:
            if not self._watched():
                self._thread, self._planned = None, math.inf
            return self._thread is not None


OPEN = OpenReaders()
"""Of this process."""

os.register_at_fork(after_in_child=OPEN.reset)


def _make_log() -> Log:
    """A list of stages; one that makes NVTX ranges of them if a tool is attached."""
    try:
        import nvtx

        domain = nvtx.get_domain("dali_storage")
        if domain.get_event_attributes("reading") is None:  # of a dummy: there is no tool
            return []
        from ..runtime.profiling import NvtxLog

        return NvtxLog(domain)
    except Exception:  # not installed, or of another interface: ranges are not worth an error
        return []


def meter_of(observer: Observer) -> Meter:
    """Return the observer of a reader that has figures; every reader of a user has them."""
    assert isinstance(observer, Meter)
    return observer
