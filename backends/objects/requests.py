"""Requests under way at once: threads that several lanes share, retries, hedging. Knows no store.

Threads, and not obstore's asyncio: the interpreter aborts if it ends while one of its callbacks is
under way.
"""

import contextlib
import errno
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeAlias, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0  # seconds between two tries; object_store's defaults, too
_EXTRA = 0.05  # requests that hedging may add, as a part of all
_SEEN = 1000  # durations that a percentile is taken of
_FEWEST = 100  # durations, before there is a percentile
_LEAST_HEDGE = 0.05  # seconds; what answers faster than this is not worth asking twice
_FEW, _QUICK = 16, 0.01  # more do not help with a store that answers within so many seconds
_TOGETHER = 16  # answers; a lane is not woken for each
_LOOK = 0.1  # seconds in which the percentile is taken anew
_CLOSING = 3.0  # seconds that close() waits for requests nobody needs any more


@dataclass(slots=True)
class _Call(Generic[Item, Answer]):
    """One `run()`. What threads and a lane do to the same container is one call of C.

    Attributes:
        pending: the positions of items without an answer.
        started: when the first request for a position began.
        hedged: the positions that were asked for once more.
        answers: position, and the answer or why there is none; each position once.
        bell: rings when the lane has something to do.
    """

    ask: Callable[[Item], Answer]
    retryable: Callable[[BaseException], bool]
    items: Sequence[Item]
    pending: dict[int, None]
    started: dict[int, float] = field(default_factory=dict)
    hedged: set[int] = field(default_factory=set)
    answers: deque[tuple[int, Answer | None, BaseException | None]] = field(default_factory=deque)
    bell: SimpleQueue[None] = field(default_factory=SimpleQueue)

    def answer(self, position: int, answer: Answer | None, error: BaseException | None) -> None:
        """Hand over what has come, unless another request was faster or it is not needed."""
        if self.pending.pop(position, self) is None:
            self.answers.append((position, answer, error))
            if error is not None or not self.pending or len(self.answers) >= _TOGETHER:
                self.bell.put(None)


_Queue: TypeAlias = SimpleQueue[tuple[_Call[Any, Any], int] | None]


class RequestFailed(Exception):  # noqa: N818  (a signal to the caller, who knows what it was)
    """An item cannot be had.

    Attributes:
        position: of the item.
        error: the last one.
    """

    def __init__(self, position: int, error: BaseException) -> None:
        super().__init__(position)
        self.position, self.error = position, error


