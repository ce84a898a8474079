"""Which pieces libcurl asks for, and which are left to obstore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....contract._types import IntArray
from ....contract.errors import BackendUnavailable
from ..store import Stores, split
from . import libcurl
from .network import Handle, Network
from .requests import AskObstore, Bucket, bucket_of, client_settings, make_requests

if TYPE_CHECKING:
    from ..pool import Call, RequestPool
    from ..versions import ObjectPart


_FAR_US, _JUDGED = 10_000, 500  # none of so many answers has begun so early


class Curl:
    """Asks for pieces by libcurl, if they have a version that If-Match takes, or need none.

    Unless it is required, it leaves stores to obstore that are far away, where one thread is no
    faster: some answers wait while it works on others.
    """

    def __init__(self, stores: Stores, pool: RequestPool, *, required: bool) -> None:
        """Ask for nothing yet. `required`: a bucket that libcurl cannot read is an error.

        Raises:
            BackendUnavailable: there is no libcurl, or it cannot do what the options say.
        """
        settings, self._headers = client_settings(stores.client)
        self._stores, self._pool, self._required = stores, pool, required
        self._buckets: dict[int, Bucket | None] = {}  # by the id of obstore's store
        self._network = Network(pool, settings)
        self._waits: list[int] = []
        self._worked = self._left = False
        self._reason = ""  # why obstore is asked
        pool.share(self)

    def __str__(self) -> str:
        return f"obstore ({self._reason})" if self._reason else self._network.library.name

    def send(self, call: Call[ObjectPart, Any], addresses: IntArray) -> list[int]:
        """Have pieces written to their addresses. Returns the positions of those left to obstore.

        Raises:
            BackendUnavailable: libcurl is required, and cannot ask for one.
            OSError, RuntimeError: see `Network.send()`.
        """
        sent: dict[int, list[int]] = {}
        left = []
        for position, piece in enumerate(call.items):
            strong = not piece.version or piece.version.startswith(b'"')
            if strong and piece.length and self._bucket(piece):
                sent.setdefault(id(piece.place[0]), []).append(position)
            else:
                left.append(position)
        for number, positions in sent.items():
            bucket = self._buckets[number]
            assert bucket
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
            try:
                handle.settle()
                self._pool.recent.append(handle.seconds)
                settled = self._worked = True
                if not self._required:
                    wait = handle.number(libcurl.ANSWERING) - handle.number(libcurl.SENDING)
                    self._waits.append(wait)
                    if len(self._waits) == _JUDGED:
                        if min(self._waits) > _FAR_US:
                            self._leave("the store is far away")
                        self._waits.clear()
            except AskObstore:
                if not self._worked:
                    self._leave("what libcurl gets, only obstore understands")
            except Exception as failure:
                error = failure
            if not settled:
                call.pending[position] = None
                self._pool.ask_again(call, position, error)
        self._network.put_back(handle)
        return settled

    def drop(self, call: Call[Any, Any], position: int | None = None) -> None:
        self._network.drop(call, position)

    def wake(self) -> None:
        self._network.wake()

    def close(self) -> None:
        self._network.close()

    def _leave(self, reason: str) -> None:
        """Ask for nothing more."""
        self._reason, self._left = reason, True

    def _bucket(self, piece: ObjectPart) -> Bucket | None:
        number = id(piece.place[0])
        if self._left:
            return None
        if number not in self._buckets:
            scheme, name, _ = split(piece.url)
            try:
                self._buckets[number] = bucket_of(self._stores, scheme, name)
            except BackendUnavailable as error:
                if self._required:
                    raise
                self._buckets[number], self._reason = None, str(error).partition(";")[0]
        return self._buckets[number]
