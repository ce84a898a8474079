"""Which requests are sent when, on which connections."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from .connections import Connection, Job, Server
from .redirects import Redirects

if TYPE_CHECKING:
    from ..calls import Call
    from ..pace import Pace

_LONGEST_STEP = 1.0  # seconds between two looks for late answers


class Traffic:
    """The requests of several lanes, first come, first served; for the thread of an event loop."""

    def __init__(
        self, pace: Pace, failed: Callable[[Job, Exception], None], wake: Callable[[], None]
    ) -> None:
        """Send nothing yet. `failed` gets failed requests; `wake` has `send()` called soon."""
        self._pace, self._most, self._failed, self._wake = pace, pace.few, failed, wake
        self._todo = deque[Job]()
        self._busy: dict[Connection, Job] = {}
        self._idle = defaultdict[Server, list[Connection]](list)
        self._redirects = Redirects()
        self._looking = False  # for late answers

    def send(self, jobs: Iterable[Job] = ()) -> None:
        """Send as many requests as allowed: earlier ones, then these."""
        self._todo.extend(self._redirects.ready(jobs))
        while self._todo and len(self._busy) < self._most and self._pace.try_take(self._wake):
            job = self._todo.popleft()
            idle = self._idle[job.server]
            used = idle.pop() if idle else Connection(job.server, self._end)
            self._busy[used] = job
            job.began = job.call.begin(job.position)
            used.send(job)
        if self._busy and not self._looking:
            self._look()

    def drop(self, call: Call[Any, Any], position: int | None) -> None:
        """End all writes for a call, or for one of its positions; forget the requests."""

        def meant(job: Job) -> bool:
            return job.call is call and position in (None, job.position)

        dropped = [job for job in self._todo if meant(job)]
        self._todo = deque(job for job in self._todo if not meant(job))
        self._redirects.drop(meant)
        for connection, job in [*self._busy.items()]:
            if meant(job):
                dropped.append(job)
                self._release(connection)
                connection.close()
        for job in dropped:
            self._todo.extend(self._redirects.forget(job))
        self.send()

    def close(self) -> None:
        """Forget all requests, and close all connections."""
        self._todo.clear()
        for connection in [*self._busy, *(it for idle in self._idle.values() for it in idle)]:
            connection.close()

    def _end(self, connection: Connection, job: Job | None, error: Exception | None) -> None:
        if job is None:
            self._idle[connection.server].remove(connection)
            return
        self._release(connection)
        if connection.socket:
            self._idle[connection.server].append(connection)
        again, failed = self._redirects.ended(job, error)
        self._todo.extendleft(again)
        self._pace.note("retry" if failed else "request", time.monotonic() - job.began)
        if failed and error:
            self._failed(job, error)
        elif not error:
            job.call.answer(job.position, None)
            if self._todo:
                self._most = self._pace.grown(self._most)
        self.send()

    def _release(self, connection: Connection) -> None:
        del self._busy[connection]
        self._pace.give_back()

    def _look(self) -> None:
        """End late requests; look again later."""
        now, step = time.monotonic(), _LONGEST_STEP
        for connection, job in [*self._busy.items()]:
            step = min(step, job.server.timeout / 4)
            if now - job.began > job.server.timeout:
                connection.end(job, TimeoutError())
        if looking := bool(self._busy):
            asyncio.get_running_loop().call_later(step, self._look)
        self._looking = looking