class Requests:
    """Asks for what several lanes need: first come, first served, `most` requests at once.

    Attributes:
        hedged: how many requests were asked once more.
    """

    def __init__(
        self,
        most: int,
        *,
        retry: float,
        hedge: float | str | None,
    ) -> None:
        """Start no thread yet.

        Args:
            most: requests under way at once. Hedging adds a twentieth, at least one.
            retry: seconds after the first request for an item in which it may be asked for again.
            hedge: seconds without an answer after which an item is asked for once more; or a
                percentile of what was seen, such as "p99", but at least 50 ms and three times the
                median. None: never.
        """
        self._most = most
        self._retry = retry
        self._hedge = hedge
        self._queue = _Queue()
        self._again = _Queue()  # hedged
        self._calls: dict[int, _Call[Any, Any]] = {}  # those that run, by identity
        self._threads: list[threading.Thread] = []
        self._extra = 0  # of them, for hedging
        self._starting = threading.Lock()
        self._seen: deque[float] = deque(maxlen=_SEEN)
        self._recent: deque[float] = deque(maxlen=_FEW)
        self._after: tuple[float, float] = math.inf, 0.0  # what to wait for, and until when
        self._retrying: dict[int, None] = {}  # by thread
        self._asked = 0  # by lanes that may lose a few: a bound for hedging needs no more
        self.hedged = 0
        self._open = threading.Lock()  # held until it is closed; what waits, waits for it
        self._open.acquire()
        self._closed = False

    def run(
        self,
        ask: Callable[[Item], Answer],
        items: Sequence[Item],
        take: Callable[[int, Answer], None],
        retryable: Callable[[BaseException], bool],
    ) -> None:
        """Ask for n items at once, and take each answer as it comes, in the calling thread.

        `ask` is called in other threads, and may still be running when this returns or raises.
        `take` gets the position of an item and its answer. `retryable` tells whether an error may
        be gone when asked again.

        Raises:
            RequestFailed: for the first item, in their order, that cannot be had.
        """
        call = _Call(ask, retryable, items, dict.fromkeys(range(len(items))))
        try:
            self._calls[id(call)] = call
            for position in range(len(items)):
                self._queue.put((call, position))
            self._asked += len(items)
            self._start_threads()
            self._collect(call, take)
        finally:
            call.pending.clear()  # nobody asks for the rest
            del self._calls[id(call)]

    def cancel(self) -> None:
        """Have all `run()` fail at once. Nothing can be asked for after this."""
        if not self._closed:
            self._closed = True
            self._open.release()
        for call in list(self._calls.values()):
            call.bell.put(None)

    def close(self) -> None:
        """End the threads. Waits for requests that nobody needs, for 3 seconds at most.

        Closing twice is fine.
        """
        self.cancel()
        self._queue.put(None)
        self._again.put(None)
        until = time.monotonic() + _CLOSING
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0))

    def _collect(self, call: _Call[Any, Answer], take: Callable[[int, Answer], None]) -> None:
        failed: tuple[int, BaseException] | None = None
        waiting = len(call.items)
        while waiting:
            if self._closed:  # before and after each wait; cancel() rings the bell
                raise RequestFailed(0, OSError(errno.ECANCELED, "the reader was closed"))
            self._wait(call)
            while call.answers:
                position, answer, error = call.answers.popleft()
                waiting -= 1
                if error is not None and (failed is None or position < failed[0]):
                    failed = position, error  # the others behind it are not needed
                    behind = [other for other in list(call.pending) if other > position]
                    waiting -= sum(call.pending.pop(other, 0) is None for other in behind)
                elif failed is None:
                    take(position, answer)  # type: ignore[arg-type]
                del answer, error
        if failed:
            raise RequestFailed(*failed)

    def _wait(self, call: _Call[Any, Any]) -> None:
        """Wait until there are answers; meanwhile, ask once more for what takes too long."""
        if self._hedge is None:
            call.bell.get()
            return
        while True:
            after, now = self._threshold(), time.monotonic()
            due = {
                position: began + after
                for position, began in list(call.started.items())
                if position in call.pending and position not in call.hedged
            }
            for position in [position for position, when in due.items() if when <= now]:
                self._ask_again(call, position)
            following = min((when for when in due.values() if when > now), default=math.inf)
            with contextlib.suppress(Empty):
                call.bell.get(timeout=min(following - now, max(after / 4, 0.005), _LOOK))
                return

    def _ask_again(self, call: _Call[Any, Any], position: int) -> None:
        if not self._retrying and self.hedged < max(self._asked * _EXTRA, 1):
            call.hedged.add(position)
            self.hedged += 1
            self._again.put((call, position))

    def _threshold(self) -> float:
        """Seconds without an answer after which an item is asked for once more."""
        if not isinstance(self._hedge, str):
            return self._hedge or math.inf
        after, until = self._after
        if (now := time.monotonic()) >= until:
            seen = sorted(self._seen)
            if len(seen) >= _FEWEST:
                place = int(len(seen) * float(self._hedge[1:]) / 100)
                after = max(seen[place], 3 * seen[len(seen) // 2], _LEAST_HEDGE)
            self._after = after, now + _LOOK
        return after

    def _start_threads(self) -> None:
        """A few, and those that ask again."""
        with self._starting:
            if self._hedge is not None and not self._threads:
                for _ in range(max(round(self._most * _EXTRA), 1)):
                    self._start(self._again, self._ask)
                self._extra = len(self._threads)
            room = min(self._most, _FEW) + self._extra - len(self._threads)
            for _ in range(min(self._queue.qsize(), room)):
                self._start(self._queue, self._ask_until)

    def _start_another(self) -> None:
        """Called after an answer: more at once if requests wait for the store, not a processor."""
        if len(self._threads) < self._most + self._extra and self._queue.qsize():
            recent = sorted(self._recent.copy())
            if recent[len(recent) // 2] > _QUICK:
                with self._starting:
                    if len(self._threads) < self._most + self._extra and not self._closed:
                        self._start(self._queue, self._ask_until)

    def _start(self, queue: _Queue, ask: Callable[[_Call[Any, Any], int], None]) -> None:
        # A daemon: at exit Python joins all others, and this one may wait for a store.
        name = f"dali_storage-get-{len(self._threads)}"
        thread = threading.Thread(target=self._work, args=(queue, ask), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self, queue: _Queue, ask: Callable[[_Call[Any, Any], int], None]) -> None:
        while (job := queue.get()) is not None and not self._closed:
            ask(*job)
            del job  # or it would keep its answers until the next one
        queue.put(None)  # for the next thread

    def _ask(self, call: _Call[Any, Any], position: int) -> None:
        """Ask once more. An error does not count: the first request goes on."""
        if position in call.pending:
            with contextlib.suppress(BaseException):
                call.answer(position, call.ask(call.items[position]), None)

    def _ask_until(self, call: _Call[Any, Any], position: int) -> None:
        """Ask until there is an answer, or an error that stays."""
        thread, tries = threading.get_ident(), 0
        call.started[position] = began = time.monotonic()
        while position in call.pending:
            asked = time.monotonic()
            try:
                answer = call.ask(call.items[position])
            except BaseException as error:  # a panic of Rust is no Exception
                pause = min(_FIRST_PAUSE * 2**tries, _LONGEST_PAUSE) * random.uniform(0.5, 1)
                late = time.monotonic() + pause > began + self._retry
                if late or not call.retryable(error):
                    call.answer(position, None, error)
                    break
            else:
                took = time.monotonic() - asked
                self._seen.append(took)
                self._recent.append(took)
                self._start_another()
                call.answer(position, answer, None)
                break
            tries += 1
            self._retrying[thread] = None
            if self._open.acquire(timeout=pause):  # it is being closed
                self._open.release()
                break
        self._retrying.pop(thread, None)
