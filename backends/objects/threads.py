"""Blocking requests, each in a thread, with retries: the engine of obstore.

Threads, not obstore's asyncio: the interpreter aborts if it ends while an asyncio callback runs.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from ...runtime.machine import show_name, start_thread
from .calls import Call
from .errors import FORKED, retryable
from .pace import Pace

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0  # seconds between two tries; object_store's defaults, too
_CLOSING = 3.0  # seconds that close() waits for abandoned requests

Renewed: TypeAlias = Callable[[BaseException, float], bool]
_Queue: TypeAlias = SimpleQueue[tuple[Call[Any, Any], int] | None]


class RequestThreads:
    """Calls `Call.ask` for all items, first come, first served. Writes to no place."""

    def __init__(self, pace: Pace, retry: float, hedges: int, renewed: Renewed) -> None:
        """Start no thread yet. `hedges`: threads for hedging; the rest is as for `RequestPool`."""
        self._pace, self._retry, self._hedges, self._renewed = pace, retry, hedges, renewed
        self._queue, self._late = _Queue(), _Queue()
        self._threads: list[threading.Thread] = []
        self._hedging: list[threading.Thread] = []
        self._starting, self._process = threading.Lock(), 0  # that has the threads
        self._retrying: set[int] = set()  # threads
        self._closed = False
        self._closing = SimpleQueue[None]()  # not empty once closed

    @property
    def retries(self) -> bool:
        """True while a request is repeated after a failure."""
        return bool(self._retrying)

    def send(self, call: Call[Any, Any], positions: Iterable[int]) -> None:
        """Request items of a call.

        Raises RuntimeError if no thread can be started, or this is a fork, which has none.
        """
        if self._threads and self._process != os.getpid():
            raise RuntimeError(FORKED)
        for position in positions:
            self._queue.put((call, position))
        self._start_threads(self._pace.few)

    def hedge(self, call: Call[Any, Any], position: int) -> None:
        """Request an item once more, without a permit. Errors are ignored: the first goes on."""
        self._late.put((call, position))

    def cancel(self) -> None:
        """Begin no request any more. Does not wait."""
        self._closed = True
        self._closing.put(None)
        self._pace.end()

    def close(self) -> None:
        """End the threads, after `cancel()`; wait for at most 3 seconds."""
        self._queue.put(None)
        self._late.put(None)
        until = time.monotonic() + _CLOSING
        for thread in [*self._threads, *self._hedging]:
            if thread is not threading.current_thread():
                thread.join(max(until - time.monotonic(), 0))

    def _start_threads(self, most: int) -> None:
        """Start threads for queued items, up to `most`; at the machine's limit, one suffices."""
        with self._starting:
            self._process = os.getpid()
            queued = min(most, len(self._threads) + self._queue.qsize())
            try:
                self._start(self._threads, queued, self._work)
                self._start(self._hedging, self._hedges, self._hedge_late)
            except RuntimeError:
                if not self._threads:
                    raise

    def _start(self, threads: list[threading.Thread], most: int, work: Callable[[], None]) -> None:
        while len(threads) < most:
            # A daemon: at exit Python joins all others, and this one may wait for a store.
            name = f"dali_storage:get:{len(self._threads) + len(self._hedging)}"
            thread = threading.Thread(target=work, name=name, daemon=True)
            start_thread(thread, "raise the limit, or give fewer requests")
            threads.append(thread)

    def _jobs(self, queue: _Queue) -> Iterator[tuple[Call[Any, Any], int]]:
        """The items of a queue that are still needed, until the end."""
        while (job := queue.get()) is not None and not self._closed:
            if job[0].needs(job[1]):
                yield job
            del job  # otherwise its answers would stay in memory until the next job
        queue.put(None)  # for the next thread

    def _work(self) -> None:
        show_name()
        for call, position in self._jobs(self._queue):
            self._pace.take()
            try:
                answer = self._ask(call, position)
            except BaseException as error:  # a panic of Rust is no Exception
                answer = error
            call.answer(position, answer)
            self._pace.give_back()
            del call, answer

    def _hedge_late(self) -> None:
        show_name()
        for call, position in self._jobs(self._late):
            asked = time.monotonic()
            with contextlib.suppress(BaseException):
                call.answer(position, call.ask(call.items[position]))
            self._pace.note("hedge", time.monotonic() - asked)
            del call

    def _wait(self, seconds: float) -> bool:
        """Wait for some seconds, or until the end; return True at the end."""
        with contextlib.suppress(Empty):
            self._closing.put(self._closing.get(timeout=seconds))
            return True
        return False

    def _ask(self, call: Call[Any, Any], position: int) -> Any:
        """Retry until there is an answer, a permanent error, or no need any more."""
        thread, pause = threading.get_ident(), _FIRST_PAUSE
        began = call.begin(position)
        try:
            if rest := self._pace.resting:
                self._wait(rest)
            while call.needs(position):
                asked = time.monotonic()
                try:
                    answer = call.ask(call.items[position])
                except BaseException as error:
                    again = retryable(error, self._pace.reached) or self._renewed(error, asked)
                    seconds = max(pause * random.uniform(0.5, 1), self._pace.resting)
                    if not again or time.monotonic() + seconds > began + self._retry:
                        raise
                    self._retrying.add(thread)
                    if self._wait(seconds):
                        raise
                    self._pace.note("retry", time.monotonic() - asked)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    self._pace.note("request", time.monotonic() - asked)
                    if self._queue.qsize():
                        self._start_threads(self._pace.grown(len(self._threads)))
                    return answer
        finally:
            self._retrying.discard(thread)
