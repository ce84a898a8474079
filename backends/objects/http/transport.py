"""Distribution of requests to the client of our own, or to obstore."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ....contract.errors import BackendUnavailable
from ....contract.options import Choice
from ..store import Store, Stores, split
from .answers import Refused
from .loop import LoopThread
from .redirects import Redirects, same_origin
from .requests import Bucket, bucket_of, headers_of
from .traffic import Traffic

if TYPE_CHECKING:
    from ..calls import Call
    from ..pool import RequestPool
    from ..versions import ObjectPart
    from .connections import Job
    from .standing import Standing

_OWN = "its own client"
_TARGETS = 64  # stores of obstore for what URLs redirect to


class OwnClient:
    """Requests pieces by HTTP/1.1, if they have a version for If-Match, or need none.

    One thread sends the requests of all lanes of a reader, and receives bodies at their
    destination. Obstore makes all other requests, and again those that fail.
    """

    def __init__(self, stores: Stores, pool: RequestPool, *, required: bool) -> None:
        """Send nothing yet. `required`: a bucket unreadable by this client is an error.

        Raises:
            BackendUnavailable: the client is required, and cannot honour an option.
        """
        if required:
            headers_of(stores.client)
        self._stores, self._pool, self._required = stores, pool, required
        # Each has connections of its own, and there may be many files.
        self._at = lru_cache(_TARGETS)(stores.target)
        # By scheme and bucket; or why obstore makes all requests.
        self._buckets: dict[bytes, Bucket | str] = {}
        self.choices: dict[str, Choice[str]] = {}  # what obstore reads, and why
        self._leaving = threading.Lock()
        redirects = Redirects(stores.targets)
        self._traffic = Traffic(pool, self._fail, self._is_left, self._wake, redirects, required)
        self._thread = LoopThread(self._end)

    def __str__(self) -> str:
        return str(self.choices.get("transport", _OWN))

    def send(self, call: Call[ObjectPart, Any], positions: Iterable[int]) -> list[int]:
        """Request pieces into their places. Returns the positions left to obstore.

        Raises:
            BackendUnavailable: the client is required, and cannot request a piece.
            RuntimeError: see `LoopThread.start()`.
        """
        sent, left = defaultdict[Bucket, list[int]](list), list[int]()
        for position in positions:
            piece = call.items[position]
            strong = not piece.version or piece.version.startswith(b'"')
            bucket = self._bucket(piece.url) if strong and piece.length else None
            (sent[bucket] if bucket else left).append(position)
        if sent:
            self._thread.start()
        for bucket, its in sent.items():
            requests = bucket.requests([call.items[at] for at in its])
            if not requests:  # obstore waits for keys
                left += its
                continue
            made = zip(its, requests, strict=True)
            jobs = [bucket.job(call, at, it) for at, it in made]
            self._thread.call(self._traffic.send, jobs)
        return left

    def drop(self, call: Call[Any, Any], position: int | None = None) -> None:
        self._thread.wait_for(self._traffic.drop, call, position)

    def target(self, url: bytes) -> Store | None:
        if (found := self._traffic.redirects.newest.get(url)) is None:
            return None
        foreign = not same_origin(found.url, urlsplit(url.decode()))
        return self._at(found.url.geturl(), foreign=foreign)

    def close(self) -> None:
        self._thread.close()

    def _fail(self, job: Job, error: Exception | None, standing: Standing) -> None:
        """Leave a request to obstore, or all of its bucket where only obstore understands."""
        if isinstance(error, Refused) and error.args and not self._required:
            self._set(_root(job.call.items[job.position].url), f"the server {error}")
        elif standing.aside:
            why = f"the server {standing.why}, but answered obstore, three or more times in a row"
            self._set(_root(job.call.items[job.position].url), why)
        elif standing.trial is job:
            job.call.then[job.position] = partial(self._thread.call, self._traffic.answered, job)
        self._pool.ask_again(job.call, job.position)

    def _is_left(self, job: Job) -> bool:
        return isinstance(self._buckets[_root(job.call.items[job.position].url)], str)

    def _wake(self) -> None:
        self._thread.call(self._traffic.send)

    def _end(self, error: BaseException | None) -> None:
        self._pool.cancel(error)  # lanes do not wait for a thread that has ended
        self._traffic.close()

    def _bucket(self, url: bytes) -> Bucket | None:
        if (found := self._buckets.get(root := _root(url))) is None:
            try:
                found = bucket_of(self._stores, *split(url)[:2])
            except BackendUnavailable as error:
                if self._required:
                    raise
                found = str(error).partition(";")[0]
            found = self._set(root, found)
        return None if isinstance(found, str) else found

    def _set(self, root: bytes, found: Bucket | str) -> Bucket | str:
        """Note a bucket, or why obstore reads it, which stays; return what is noted."""
        with self._leaving:
            if not isinstance(self._buckets.get(root), str):
                self._buckets[root] = found
            if left := {root: why for root, why in self._buckets.items() if isinstance(why, str)}:
                mixed = f"{_OWN}, and obstore for {os.fsdecode(b', '.join(left))}"
                where = mixed if len(left) < len(self._buckets) else "obstore"
                self.choices["transport"] = Choice(where, "; ".join(sorted({*left.values()})))
            return self._buckets[root]


def _root(url: bytes) -> bytes:
    """The part of a URL before the key: scheme and bucket."""
    return url[: url.find(b"/", url.find(b"//") + 2)]
