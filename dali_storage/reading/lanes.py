"""The reading threads: enough to keep the storage busy, but few at a time on a processor.

A lane that copies out of the page cache occupies a whole processor. More than a few such lanes
would not be faster: they would compete for the interpreter lock, and for the processors of DALI's
threads. A lane that blocks on a disk occupies no processor, so many such lanes are
better. Hence the *turns*: only a lane with a turn may occupy a processor. A lane keeps its turn
from batch to batch, in the same thread, and yields the turn before blocking.

The readers of one pipeline also share a *gate*: at most as many of their lanes as there are
processors may be past the gate. A thousand lanes competing for the interpreter lock would be busy
with waking up.
"""

import contextlib
import heapq
import operator
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

from ..contract import reader as contract
from ..contract.reader import Reader
from ..contract.stages import enter, turn_given_by
from ..runtime import machine
from ..runtime.machine import processors
from ..runtime.waiting import join

Job = TypeVar("Job")

Gate: TypeAlias = SimpleQueue[None]
"""One item for each lane that may pass."""

_lane = threading.local()  # has attributes in lanes, whosever they are


def be_lane() -> None:
    """Mark the calling thread as a lane: readers collected here are closed in another thread."""
    _lane.inside = False


def copying_lanes(reader: Reader) -> int:
    """Return how many lanes may work at once without yielding."""
    if not reader.cooperative:
        return reader.lanes
    return min(reader.copying_lanes or contract.copying_lanes(processors()).value, reader.lanes)


def make_gate() -> Gate:
    """Make a gate for the readers of one pipeline."""
    gate = Gate()
    for _ in range(processors()):
        gate.put(None)
    return gate


class Lanes(Generic[Job]):
    """Threads, numbered from 0 to `count` - 1, for jobs. Jobs begin in the order of submission."""

    def __init__(
        self,
        count: int,
        *,
        turns: int,
        begin: Callable[[Job], None],
        work: Callable[[Job, int], None],
        drop: Callable[[Job], object] = lambda job: None,
        gate: Gate | None = None,
        name: str = "lane",
        be_lane: Callable[[int], object] = lambda lane: None,
    ) -> None:
        """Start no thread yet; each is started when first needed.

        At most `turns` lanes that have not yielded their turn are at work, and only lanes past the
        `gate`. `begin` is called with one job at a time, in order; `work` with a begun job and the
        lane, concurrently; `drop` with a job that was not begun before `close()`. None may raise.
        `name`: of the threads, with the lane. `be_lane` is called in each thread, with its lane,
        before the first job.
        """
        self._begin = begin
        self._work, self._drop = work, drop
        self._gate = gate
        self._name, self._be_lane = name, be_lane
        self._lock = threading.Lock()
        self._in_order = threading.Lock()  # held by the lane that takes and begins a job
        self._jobs: deque[Job] = deque()
        self._free_turns = turns
        self._idle = list(range(count))  # a heap: the lowest number works first, it is warm
        # Not semaphores: those are written in Python, and a Ctrl-C may leave one locked for good.
        self._bells = [SimpleQueue[None]() for _ in range(count)]
        self._threads: dict[int, threading.Thread] = {}
        self._running = [threading.Lock() for _ in range(count)]  # held by the threads
        self._has_turn = [False] * count
        self._closed = False

    def submit(self, job: Job) -> None:
        """Queue a job; drop the job and raise `RuntimeError` if closed, or without any thread."""
        with self._lock:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed; make a new reader")
            self._jobs.append(job)
            try:
                self._ring()
            except RuntimeError:
                if len(self._idle) == len(self._bells):  # otherwise a lane at work will take it
                    self._jobs.pop()
                    raise

    def _give_turn(self, lane: int) -> None:
        """Let another lane start, if this one has a turn; called in this one."""
        if self._has_turn[lane]:
            self._has_turn[lane] = False
            self._leave_gate()
            # If no thread can be started, this lane takes the next job when it is done.
            with self._lock, contextlib.suppress(RuntimeError):
                self._free_turns += 1
                self._ring()

    def in_lane(self) -> bool:
        """Return True if the calling thread is a lane, of these or of others sharing the gate."""
        return hasattr(_lane, "inside")

    def close(self) -> None:
        """Drop the jobs not begun, and wait for the others. Must not be called in a lane."""
        with self._lock:
            self._closed = True
            while self._jobs:  # after a Ctrl-C, the first one may be dropped again
                self._drop(self._jobs[0])
                self._jobs.popleft()
        for bell in self._bells:
            bell.put(None)
        for lane, thread in self._threads.items():
            join(thread, self._running[lane])

    def _ring(self) -> None:
        """Give a free turn to an idle lane if there is a job. The caller holds the lock."""
        if self._free_turns and self._jobs and self._idle and not self._closed:
            lane = self._idle[0]
            if lane not in self._threads:
                # A daemon: at exit Python joins all other threads before it closes anything, and
                # this one would wait for its bell.
                name = f"dali_storage:{self._name}:{lane}"
                thread = threading.Thread(target=self._run, args=(lane,), name=name, daemon=True)
                remedy = "raise the limit, or give fewer lanes: backend_options={'lanes': 1}"
                machine.start_thread(thread, remedy)
                # Noted once started: after a failure the next job tries again.
                self._threads[lane] = thread
            steps: list[Callable[[], object]] = [
                partial(heapq.heappop, self._idle),
                partial(self._bells[lane].put, None),
            ]
            wake = map(operator.call, steps)
            self._free_turns -= 1
            # One call of C: after a Ctrl-C in between, the lane would be neither idle nor awake.
            deque(wake, 0)

    def _run(self, lane: int) -> None:
        _lane.inside = False
        turn_given_by(partial(self._give_turn, lane))
        self._be_lane(lane)
        with self._running[lane]:
            # Not only after a bell: a Ctrl-C while a thread starts may leave two for one lane.
            while not self._closed:
                self._bells[lane].get()
                self._has_turn[lane] = True
                try:
                    while (job := self._next_job(lane)) is not None:
                        self._pass_gate()
                        self._work(job, lane)
                        del job  # or it would keep its batch until the next one
                finally:
                    self._leave_gate()

    def _pass_gate(self) -> None:
        if self._gate is not None and not _lane.inside:
            enter("queued")
            self._gate.get()
            _lane.inside = True

    def _leave_gate(self) -> None:
        if self._gate is not None and _lane.inside:
            _lane.inside = False
            self._gate.put(None)

    def _next_job(self, lane: int) -> Job | None:
        # Taken and begun in one step: the order of batches is cheap to compute in sequence only.
        with self._in_order:
            job = self._take_job(lane)
            if job is not None:
                self._begin(job)
            return job

    def _take_job(self, lane: int) -> Job | None:
        """Return the next job if there is one and this lane has or gets a turn; else go idle."""
        with self._lock:
            if not self._has_turn[lane] and self._free_turns:
                self._free_turns -= 1
                self._has_turn[lane] = True
            if self._has_turn[lane] and self._jobs:
                return self._jobs.popleft()
            self._free_turns += self._has_turn[lane]
            self._has_turn[lane] = False
            # Still under the lock: a job submitted from now on finds this lane idle.
            heapq.heappush(self._idle, lane)
            return None
