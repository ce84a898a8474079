"""The threads that read: as few as keep the storage busy.

A lane that copies out of the page cache takes a whole processor. A second one would not make it
faster: both would want the interpreter lock, and take the processors that DALI needs. A lane that
waits for a disk takes nothing, and many of them are better. So one lane at a time has the *turn*.
It keeps the turn from batch to batch, in the same thread, and gives it away when it has to wait.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")


class Lanes(Generic[Job]):
    """Works on jobs in their order, each in one of `count` threads, numbered from 0."""

    def __init__(self, count: int, work: Callable[[Job, int], None]) -> None:
        """`work(job, lane)` must not raise. Threads are started when they are first needed."""
        self._work = work
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._turn_is_free = True
        self._idle = list(range(count))  # a heap: the lowest number, which is warm, works
        self._bells = [threading.Semaphore(0) for _ in range(count)]
        self._threads: dict[int, threading.Thread] = {}
        self._mine = threading.local()
        self._closed = False

    def submit(self, job: Job) -> None:
        """Have `job` done after those that were submitted before.

        Raises:
            RuntimeError: no thread can be started; the job is forgotten.
        """
        with self._lock:
            self._jobs.append(job)
            try:
                self._ring()
            except RuntimeError:
                self._jobs.pop()
                raise

    def yield_turn(self) -> None:
        """Let the next job begin. For a lane at work; anywhere else, and again, it does nothing."""
        if getattr(self._mine, "has_turn", False):
            self._mine.has_turn = False
            # If no thread can be started, the job is this lane's own, when it has done this one.
            with self._lock, contextlib.suppress(RuntimeError):
                self._turn_is_free = True
                self._ring()

    def in_lane(self) -> bool:
        """Whether the calling thread is one of the lanes."""
        return hasattr(self._mine, "has_turn")

    def close(self) -> None:
        """Drop the jobs that no lane has begun, and wait for the others. Not for a lane to call."""
        with self._lock:
            self._closed = True
            self._jobs.clear()
        for bell in self._bells:
            bell.release()
        for thread in self._threads.values():
            thread.join()

    def _ring(self) -> None:
        """Give the turn to a lane if there is one, and something to do. The lock is held."""
        if self._turn_is_free and self._jobs and self._idle and not self._closed:
            lane = self._idle[0]
            if lane not in self._threads:
                self._threads[lane] = self._start(lane)
            heapq.heappop(self._idle)
            self._turn_is_free = False
            self._bells[lane].release()

    def _start(self, lane: int) -> threading.Thread:
        # A daemon, because at the end of a program Python waits for other threads before it closes
        # anything, and this one for its bell.
        thread = threading.Thread(
            target=self._run, args=(lane,), name=f"dali_storage-{lane}", daemon=True
        )
        thread.start()
        return thread

    def _run(self, lane: int) -> None:
        self._mine.has_turn = False
        while True:
            self._bells[lane].acquire()
            if self._closed:
                return
            self._mine.has_turn = True
            while (job := self._next_job(lane)) is not None:
                self._work(job, lane)
                del job  # or it would keep its batch until there is another

    def _next_job(self, lane: int) -> Job | None:
        """The next job, if this lane has the turn or can take it; else the lane is idle now."""
        with self._lock:
            if self._mine.has_turn or self._turn_is_free:
                if self._jobs:
                    self._turn_is_free = False
                    self._mine.has_turn = True
                    return self._jobs.popleft()
                self._turn_is_free = True
            self._mine.has_turn = False
            heapq.heappush(self._idle, lane)
            return None
