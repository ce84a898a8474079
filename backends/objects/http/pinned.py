"""A `Remote` that reads objects of known content as a reader of these does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace

import numpy as np

from ....contract._types import IntArray
from ....contract.catalog import Catalog
from ....contract.remote import Known, Listing, Part, Remote, Versions
from ..pool import RequestPool
from ..remote import StoreRemote
from ..store import Stores
from ..versions import VersionedObjects
from .transport import OwnClient


class PinningRemote(StoreRemote):
    """The `Remote` of object stores and web servers, with `pinned()`."""

    def __init__(self, stores: Stores, retry: float, check: bool, transport: str) -> None:
        """Request nothing yet. The arguments after the stores are options of the backend."""
        super().__init__(stores, retry, check)
        self._transport = transport

    @contextmanager
    def pinned(self, known: Mapping[bytes, Known]) -> Iterator[Remote]:
        """See `SupportsPinned`. Redirects are kept, also for the reader that opens after it."""
        with self._requests() as requests:
            required = self._transport == "own"
            of_obstore = self._transport == "obstore"
            own = None if of_obstore else OwnClient(self.stores, requests, required=required)
            with closing(own) if own else nullcontext():
                yield _Pinned(self, known, requests, own)


class _Pinned:
    """What `pinned()` yields."""

    def __init__(
        self,
        remote: StoreRemote,
        known: Mapping[bytes, Known],
        requests: RequestPool,
        client: OwnClient | None,
    ) -> None:
        sizes, versions = map(np.array, zip(*known.values(), strict=True))
        catalog = replace(Catalog.from_names([*known], ()), sizes=sizes, versions=versions)
        self._objects = VersionedObjects(catalog, remote.stores, requests, check=True)
        self._files = {url: file for file, url in enumerate(known)}
        self._remote, self._client = remote, client

    def listing(self, root: bytes, choose: Callable[[list[bytes]], list[bytes]]) -> Listing:
        return self._remote.listing(root, choose)

    def heads(self, urls: Sequence[bytes]) -> tuple[IntArray, Versions]:
        if not self._files.keys() >= {*urls}:
            return self._remote.heads(urls)
        files = np.array([self._files[url] for url in urls], np.int64)
        return self._objects.sizes(files), self._objects.versions[files]

    def contents(self, parts: Sequence[Part]) -> list[bytes]:
        if not self._files.keys() >= {url for url, _, _ in parts}:
            return self._remote.contents(parts)
        files = np.array([self._files[url] for url, _, _ in parts], np.int64)
        starts = np.array([start for _, start, _ in parts], np.int64)
        rest = self._objects.sizes(files) - starts
        most = [
            left if size is None else size for (_, _, size), left in zip(parts, rest, strict=True)
        ]
        lengths = np.clip(most, 0, rest)
        bodies = [bytearray(length) for length in lengths.tolist()]
        some = np.flatnonzero(lengths)
        pieces = self._objects.pieces(files[some], starts[some], lengths[some])
        self._objects.read(pieces, [memoryview(bodies[at]) for at in some], self._client)
        return [*map(bytes, bodies)]
