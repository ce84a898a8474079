"""Concurrent requests: threads shared by several lanes, retries, hedging.

Threads, not obstore's asyncio: the interpreter aborts if it ends while an asyncio callback runs.
"""

from __future__ import annotations

import contextlib
import errno
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ...contract.stages import note, yield_turn
from ...runtime.histogram import Times
from ...runtime.machine import start_thread
from ...runtime.profiling import show_name
from ...runtime.waiting import take
from .errors import retryable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0  # seconds between two tries; object_store's defaults, too
_EXTRA = 0.05  # requests that hedging may add, as a fraction of all
_FEW, _QUICK = 16, 0.01  # requests: more do not help if a store responds within so many seconds
_TOGETHER = 16  # responses; a lane is not woken for each
_LOOK = 0.1  # the most seconds between two looks for late requests
_CLOSING = 3.0  # seconds that close() waits for abandoned requests


class Client(Protocol):
    """A client that writes bodies to their destination itself; see http/transport.py."""

    def drop(self, call: Call[Any, Any], position: int | None = None) -> None:
        """End all writes for a call, or for one of its positions."""

    def wake(self) -> None:
        """Wake the client: it may send more requests."""


@dataclass(slots=True, eq=False)
class Call(Generic[Item, Answer]):
    """One `run()`. Threads and a lane change shared containers only by single calls of C."""

    ask: Callable[[Item], Answer]
    items: Sequence[Item]
    pending: dict[int, None]  # the positions of items without an answer
    # Times of the first request, for items that may be hedged.
    started: dict[int, float] = field(default_factory=dict)
    # Positions with their answers or errors; with None once a client has written the bytes.
    answers: deque[tuple[int, Any]] = field(default_factory=deque)
    bell: SimpleQueue[None] = field(default_factory=SimpleQueue)  # rings for the lane
    flying: dict[int, None] = field(default_factory=dict)  # positions a client may write to

    def answer(self, position: int, answer: Answer | BaseException) -> None:
        """Hand over an answer, unless another request was faster or none is needed."""
        self.started.pop(position, None)
        if self.pending.pop(position, self) is None:
            self.answers.append((position, answer))
            failed = isinstance(answer, BaseException)
            if failed or not self.pending or len(self.answers) >= _TOGETHER:
                self.bell.put(None)


_Queue: TypeAlias = SimpleQueue[tuple[Call[Any, Any], int] | None]


