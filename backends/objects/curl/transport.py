"""Which pieces libcurl asks for, and which are left to obstore."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....contract._types import IntArray
from ....contract.errors import BackendUnavailable
from ..errors import AnswerError
from ..store import Stores, split
from . import libcurl
from .network import Handle, Network
from .requests import AskObstore, Bucket, bucket_of, client_settings, make_requests

if TYPE_CHECKING:
    from ..pool import Call, RequestPool
    from ..versions import ObjectPart


_FAR_US, _JUDGED = 10_000, 500  # none of so many answers has begun so early


_FASTER = ("https:",)  # measured: without TLS, one thread is no faster


@dataclass(slots=True)
class _Place:
    """A bucket or web server: how libcurl asks it, or why obstore does."""

    bucket: Bucket | None = None
    reason: str = ""  # not empty: it is left to obstore for good
    waits: list[int] = field(default_factory=list)  # µs until answers began


class Curl:
    """Asks for pieces by libcurl, if they have a version that If-Match takes, or need none.

    Unless it is required, it leaves stores to obstore that it cannot read, or where one thread is
    no faster: without TLS, and far away, as some answers wait while it works on others.
    """

    def __init__(self, stores: Stores, pool: RequestPool, *, required: bool) -> None:
        """Ask for nothing yet. `required`: a bucket that libcurl cannot read is an error.

        Raises:
            BackendUnavailable: there is no libcurl, or it cannot do what the options say.
        """
        settings, self._headers = client_settings(stores.client)
        self._stores, self._pool, self._required = stores, pool, required
        self._places: dict[bytes, _Place] = {}  # by scheme and bucket
        self._network = Network(pool, settings)
        pool.share(self)

    def __str__(self) -> str:
        left = {root: it.reason for root, it in self._places.copy().items() if it.reason}
        name = self._network.library.name
        if not left:
            return name
        reason = "; ".join({*left.values()})
        if len(left) == len(self._places):
            return f"obstore ({reason})"
        return f"{name}, and obstore for {os.fsdecode(b', '.join(left))} ({reason})"

    def send(self, call: Call[ObjectPart, Any], addresses: IntArray) -> list[int]:
        """Have pieces written to their addresses. Returns the positions of those left to obstore.

        Raises:
            BackendUnavailable: libcurl is required, and cannot ask for one.
            OSError, RuntimeError: see `Network.send()`.
        """
        sent: dict[bytes, list[int]] = {}
        left = []
        for position, piece in enumerate(call.items):
            strong = not piece.version or piece.version.startswith(b'"')
            root = _root(piece.url)
            if strong and piece.length and (root in sent or self._place(root, piece).bucket):
                sent.setdefault(root, []).append(position)
            else:
                left.append(position)
        for root, positions in sent.items():
            bucket = self._places[root].bucket
            if not bucket:  # another lane has just left it
                left += positions
                continue
            made = make_requests(bucket, [call.items[at] for at in positions], self._headers)
            call.kept.append(made.memory)
            columns = positions, made.urls, made.headers.tolist(), addresses[positions].tolist()
            handles = []
            for row in zip(*columns, strict=True):
                handle = self._network.handle()
                handle.prepare(call, *row)
                call.flying[row[0]] = handle
                handles.append(handle)
            self._network.send(handles)
        return left

    def settle(self, call: Call[Any, Any], handle: Handle) -> bool:
        """Have the body of a request that has ended in its place; or have it asked for again."""
        error: Exception | None = None
        position, settled = handle.position, False
        del call.flying[position], call.landed[position]
        if call.pending.pop(position, self) is None:  # else a thread was faster
            place = self._places[_root(call.items[position].url)]
            try:
                handle.settle()
                self._pool.recent.append(handle.seconds)
                self._pool.count("request", handle.seconds)
                settled = True
                if not self._required:
                    wait = handle.number(libcurl.ANSWERING) - handle.number(libcurl.SENDING)
                    place.waits.append(wait)
                    if len(place.waits) >= _JUDGED:
                        if min(place.waits) > _FAR_US:
                            place.reason, place.bucket = "the store is far away", None
                        place.waits = []
            except AskObstore as strange:
                if strange.args and self._required:
                    error = AnswerError(*strange.args)
                elif strange.args:
                    reason = "what libcurl gets, only obstore understands"
                    place.reason, place.bucket = reason, None
            except Exception as failure:
                error = failure
            if not settled:
                call.pending[position] = None
                call.began[position] = handle.began
                self._pool.ask_again(call, position, error)
        self._network.put_back(handle)
        return settled

    def drop(self, call: Call[Any, Any], position: int | None = None) -> None:
        self._network.drop(call, position)

    def wake(self) -> None:
        self._network.wake()

    def close(self) -> None:
        self._network.close()

    def _place(self, root: bytes, piece: ObjectPart) -> _Place:
        if (place := self._places.get(root)) is None:
            scheme, name, _ = split(piece.url)
            place = _Place()
            try:
                bucket = bucket_of(self._stores, scheme, name)
                if self._required or bucket.base.startswith(_FASTER):
                    place.bucket = bucket
                else:
                    place.reason = "libcurl is faster with TLS only"
            except BackendUnavailable as error:
                if self._required:
                    raise
                place.reason = str(error).partition(";")[0]
            place = self._places.setdefault(root, place)
        return place


def _root(url: bytes) -> bytes:
    """What comes before the key: scheme and bucket."""
    return url[: url.find(b"/", url.find(b"//") + 2)]
