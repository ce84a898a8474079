"""Which requests are sent when, on which connections."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .answers import Refused
from .connections import Connection, Job, Server
from .redirects import Redirects
from .standing import PATIENCE, Standing

if TYPE_CHECKING:
    from ..calls import Call
    from ..pool import RequestPool

_ONCE = 1.0  # seconds for what should happen once: to open a connection, to ask a hub
_LONGEST_STEP = PATIENCE / 2  # seconds between two looks for late answers


class Traffic:
    """The requests of several lanes, first come, first served; for the thread of an event loop."""

    def __init__(
        self,
        pool: RequestPool,
        failed: Callable[[Job, Exception | None, Standing], None],
        left: Callable[[Job], bool],
        wake: Callable[[], None],
        redirects: Redirects,
        required: bool,
    ) -> None:
        """Send nothing yet.

        `failed` gets requests for obstore, with the error if they have failed; `left` tests if
        obstore makes a request. `wake` has `send()` called soon. `redirects` are kept there.
        `required`: see `Standing`.
        """
        self._pace, self._retry, self._failed, self._wake = pool.pace, pool.retry, failed, wake
        self._left = left
        self._most = self._pace.few
        self._standings = defaultdict[tuple[str, int], Standing](lambda: Standing(required))
        self._todo = deque[Job]()
        self._busy: dict[Connection, Job] = {}
        self._idle = defaultdict[Server, list[Connection]](list)
        self.redirects = redirects
        self._looking = False  # for late answers

    def send(self, jobs: Iterable[Job] = ()) -> None:
        """Send as many requests as allowed: earlier ones, then these."""
        self._todo.extend(self.redirects.ready(jobs))
        if rest := self._pace.resting:
            asyncio.get_running_loop().call_later(rest, self.send)
            return
        waiting = deque[Job]()
        while self._todo:
            job, standing = self._todo[0], self._standings[self._todo[0].server.address]
            if standing.left or self._left(job):
                self._todo.popleft()
                self._todo.extend(self.redirects.forget(job))
                self._failed(job, None, standing)
                continue
            if standing.waits:
                waiting.append(self._todo.popleft())
                continue
            if len(self._busy) >= self._most or not self._pace.try_take(self._wake):
                break
            self._todo.popleft()
            standing.begins(job)
            idle = self._idle[job.server]
            used = idle.pop() if idle else Connection(job.server, self._end)
            self._busy[used] = job
            job.start()
            used.send(job)
        self._todo.extendleft(reversed(waiting))
        if self._busy and not self._looking:
            self._look()

    def drop(self, call: Call[Any, Any], position: int | None) -> None:
        """End all writes for a call, or for one of its positions; forget the requests."""

        def meant(job: Job) -> bool:
            return job.call is call and position in (None, job.position)

        dropped = [job for job in self._todo if meant(job)]
        self._todo = deque(job for job in self._todo if not meant(job))
        self.redirects.drop(meant)
        for connection, job in [*self._busy.items()]:
            if meant(job):
                dropped.append(job)
                standing = self._standings[job.server.address]
                if standing.trial is job and connection.socket and connection.silent:
                    standing.fails(job, None)  # hedging was faster
                self._release(connection, job)
                connection.close()
        for job in dropped:
            self._todo.extend(self.redirects.forget(job))
        for standing in self._standings.values():
            if standing.trial and meant(standing.trial):
                standing.finished(standing.trial, good=position is not None)
        self.send()

    def answered(self, job: Job, good: bool) -> None:
        """Note the first answer to a request after its failure, or an error."""
        self._standings[job.server.address].finished(job, good)
        self.drop(job.call, job.position)

    def close(self) -> None:
        """Forget all requests, and close all connections."""
        self._todo.clear()
        for connection in [*self._busy, *(it for idle in self._idle.values() for it in idle)]:
            connection.close()

    def _end(self, connection: Connection, job: Job | None, error: Exception | None) -> None:
        if job is None:
            self._idle[connection.server].remove(connection)
            return
        self._release(connection, job)
        if connection.socket:
            self._idle[connection.server].append(connection)
        standing = self._standings[job.server.address]
        again, failed = self.redirects.ended(job, error)
        self._todo.extendleft(again)
        self._pace.note("retry" if failed else "request", time.monotonic() - job.began)
        if failed and error:
            self._fail(job, error, standing)
        else:
            standing.fits()
        if not error:
            job.call.answer(job.position, None)
            if self._todo:
                self._most = self._pace.grown(self._most)
        self.send()

    def _fail(self, job: Job, error: Exception, standing: Standing) -> None:
        standing.fails(job, error)
        if pause := isinstance(error, Refused) and error.pause:
            self._pace.rest(min(pause, self._retry))
        if pause and not job.lent and time.monotonic() + pause <= job.first + self._retry:
            self._todo.extendleft(self.redirects.ready([job]))
        elif not job.lent:
            self._failed(job, error, standing)

    def _release(self, connection: Connection, job: Job) -> None:
        del self._busy[connection]
        if not job.lent:
            self._pace.give_back()

    def _look(self) -> None:
        """End late requests; look again later."""
        now, step = time.monotonic(), _LONGEST_STEP
        for connection, job in [*self._busy.items()]:
            step = min(step, job.server.timeout / 4)
            standing = self._standings[job.server.address]
            if now - job.began > job.server.timeout:
                connection.end(job, TimeoutError())
            elif not standing.waits or now - connection.since < _patience(connection, job):
                pass
            elif not connection.silent:
                standing.fits()  # a slow or broken body is no reason for all to wait
                self.send()
            else:
                standing.fails(job, None)
                job.lent = True
                self._pace.give_back()
                self._failed(job, None, standing)
                self.send()
        if looking := bool(self._busy):
            asyncio.get_running_loop().call_later(step, self._look)
        self._looking = looking


def _patience(connection: Connection, job: Job) -> float:
    """Seconds without a byte after which obstore, whose connection may be open, is asked, too."""
    return PATIENCE if connection.socket and job.hedged else _ONCE
