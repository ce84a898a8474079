"""Requests under way at once: threads that several lanes share, retries, hedging.

Threads, and not obstore's asyncio: the interpreter aborts if it ends while one of its callbacks is
under way.
"""

import contextlib
import errno
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

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


@dataclass(slots=True, eq=False)
class _Call(Generic[Item, Answer]):
    """One `run()`. What threads and a lane do to the same container is one call of C."""

    ask: Callable[[Item], Answer]
    items: Sequence[Item]
    pending: dict[int, None]  # the positions of items without an answer
    # When the first request began, for items that may be asked for once more.
    started: dict[int, float] = field(default_factory=dict)
    # Each position once, with the answer or why there is none.
    answers: deque[tuple[int, Answer | BaseException]] = field(default_factory=deque)
    bell: SimpleQueue[None] = field(default_factory=SimpleQueue)  # rings for the lane

    def answer(self, position: int, answer: Answer | BaseException) -> None:
        """Hand over what has come, unless another request was faster or it is not needed."""
        self.started.pop(position, None)
        if self.pending.pop(position, self) is None:
            self.answers.append((position, answer))
            failed = isinstance(answer, BaseException)
            if failed or not self.pending or len(self.answers) >= _TOGETHER:
                self.bell.put(None)


_Queue: TypeAlias = SimpleQueue[tuple[_Call[Any, Any], int] | None]


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
        self._most, self._retry, self._hedge = most, retry, hedge
        self._queue, self._again = _Queue(), _Queue()
        self._calls: set[_Call[Any, Any]] = set()  # those that run
        self._threads: list[threading.Thread] = []
        self._twins: list[threading.Thread] = []  # those that hedge
        self._starting = threading.Lock()
        self._recent: deque[float] = deque(maxlen=_FEW)  # seconds; empty before the first answer
        self._retrying: set[int] = set()  # threads
        self._asked = 0  # by lanes that may lose a few: a bound for hedging needs no more
        self.hedged = 0  # requests that were made once more
        self._closed = False
        self._closing = SimpleQueue[None]()  # has something when it is closed

    def run(
        self,
        ask: Callable[[Item], Answer],
        items: Sequence[Item],
        take: Callable[[int, Answer], None],
        explain: Callable[[int, BaseException], Exception],
    ) -> None:
        """Ask for n items at once, and take each answer as it comes, in the calling thread.

        `ask` is called in other threads, and may still be running when this returns or raises.
        `take` gets the position of an item and its answer, `explain` that of the first item, in
        their order, that cannot be had; it returns the error to be raised.

        Raises:
            OSError: it is being closed (ECANCELED).
        """
        call = _Call(ask, items, dict.fromkeys(range(len(items))))
        self._calls.add(call)
        try:
            self._asked += len(items)
            for position in range(len(items)):
                self._queue.put((call, position))
            self._start_threads(min(_FEW, self._most))
            failed = self._collect(call, take)
        finally:
            call.pending.clear()  # nobody asks for the rest
            self._calls.discard(call)
        if failed:
            try:
                raise explain(*failed)
            finally:
                del failed  # it keeps the frames that it went through, and this may be one

    def cancel(self) -> None:
        """Have all `run()` fail at once. Nothing can be asked for after this."""
        self._closed = True
        self._closing.put(None)
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
        self, call: _Call[Any, Answer], take: Callable[[int, Answer], None]
    ) -> tuple[int, BaseException] | None:
        """Take the answers to all items; or those before the first that cannot be had: why?"""
        failed: tuple[int, BaseException] | None = None
        waiting = len(call.items)
        while waiting:
            if not self._closed:  # or nobody may ring
                self._wait(call)
            if self._closed:
                raise OSError(errno.ECANCELED, "the reader was closed")
            while call.answers:
                position, answer = call.answers.popleft()
                waiting -= 1
                if not isinstance(answer, BaseException):
                    if failed is None:
                        take(position, answer)
                elif failed is None or position < failed[0]:
                    failed = position, answer  # the others behind it are not needed
                    behind = [other for other in list(call.pending) if other > position]
                    waiting -= sum(call.pending.pop(other, call) is None for other in behind)
                del answer
        return failed

    def _wait(self, call: _Call[Any, Any]) -> None:
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
        extra = 0 if self._hedge is None else max(round(self._most * _EXTRA), 1)
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
            name = f"dali_storage-get-{len(self._threads) + len(self._twins)}"
            thread = threading.Thread(target=work, name=name, daemon=True)
            thread.start()
            threads.append(thread)

    def _jobs(self, queue: _Queue) -> Iterator[tuple[_Call[Any, Any], int]]:
        """What is still needed of a queue, until it is closed."""
        while (job := queue.get()) is not None and not self._closed:
            if job[1] in job[0].pending:
                yield job
            del job  # or it would keep its answers until the next one
        queue.put(None)  # for the next thread

    def _work(self) -> None:
        for call, position in self._jobs(self._queue):
            try:
                answer = self._ask(call, position)
            except BaseException as error:  # a panic of Rust is no Exception
                answer = error
            call.answer(position, answer)
            del call, answer

    def _work_again(self) -> None:
        """Ask once more. An error does not count: the first request goes on."""
        for call, position in self._jobs(self._again):
            with contextlib.suppress(BaseException):
                call.answer(position, call.ask(call.items[position]))
            del call

    def _ask(self, call: _Call[Any, Any], position: int) -> Any:
        """Ask until there is an answer, or an error that stays, or it is not needed any more."""
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
                    if late or not retryable(error, bool(self._recent)):
                        raise
                    self._retrying.add(thread)
                    with contextlib.suppress(Empty):
                        self._closing.put(self._closing.get(timeout=seconds))
                        raise
                    pause = min(2 * pause, _LONGEST_PAUSE)
                else:
                    self._note(time.monotonic() - asked)
                    return answer
        finally:
            self._retrying.discard(thread)

    def _note(self, seconds: float) -> None:
        """Remember how long an answer took. Another thread if they wait for it, not a processor."""
        self._recent.append(seconds)
        if len(self._threads) < self._most and self._queue.qsize():
            recent = sorted(self._recent.copy())
            if recent[len(recent) // 2] > _QUICK:
                self._start_threads(min(len(self._threads) + 1, self._most))
