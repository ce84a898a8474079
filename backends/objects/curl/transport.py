"""Distribution of requests to libcurl or obstore."""

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


_FAR_US, _JUDGED = 10_000, 500  # a store is far if none of so many responses began earlier


_FASTER = ("https:",)  # measured: without TLS, one thread is no faster


@dataclass(slots=True)
class _Place:
    """A bucket or web server, for libcurl, or with the reason why obstore is used."""

    bucket: Bucket | None = None
    reason: str = ""  # not empty: left to obstore for good
    waits: list[int] = field(default_factory=list)  # µs until responses began


class Curl:
    """Requests pieces by libcurl, if they have a version for If-Match, or need none.

    Unless libcurl is required, obstore gets stores unreadable by libcurl, and stores where a single
    thread is not faster: without TLS, or far away, because some responses wait while the thread
    handles others.
    """

    def __init__(self, stores: Stores, pool: RequestPool, *, required: bool) -> None:
        """Send nothing yet. `required`: a bucket unreadable by libcurl is an error.

        Raises:
            BackendUnavailable: libcurl is missing, or cannot honour an option.
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
        """Request pieces into their addresses. Returns the positions of pieces left to obstore.

        Raises:
            BackendUnavailable: libcurl is required, and cannot request a piece.
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
        """Settle a completed request, or request again; return whether the body has arrived."""
        error: Exception | None = None
        position, settled = handle.position, False
        del call.flying[position], call.landed[position]
        if call.pending.pop(position, self) is None:  # otherwise a thread was faster
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
                    reason = "libcurl gets responses that only obstore understands"
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
    """The part of a URL before the key: scheme and bucket."""
    return url[: url.find(b"/", url.find(b"//") + 2)]
