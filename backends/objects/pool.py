"""Requests under way at once: threads that several lanes share, retries, hedging.

Threads, and not obstore's asyncio: the interpreter aborts if it ends while one of its callbacks is
under way.
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

from ...contract.activity import blame, note
from ...contract.histogram import Times
from ...contract.profiling import show_name
from ...contract.waiting import take
from .errors import retryable

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0  # seconds between two tries; object_store's defaults, too
_EXTRA = 0.05  # requests that hedging may add, as a part of all
_FEW, _QUICK = 16, 0.01  # more do not help with a store that answers within so many seconds
_TOGETHER = 16  # answers; a lane is not woken for each
_LOOK = 0.1  # seconds between two looks for what is late, at most
_CLOSING = 3.0  # seconds that close() waits for requests nobody needs any more


class Flight(Protocol):
    """A request by libcurl."""

    @property
    def failed(self) -> bool:
        """Whether it has plainly failed; asked when it has ended."""


class Sender(Protocol):
    """What makes such requests; see curl/transport.py."""

    def settle(self, call: Call[Any, Any], flight: Any) -> bool:
        """Whether one that has ended has brought what was asked for, or else ask again."""

    def drop(self, call: Call[Any, Any], position: int | None = None) -> None:
        """Have nothing written for a call any more, or for one position of it."""

    def wake(self) -> None:
        """More requests are allowed."""


@dataclass(slots=True, eq=False)
class Call(Generic[Item, Answer]):
    """One `run()`. What threads and a lane do to the same container is one call of C."""

    ask: Callable[[Item], Answer]
    items: Sequence[Item]
    pending: dict[int, None]  # the positions of items without an answer
    # When the first request began, for items that may be asked for once more.
    started: dict[int, float] = field(default_factory=dict)
    # Positions with their answers, or why there is none, or the handles that have ended.
    answers: deque[tuple[int, Any]] = field(default_factory=deque)
    bell: SimpleQueue[None] = field(default_factory=SimpleQueue)  # rings for the lane
    # Those that libcurl asks for, and its failures, which count as a thread's first try.
    flying: dict[int, Any] = field(default_factory=dict)
    landed: dict[int, None] = field(default_factory=dict)  # that have ended, of these
    failed: dict[int, BaseException] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)  # when libcurl first asked for them
    kept: list[Any] = field(default_factory=list)  # memory that it reads
    last: int = -1  # the position whose answer came last

    def answer(self, position: int, answer: Answer | BaseException) -> None:
        """Hand over what has come, unless another request was faster or it is not needed."""
        self.started.pop(position, None)
        if self.pending.pop(position, self) is None:
            self.answers.append((position, answer))
            self._ring(isinstance(answer, BaseException))

    def land(self, position: int, flight: Flight) -> None:
        """Hand over what has come by libcurl; the lane looks at it."""
        self.started.pop(position, None)
        self.landed[position] = None
        self.answers.append((position, flight))
        self._ring(flight.failed)

    def _ring(self, failed: bool) -> None:
        last = len(self.pending) <= len(self.landed)
        if failed or last or len(self.answers) >= _TOGETHER:
            self.bell.put(None)


_Queue: TypeAlias = SimpleQueue[tuple[Call[Any, Any], int] | None]


class RequestPool:
    """Asks for what several lanes need: first come, first served, `most` requests at once."""

    def __init__(self, most: int, *, retry: float, hedge: float | None) -> None:
        """Start no thread yet.

        Args:
            most: requests under way at once; fewer while the store answers within 10 ms. Hedging
                adds a twentieth, at least one.
            retry: seconds after the first request for an item in which it may be asked for again.
            hedge: seconds without an answer after which an item is asked for once more. None:
                never.
        """
        self.most, self._retry, self._hedge = most, retry, hedge
        self.few = min(_FEW, most)
        # Where libcurl makes requests, too: one for each that may be made now.
        self.permits = SimpleQueue[None]()
        self._curl: Sender | None = None
        self._queue, self._again = _Queue(), _Queue()
        self._calls: set[Call[Any, Any]] = set()  # those that run
        self._threads: list[threading.Thread] = []
        self._twins: list[threading.Thread] = []  # those that hedge
        self._starting = threading.Lock()
        self.recent: deque[float] = deque(maxlen=_FEW)  # seconds; empty before the first answer
        self._retrying: set[int] = set()  # threads
        self._asked = 0  # by lanes that may lose a few: a bound for hedging needs no more
        self.hedged = 0  # requests that were made once more
        self.times = Times()
        self._closed = False
        self.cause: BaseException | None = None  # why libcurl's thread has ended
        self._closing = SimpleQueue[None]()  # has something when it is closed

    def run(
        self,
        ask: Callable[[Item], Answer],
        items: Sequence[Item],
        take: Callable[[int, Answer], None],
        explain: Callable[[int, BaseException], Exception],
        send: Callable[[Call[Item, Answer]], Iterable[int]] | None = None,
        describe: Callable[[Item], str] | None = None,
    ) -> None:
        """Ask for n items at once, and take each answer as it comes, in the calling thread.

        `send` has items asked for by libcurl, whose answers are None when their bytes are where
        they belong, and returns the positions of the others. It writes nothing after this returns.

        `ask` is called in other threads, and may still be running when this returns or raises.
        `take` gets the position of an item and its answer, `explain` that of the first item, in
        their order, that cannot be had; it returns the error to be raised. `describe` names an
        item, for statistics and reports.

        Raises:
            OSError: it is being closed (ECANCELED), or libcurl's thread has failed (EIO).
        """
        call = Call(ask, items, dict.fromkeys(range(len(items))))
        self._calls.add(call)
        if describe:
            note(partial(_pending, call.pending, items, describe))
        try:
            self._asked += len(items)
            for position in send(call) if send else range(len(items)):
                self._queue.put((call, position))
            self._start_threads(self.few)
            failed = self._collect(call, take)
            if describe and items:
                blame(partial(describe, items[call.last]))
        finally:
            call.pending.clear()  # nobody asks for the rest
            if self._curl:
                self._curl.drop(call)
            self._calls.discard(call)
        if failed:
            try:
                raise explain(*failed)
            finally:
                del failed  # it keeps the frames that it went through, and this may be one

    def share(self, curl: Sender) -> None:
        """Let another make requests, which takes one of the `permits` for each."""
        self._curl = curl
        for _ in range(self.most):
            self.permits.put(None)

    def ask_again(self, call: Call[Any, Any], position: int, error: BaseException | None) -> None:
        """Have a thread ask for what libcurl could not have; `error` counts as its first try."""
        if error:
            call.failed[position] = error
        self._queue.put((call, position))
        self._start_threads(self.few)

    def count(self, kind: str, seconds: float) -> None:
        """Count how long a request took: one that was answered, its retries, or its twin."""
        self.times.record(threading.get_ident(), kind, round(1e9 * seconds))

    def is_slow(self) -> bool:
        """Whether answers take so long that more requests at once would help."""
        recent = sorted(self.recent.copy())
        return bool(recent) and recent[len(recent) // 2] > _QUICK

    def refusal(self) -> OSError:
        """Why nothing can be asked for any more. Raise it from `cause`."""
        failed = errno.EIO, "the thread of libcurl has failed; make a new reader"
        return OSError(*failed if self.cause else (errno.ECANCELED, "the reader was closed"))

    def cancel(self) -> None:
        """Have all `run()` fail at once. Nothing can be asked for after this."""
        self._closed = True
        self._closing.put(None)
        for _ in range(self.most):  # no thread waits for one any more
            self.permits.put(None)
        for call in list(self._calls):
            call.bell.put(None)

    def close(self) -> None:
        """End the threads. Waits for requests that nobody needs, for 3 seconds at most.

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
        """Take the answers to all items; or those before the first that cannot be had: why?"""
        failed: tuple[int, BaseException] | None = None
        waiting = len(call.items)
        while waiting:
            if not self._closed:  # or nobody may ring
                self._wait(call)
            if self._closed:
                raise self.refusal() from self.cause
            while call.answers:
                position, answer = call.answers.popleft()
                call.last = position
                flight = call.flying.get(position)
                if self._curl and flight is not None and flight is answer:
                    waiting -= self._curl.settle(call, flight)
                    continue
                waiting -= 1
                if not isinstance(answer, BaseException):
                    if failed is None:
                        if self._curl:
                            self._curl.drop(call, position)  # a thread was faster
                        take(position, answer)
                elif failed is None or position < failed[0]:
                    failed = position, answer  # the others behind it are not needed
                    behind = [other for other in list(call.pending) if other > position]
                    waiting -= sum(call.pending.pop(other, call) is None for other in behind)
                del answer
        return failed

    def _wait(self, call: Call[Any, Any]) -> None:
        """Wait until there are answers; meanwhile, ask once more for what takes too long."""
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
        """For what is queued, until there are `most`. One is enough if the machine has no more."""
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
            thread.start()
            threads.append(thread)

    def _jobs(self, queue: _Queue) -> Iterator[tuple[Call[Any, Any], int]]:
        """What is still needed of a queue, until it is closed."""
        while (job := queue.get()) is not None and not self._closed:
            if job[1] in job[0].pending:
                yield job
            del job  # or it would keep its answers until the next one
        queue.put(None)  # for the next thread

    def _work(self) -> None:
        show_name()
        for call, position in self._jobs(self._queue):
            try:
                answer = self._ask(call, position)
            except BaseException as error:  # a panic of Rust is no Exception
                answer = error
            call.answer(position, answer)
            del call, answer

    def _work_again(self) -> None:
        """Ask once more. An error does not count: the first request goes on."""
        show_name()
        for call, position in self._jobs(self._again):
            asked = time.monotonic()
            with contextlib.suppress(BaseException):
                call.answer(position, call.ask(call.items[position]))
            self.count("hedge", time.monotonic() - asked)
            del call

    def _ask(self, call: Call[Any, Any], position: int) -> Any:
        """Ask until there is an answer, or an error that stays, or it is not needed any more."""
        thread, pause = threading.get_ident(), _FIRST_PAUSE
        call.started[position] = now = time.monotonic()
        began = call.began.pop(position, now)
        try:
            while position in call.pending:
                asked = time.monotonic()
                try:
                    answer = self._try(call, position)
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

    def _try(self, call: Call[Any, Any], position: int) -> Any:
        if (error := call.failed.pop(position, None)) is not None:
            raise error
        if self._curl is None:
            return call.ask(call.items[position])
        self.permits.get()
        try:
            return call.ask(call.items[position])
        finally:
            self.permits.put(None)
            self._curl.wake()

    def _note(self, seconds: float) -> None:
        """Remember how long an answer took. Another thread if they wait for it, not a processor."""
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
