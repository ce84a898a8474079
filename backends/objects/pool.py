"""Concurrent requests of several lanes, by two engines: threads, and a client of our own.

A lane hands its items to the client, if there is one, and those that this leaves to the threads.
Both need a permit of the `Pace` for each request, and put answers into the lane's `Call`.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...contract.stages import note, yield_turn
from .calls import Answer, Call, Client, Item
from .pace import Pace
from .threads import Renewed, RequestThreads

_EXTRA = 0.05  # requests that hedging may add, as a fraction of all
_LOOK = 0.1  # the most seconds between two looks for late requests


class RequestPool:
    """Requests items for several lanes: first come, first served, `most` requests at once."""

    def __init__(
        self, most: int, *, retry: float, hedge: float | None, renewed: Renewed = lambda *_: False
    ) -> None:
        """Start no thread yet.

        Args:
            most: requests in flight; fewer while the store responds within 10 ms. Hedging adds a
                twentieth, at least one.
            retry: seconds after the first request for an item in which failures are retried.
            hedge: seconds without a response after which a request is sent once more. None: never.
            renewed: whether the keys of a failed request, sent at a time, are replaced now.
        """
        self.pace, self.retry, self._hedge = Pace(most), retry, hedge
        hedges = 0 if hedge is None else max(round(most * _EXTRA), 1)
        self._threads = RequestThreads(self.pace, retry, hedges, renewed)
        self._calls: set[Call[Any, Any]] = set()  # running ones
        self._asked = 0  # races of lanes may lose a few: exact enough for a bound of hedging
        self.hedged = 0  # hedging requests
        self._closed = False
        self._cause: BaseException | None = None

    def run(
        self,
        ask: Callable[[Item], Answer],
        items: Sequence[Item],
        take: Callable[[int, Answer], None],
        explain: Callable[[int, BaseException], Exception],
        *,
        client: Client | None = None,
        places: Sequence[memoryview] = (),
        describe: Callable[[Item], str] | None = None,
    ) -> None:
        """Request n items at once, and process each answer on arrival, in the calling thread.

        Yields the turn.

        `ask` is called in other threads, and may still be running when `run()` returns or raises.
        `take` gets the position of an item and its answer. `explain` gets the position of the
        first failed item, in their order, and its error, and returns the error to raise. `describe`
        names an item in reports.

        `client` gets the items first, and answers None once the bytes are at their places. It
        writes nothing after `run()` returns.

        Raises:
            OSError: the pool is closed (ECANCELED), or an error has ended the client (EIO).
        """
        yield_turn()
        call, positions = Call(ask, items, places), range(len(items))
        self._calls.add(call)
        if describe:
            described = note(partial(call.describe, describe))
        writable = {*positions} if client else set[int]()  # positions a client may write to
        try:
            self._asked += len(items)
            left = client.send(call, positions) if client else positions
            writable.difference_update(left)
            self._threads.send(call, left)
            failed = self._collect(call, take, client, writable)
        finally:
            call.end()  # the rest is not requested any more
            if describe:
                note(described)
            if client and writable:
                client.drop(call)
            self._calls.discard(call)
        if failed:
            try:
                raise explain(*failed)
            finally:
                del failed  # its traceback keeps frames alive, perhaps this one

    def ask_again(self, call: Call[Any, Any], position: int) -> None:
        """Request an item by a thread, after the client has failed."""
        try:
            self._threads.send(call, [position])
        except RuntimeError as error:
            call.answer(position, error)

    def cancel(self, cause: BaseException | None = None) -> None:
        """Make all `run()` fail at once, by `cause`. No request is possible afterwards."""
        self._closed, self._cause = True, self._cause or cause
        self._threads.cancel()
        for call in list(self._calls):
            call.ring()

    def close(self) -> None:
        """End the threads. Waits for abandoned requests, for at most 3 seconds.

        Closing twice is fine, in any thread: the garbage collector may run in one of these.
        """
        self.cancel()
        self._threads.close()

    def _collect(
        self,
        call: Call[Any, Answer],
        take: Callable[[int, Answer], None],
        client: Client | None,
        writable: set[int],
    ) -> tuple[int, BaseException] | None:
        """Process the answers to all items; return the first failed position and its error."""
        failed: tuple[int, BaseException] | None = None
        waiting = len(call.items)
        while waiting:
            if not self._closed:  # after closing, nothing may ring
                self._wait(call)
            if self._closed:
                broken = errno.EIO, "the thread of requests has failed; create a new reader"
                closed = errno.ECANCELED, "the reader was closed"
                raise OSError(*(broken if self._cause else closed)) from self._cause
            for position, answer in call.arrived():
                waiting -= 1
                if not isinstance(answer, BaseException):
                    if failed is None:
                        if client and answer is not None and position in writable:
                            client.drop(call, position)  # a thread was faster
                        writable.discard(position)
                        take(position, answer)
                elif failed is None or position < failed[0]:
                    failed = position, answer  # later items are not needed
                    waiting -= call.drop_behind(position)
                del answer
        return failed

    def _wait(self, call: Call[Any, Any]) -> None:
        """Wait until there are answers; meanwhile, hedge late requests."""
        if self._hedge is None:
            call.wait(None)
            return
        while not call.wait(min(max(self._hedge / 4, 0.005), _LOOK)):
            most = max(int(self._asked * _EXTRA), 1) - self.hedged
            if not (self._threads.retries or self.pace.resting):
                for position in call.late(time.monotonic() - self._hedge, most):
                    self.hedged += 1
                    self._threads.hedge(call, position)
