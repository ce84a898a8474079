"""Objects of S3, Google Cloud Storage, Azure and web servers, by obstore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.devices import DeviceStatus
from ..contract.errors import BackendUnavailable
from ..contract.objects import Remote
from ..contract.options import require_flag, require_integer, require_number
from ..contract.processors import processors
from ..contract.ranges import Spans
from ..contract.reader import Batch, Reader
from .files.samples import FILES_AT_ONCE
from .linux import engines
from .objects.pool import RequestPool
from .objects.remote import StoreRemote
from .objects.status import origins
from .objects.store import Stores
from .objects.versions import VersionedObjects

if TYPE_CHECKING:
    from .objects.cache import Cache

_NAME = "object-store"
_SHORTEST, _LONGEST = 1 << 20, 4 << 20  # bytes of a request for a part of something longer
_OF_STORES = frozenset({"endpoint", "region", "anonymous", "timeout", "client_options"})


class ObjectStoreReader(Reader):
    """Reads whole objects, or ranges of them; the default for URLs.

    All lanes share `requests` threads, each with one blocking request. A request has memory of its
    own, and only the lane copies to the buffer of the batch. So nothing that is abandoned, because
    the batch has failed, or asked for twice, because it was slow, ever writes to a batch.

    An object is compared with what it was when it was listed or, if it was not, when it was first
    asked for: by If-Match, and again when the answer comes, because some stores ignore If-Match.

    What is longer than a MiB is asked for in parts, so that a batch keeps its share of the requests
    busy; a body that was cut is asked for again from the start of its part.

    A batch that is in the cache is read as python-file reads files. The lanes take turns then.
    """

    alignment = 64  # a cache line
    gap = 32 << 10  # as much takes the CPU time of a request; and no waiting for an answer
    schemes = ("s3", "gs", "az", "http", "https")
    reads_ranges = True

    def __init__(
        self,
        catalog: Catalog,
        *,
        requests: int = 64,
        lanes: int = 3,
        timeout: float = 30.0,
        retry: float = 120.0,
        hedge: float | None = None,
        check: bool = True,
        endpoint: str | None = None,
        region: str | None = None,
        anonymous: bool = False,
        client_options: Mapping[str, Any] | None = None,
        cache: str | bytes | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        """Ask for nothing yet.

        Args:
            catalog: the samples.
            requests: how many requests are under way at once, over all lanes, from 1 to 1024; at
                most 16 while the store answers within 10 ms.
            lanes: how many batches are read at once, from 1 to 64.
            timeout: seconds until a request is given up, from 0.001 to 3600.
            retry: seconds in which a request that failed is made again, 0 to 86400; 0: never.
            hedge: seconds (0.001 to 3600) without an answer after which a request is made once
                more, and the faster answer is taken. At most a twentieth more requests. None:
                never.
            check: compare the versions of objects, not only their sizes.
            endpoint: the URL of a server that speaks S3; None: as the environment says.
            region: of S3; None: as the environment says.
            anonymous: make requests without credentials.
            client_options: further ones of obstore's HTTP client.
            cache: a directory on a local disk, where samples are kept that were read, as far as
                the disk keeps up. All processes of a user may share it. It is created if only its
                last component is missing.
            cache_bytes: how many bytes all samples there may take. When it is full, nothing is
                added. None: it is full when less than a tenth of the file system is free.

        Raises:
            ValueError, TypeError: a wrong option.
            OSError: `cache` is no directory, or cannot be written to.
            BackendUnavailable: `cache` needs a package, or cannot be read on this machine.
        """
        require_integer(_NAME, "requests", requests, range(1, 1025))
        require_integer(_NAME, "lanes", lanes, range(1, 65))
        if hedge is not None:
            require_number(_NAME, "hedge", hedge, 0.001, 3600)
        _require_retries(retry, check)
        if cache is None and cache_bytes is not None:
            raise ValueError(f"{_NAME}: cache_bytes needs cache, the directory")
        if cache is not None and not check:
            raise ValueError(f"{_NAME}: cache needs check=True, or it would mix versions")
        self.lanes = lanes
        self._share = max(requests // lanes, 1)
        self._catalog = catalog
        self._stores = Stores(endpoint, region, anonymous, timeout, client_options)
        self._cache: Cache | None = None
        if cache is not None:
            make = _cache_type()
            _, read = engines.choose(_NAME, None, FILES_AT_ONCE)
            place = self._stores.place()
            self._cache = make(catalog, cache, cache_bytes, read=read, store=place)
            self.cooperative = True
            if catalog.ranges is not None:
                self.copying_lanes = processors()  # see python-file
        self._requests = RequestPool(requests, retry=retry, hedge=hedge)
        self._objects = VersionedObjects(catalog, self._stores, self._requests, check)

    def sizes(self, samples: IntArray) -> IntArray:
        return self._objects.sizes(samples, self.yield_turn)

    def read(self, batch: Batch, lane: int) -> None:
        spans = _whole(batch) if batch.spans is None else batch.spans
        # In the order of the batch: of several that fail, the first is named.
        files = spans.files[np.argsort(spans.slots, kind="stable")]
        self._objects.sizes(files, self.yield_turn)
        if batch.spans is not None:
            self._objects.require_inside(batch.samples[batch.sizes > 0])
        if self._cache is None:
            self._fetch(batch, spans)
            return
        versions = self._objects.strong_versions(self._catalog.files(batch.samples))
        missing = self._cache.read(batch, versions, self.yield_turn)
        if missing.size:
            self._fetch(batch, spans[_needed(batch, spans, missing)])
            self._cache.add(batch, versions, missing)

    def cancel(self) -> None:
        self._requests.cancel()

    def close(self) -> None:
        self._requests.close()
        self._stores.close()
        if self._cache is not None:
            self._cache.close()

    @classmethod
    def remote(cls, *, retry: float = 120.0, check: bool = True, **options: Any) -> Remote:
        _require_retries(retry, check)
        of_stores = {name: value for name, value in options.items() if name in _OF_STORES}
        return StoreRemote(Stores(**of_stores), retry, check)

    @classmethod
    def devices(cls) -> Iterable[DeviceStatus]:
        return origins()

    def _fetch(self, batch: Batch, spans: Spans) -> None:
        """Fill spans of a batch by requests."""
        self.yield_turn()
        part = int(np.clip(spans.sizes.sum() // self._share, _SHORTEST, _LONGEST))
        spans = spans.split(part)
        spans = spans[np.argsort(spans.slots, kind="stable")]
        pieces = self._objects.pieces(spans.files, spans.starts, spans.sizes)
        starts, memory = spans.offsets.tolist(), memoryview(batch.buffer)  # type: ignore[arg-type]

        def take(position: int, body: memoryview) -> None:
            start = starts[position]
            memory[start : start + body.nbytes] = body

        self._objects.read(pieces, take)


def _require_retries(retry: float, check: bool) -> None:
    require_number(_NAME, "retry", retry, 0, 86400)
    require_flag(_NAME, "check", check)


def _cache_type() -> type[Cache]:
    try:
        from .objects.cache import Cache
    except ModuleNotFoundError as error:
        if error.name != "google_crc32c":
            raise
        what = f"{_NAME}: cache needs the package google-crc32c, which is not installed"
        remedy = "pip install 'dali-storage[object-store]'"
        raise BackendUnavailable(what, remedy) from None
    return Cache


def _needed(batch: Batch, spans: Spans, slots: IntArray) -> npt.NDArray[np.bool_]:
    """bool[k]: which spans of a batch have bytes of the samples in some slots."""
    needed = np.zeros(len(spans), bool)
    if batch.spans is not None:
        slots = np.searchsorted(spans.offsets, batch.offsets[slots], "right") - 1
    needed[slots] = True
    return needed


def _whole(batch: Batch) -> Spans:
    """Whole objects as spans."""
    slots = np.arange(batch.samples.size)
    sizes = batch.sizes
    return Spans(batch.samples, np.zeros_like(sizes), sizes, sizes, batch.offsets, slots)