class RequestPool:
    """Requests items for several lanes: first come, first served, `most` requests at once."""

    def __init__(self, most: int, *, retry: float, hedge: float | None) -> None:
        """Start no thread yet.

        Args:
            most: requests in flight; fewer while the store responds within 10 ms. Hedging adds a
                twentieth, at least one.
            retry: seconds after the first request for an item in which failures are retried.
            hedge: seconds without a response after which a request is sent once more. None: never.
        """
        self.most, self._retry, self._hedge = most, retry, hedge
        self.few = min(_FEW, most)
        self.permits = SimpleQueue[None]()  # one for each request that may be sent now
        for _ in range(most):
            self.permits.put(None)
        self.client: Client | None = None  # also takes permits, and answers calls
        self._queue, self._again = _Queue(), _Queue()
        self._calls: set[Call[Any, Any]] = set()  # running ones
        self._threads: list[threading.Thread] = []
        self._twins: list[threading.Thread] = []  # threads for hedging
        self._starting = threading.Lock()
        self.recent: deque[float] = deque(maxlen=_FEW)  # seconds; empty before the first answer
        self._retrying: set[int] = set()  # threads
        self._asked = 0  # races of lanes may lose a few: exact enough for a bound of hedging
        self.hedged = 0  # hedging requests
        self.times = Times()
        self._closed = False
        self.cause: BaseException | None = None  # the error that ended the client's thread
        self._closing = SimpleQueue[None]()  # not empty once closed

    def run(
        self,
        ask: Callable[[Item], Answer],
        items: Sequence[Item],
        take: Callable[[int, Answer], None],
        explain: Callable[[int, BaseException], Exception],
        send: Callable[[Call[Item, Answer]], Iterable[int]] | None = None,
        describe: Callable[[Item], str] | None = None,
    ) -> None:
        """Request n items at once, and process each answer on arrival, in the calling thread.

        Yields the turn.

        `send` requests items by the client, with None as the answer once the bytes are at their
        destination, and returns the positions of the other items. The client writes nothing after
        `run()` returns.

        `ask` is called in other threads, and may still be running when `run()` returns or raises.
        `take` gets the position of an item and its answer. `explain` gets the position of the
        first failed item, in their order, and its error, and returns the error to raise. `describe`
        names an item in reports.

        Raises:
            OSError: the pool is closed (ECANCELED), or the client's thread has failed (EIO).
        """
        yield_turn()
        call = Call(ask, items, dict.fromkeys(range(len(items))))
        self._calls.add(call)
        if describe:
            described = note(partial(_pending, call.pending, items, describe))
        try:
            self._asked += len(items)
            for position in send(call) if send else range(len(items)):
                self._queue.put((call, position))
            self._start_threads(self.few)
            failed = self._collect(call, take)
        finally:
            call.pending.clear()  # the rest is not requested any more
            if describe:
                note(described)
            if self.client and call.flying:
                self.client.drop(call)
            self._calls.discard(call)
        if failed:
            try:
                raise explain(*failed)
            finally:
                del failed  # its traceback keeps frames alive, perhaps this one

    def ask_again(self, call: Call[Any, Any], position: int) -> None:
        """Request an item by a thread, after the client has failed."""
        self._queue.put((call, position))
        try:
            self._start_threads(self.few)
        except RuntimeError as error:
            call.answer(position, error)

    def count(self, kind: str, seconds: float) -> None:
        """Count how long a request took: one that was answered, its retries, or its twin."""
        self.times.record(threading.get_ident(), {kind: round(1e9 * seconds)})

    def is_slow(self) -> bool:
        """Test if response times are so long that more concurrent requests would help."""
        recent = sorted(self.recent.copy())
        return bool(recent) and recent[len(recent) // 2] > _QUICK

    def refusal(self) -> OSError:
        """The error for requests after the end, to raise from `cause`."""
        failed = errno.EIO, "the thread of requests has failed; create a new reader"
        return OSError(*failed if self.cause else (errno.ECANCELED, "the reader was closed"))

    def cancel(self) -> None:
        """Make all `run()` fail at once. No request is possible afterwards."""
        self._closed = True
        self._closing.put(None)
        for _ in range(self.most):  # no thread waits for a permit any more
            self.permits.put(None)
        for call in list(self._calls):
            call.bell.put(None)

    def close(self) -> None:
        """End the threads. Waits for abandoned requests, for at most 3 seconds.

        Closing twice is fine, in any thread: the garbage collector may run in one of these.
        """
        self.cancel()
        self._queue.put(None)
        self._again.put(None)
        until = time.monotonic() + _CLOSING
        for thread in [*self._threads, *self._twins]:
            if thread is not threading.current_thread():
                thread.join(max(until - time.monotonic(), 0))

    def _collect(
        self, call: Call[Any, Answer], take: Callable[[int, Answer], None]
    ) -> tuple[int, BaseException] | None:
        """Process the answers to all items; return the first failed position and its error."""
        failed: tuple[int, BaseException] | None = None
        waiting = len(call.items)
        while waiting:
            if not self._closed:  # after closing, nothing may ring
                self._wait(call)
            if self._closed:
                raise self.refusal() from self.cause
            while call.answers:
                position, answer = call.answers.popleft()
                waiting -= 1
                if not isinstance(answer, BaseException):
                    if failed is None:
                        if self.client and position in call.flying:
                            self.client.drop(call, position)  # a thread was faster
                        take(position, answer)
                elif failed is None or position < failed[0]:
                    failed = position, answer  # later items are not needed
                    behind = [other for other in list(call.pending) if other > position]
                    waiting -= sum(call.pending.pop(other, call) is None for other in behind)
                del answer
        return failed

    def _wait(self, call: Call[Any, Any]) -> None:
        """Wait until there are answers; meanwhile, hedge late requests."""
        if self._hedge is None:
            take(call.bell)
            return
        while True:
            late = time.monotonic() - self._hedge
            for position, began in call.started.copy().items():
                most = max(self._asked * _EXTRA, 1)
                if began <= late and self.hedged < most and not self._retrying:
                    call.started.pop(position, None)
                    self.hedged += 1
                    self._again.put((call, position))
            with contextlib.suppress(Empty):
                call.bell.get(timeout=min(max(self._hedge / 4, 0.005), _LOOK))
                return

    def _start_threads(self, most: int) -> None:
        """Start threads for queued items, up to `most`; at the machine's limit, one suffices."""
        extra = 0 if self._hedge is None else max(round(self.most * _EXTRA), 1)
        with self._starting:
            queued = min(most, len(self._threads) + self._queue.qsize())
            try:
                self._start(self._threads, queued, self._work)
                self._start(self._twins, extra, self._work_again)
            except RuntimeError:
                if not self._threads:
                    raise

    def _start(self, threads: list[threading.Thread], most: int, work: Callable[[], None]) -> None:
        while len(threads) < most:
            # A daemon: at exit Python joins all others, and this one may wait for a store.
            name = f"dali_storage:get:{len(self._threads) + len(self._twins)}"
            thread = threading.Thread(target=work, name=name, daemon=True)
            start_thread(thread, "raise the limit, or give fewer requests")
            threads.append(thread)

    def _jobs(self, queue: _Queue) -> Iterator[tuple[Call[Any, Any], int]]:
        """The items of a queue that are still needed, until the pool is closed."""
        while (job := queue.get()) is not None and not self._closed:
            if job[1] in job[0].pending:
                yield job
            del job  # otherwise its answers would stay in memory until the next job
        queue.put(None)  # for the next thread

    def _work(self) -> None:
        show_name()
        for call, position in self._jobs(self._queue):
            self.permits.get()
            try:
                answer = self._ask(call, position)
            except BaseException as error:  # a panic of Rust is no Exception
                answer = error
            self.permits.put(None)
            call.answer(position, answer)
            if self.client:
                self.client.wake()
            del call, answer

    def _work_again(self) -> None:
        """Send hedging requests. Their errors are ignored: the first request goes on."""
        show_name()
        for call, position in self._jobs(self._again):
            asked = time.monotonic()
            with contextlib.suppress(BaseException):
                call.answer(position, call.ask(call.items[position]))
            self.count("hedge", time.monotonic() - asked)
            del call

    def _ask(self, call: Call[Any, Any], position: int) -> Any:
        """Retry until there is an answer, a permanent error, or no need any more."""
        thread, pause = threading.get_ident(), _FIRST_PAUSE
        call.started[position] = began = time.monotonic()
        try:
            while position in call.pending:
                asked = time.monotonic()
                try:
                    answer = call.ask(call.items[position])
                except BaseException as error:
                    seconds = pause * random.uniform(0.5, 1)
                    late = time.monotonic() + seconds > began + self._retry
                    if late or not retryable(error, bool(self.recent)):
                        raise
                    self._retrying.add(thread)
                    with contextlib.suppress(Empty):
                        self._closing.put(self._closing.get(timeout=seconds))
                        raise
                    self.count("retry", time.monotonic() - asked)
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    self._note(seconds := time.monotonic() - asked)
                    self.count("request", seconds)
                    return answer
        finally:
            self._retrying.discard(thread)

    def _note(self, seconds: float) -> None:
        """Note a response time; start another thread if the store, not a processor, is slow."""
        self.recent.append(seconds)
        if len(self._threads) < self.most and self._queue.qsize() and self.is_slow():
            self._start_threads(min(len(self._threads) + 1, self.most))


def _pending(
    pending: dict[int, None], items: Sequence[Item], describe: Callable[[Item], str]
) -> str:
    """The first of the items that have no answer, and how many others there are."""
    positions = [*pending.copy()]
    if not positions:
        return ""
    first, others = describe(items[positions[0]]), len(positions) - 1
    return f"{first} and {others} more" if others else first
