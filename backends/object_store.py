"""Objects of S3, Google Cloud Storage, Azure and web servers, by obstore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray, PathLike
from ..contract.catalog import Catalog
from ..contract.devices import DeviceStatus
from ..contract.faces import explained
from ..contract.objects import scheme
from ..contract.options import Flag, Lanes, Option, check_options
from ..contract.ranges import Spans
from ..contract.reader import Batch, Reader
from ..contract.remote import Remote
from ..contract.stages import enter
from ..runtime.machine import processors
from .files.samples import FILES_AT_ONCE
from .linux import engines
from .objects.http.pinned import PinningRemote
from .objects.http.transport import OwnClient
from .objects.pool import RequestPool
from .objects.remote import StoreRemote
from .objects.store import Stores, Timeout, origins
from .objects.versions import VersionedObjects

if TYPE_CHECKING:
    from .objects.cache.samples import Cache

_NAME = "object-store"
_Retry: TypeAlias = Annotated[float, Option((0.0, 86400), "s")]
_SHORTEST, _LONGEST = 1 << 20, 4 << 20  # bytes of a request for a part of a longer range
_OF_STORES = frozenset({"endpoint", "region", "anonymous", "timeout", "client_options"})


class ObjectStoreReader(Reader):
    """A reader of whole objects, or ranges of them; the default for URLs.

    The built-in client requests objects of S3 and web servers: one thread for all lanes receives
    bodies in the buffer of the batch. An abandoned request (of a failed batch, or slower than its
    hedge) ends before its memory is used again. Other objects, lists, versions and retries go
    through obstore: `requests` threads, each with one blocking request; the lane copies the
    responses.

    An object must match its listed version or, if not listed, its version at the first request: by
    If-Match, and again by the response, because some stores ignore If-Match.

    A range longer than 1 MiB is requested in parts, so that a batch keeps its share of the requests
    busy; after a short body, the whole part is requested again.

    A cached batch is read like files by python-file. The lanes then take turns.
    """

    alignment = 64  # a cache line
    gap = 32 << 10  # so many bytes cost the CPU time of a request, without its latency
    schemes = ("s3", "gs", "az", "http", "https")
    reads_ranges = True

    @check_options(_NAME)
    def __init__(
        self,
        catalog: Catalog,
        *,
        requests: Annotated[int, Option(range(1, 1025))] = 64,
        lanes: Lanes = 3,
        timeout: Timeout = 30.0,
        retry: _Retry = 120.0,
        hedge: Annotated[float | None, Option((0.001, 3600), "s")] = None,
        check: Flag = True,
        endpoint: Annotated[str | None, Option("a URL")] = None,
        region: Annotated[str | None, Option("a name")] = None,
        anonymous: Flag = False,
        client_options: Annotated[Mapping[str, Any] | None, Option("a mapping")] = None,
        transport: Annotated[str, Option(("auto", "own", "obstore"))] = "auto",
        cache: Annotated[PathLike | None, Option("a path")] = None,
        cache_bytes: Annotated[int | None, Option(range(1, 1 << 62), "bytes")] = None,
    ) -> None:
        """Send no request yet.

        Args:
            catalog: the samples.
            requests: the most requests in flight, over all lanes of a rank. At most 16 until the
                median of the last 16 response times exceeds 10 ms.
            lanes: batches read at once.
            timeout: seconds for the whole response, after which a request is given up.
            retry: seconds after an object's first request in which failures are retried. 0: none.
            hedge: seconds without a response after which a request is sent once more; the faster
                response counts. At most a twentieth more requests. None: never.
            check: compare the versions of objects. Without the check, only sizes are compared, and
                an object replaced by one of the same size is delivered.
            endpoint: the URL of the service. None: from the environment or the profile.
            region: the region of S3 buckets. None: from the environment or the profile.
            anonymous: do not sign requests: public objects.
            client_options: more options of obstore's HTTP client (`obstore.store.ClientConfig`),
                such as `proxy_url`. No secrets.
            transport: the client of requests for bytes. "own": the built-in one, in one thread;
                obstore repeats what fails. "obstore": obstore, in threads. "auto": the built-in
                one, where it can honour options and variables, and understands the store.
            cache: a directory on a local disk where samples are kept after reading, unless the disk
                is too slow to keep up. All processes of a user may share one cache. Created if
                only the last component of the path is missing. Needs `check`.
            cache_bytes: the most bytes of cached samples. A full cache is not extended. None:
                until less than a tenth of the file system is free.

        Raises:
            ValueError, TypeError: a wrong option; or the first sample is no URL.
            OSError: `cache` is not a directory, or cannot be written to.
            BackendUnavailable: `cache` needs a package, or cannot be read on this machine; or
                transport="own", and the client cannot honour an option.
        """
        if cache is None and cache_bytes is not None:
            raise ValueError(f"{_NAME}: cache_bytes needs the option cache, a directory")
        if cache is not None and not check:
            raise ValueError(f"{_NAME}: cache needs check=True, or versions would be mixed")
        if catalog.file_count and not scheme(path := catalog.file_path(0)):
            what = f"{_NAME} reads objects named by URLs, not the file {os.fsdecode(path)!r}"
            raise ValueError(f"{what}; leave out backend, or use python-file")
        self.lanes = lanes
        self._share = max(requests // lanes, 1)
        self._catalog = catalog
        self._stores = Stores(endpoint, region, anonymous, timeout, client_options)
        self._cache: Cache | None = None
        if cache is not None:
            make = _cache_type()
            _, read = engines.choose(_NAME, None, FILES_AT_ONCE)
            self._cache = make(catalog, cache, cache_bytes, read=read, store=self._stores.place())
            self.cooperative = True
            self.reads_parts = False  # entries are whole samples
            if catalog.ranges is not None:
                self.copying_lanes = processors()  # see python-file
        renewed = self._stores.renewed
        self._requests = RequestPool(requests, retry=retry, hedge=hedge, renewed=renewed)
        self.times = self._requests.pace.times
        self._objects = VersionedObjects(catalog, self._stores, self._requests, check)
        required, parts = transport == "own", (self._stores, self._requests)
        self._own = OwnClient(*parts, required=required) if transport != "obstore" else None
        if self._own:
            self.choices = self._own.choices

    def __repr__(self) -> str:
        return f"<object-store: by {self.transport}>"

    @property
    def transport(self) -> str:
        """The current client of requests for bytes; if it is obstore, with the reason."""
        return str(self._own or "obstore")

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return self._objects.sizes(samples)

    def read(self, batch: Batch, lane: int) -> None:
        spans = batch.spans
        # In the order of the batch: of several failed objects, the error names the first.
        files = spans.files[np.argsort(spans.slots, kind="stable")]
        enter("opening")
        self._objects.sizes(files)
        self._objects.require_inside(batch)
        if self._cache is None:
            self._fetch(batch, spans)
            return
        versions = self._objects.strong_versions(self._catalog.files(batch.samples))
        missing = self._cache.read(batch, versions)
        if missing.size:
            self._fetch(batch, spans[_needed(batch, missing)])
            self._cache.add(batch, versions, missing)

    def cancel(self) -> None:
        self._requests.cancel()

    def close(self) -> None:
        self._requests.close()
        if self._own:
            self._own.close()
        self._stores.close()
        if self._cache is not None:
            self._cache.close()

    @classmethod
    def open(cls, catalog: Catalog, remote: Remote | None, /, **options: Any) -> ObjectStoreReader:
        reader = cls(catalog, **options)
        if isinstance(remote, StoreRemote):
            reader._stores.share(remote.stores)
        return reader

    @classmethod
    @check_options(_NAME)
    def remote(cls, *, retry: _Retry = 120.0, check: Flag = True, **options: Any) -> Remote:
        of_stores = {name: value for name, value in options.items() if name in _OF_STORES}
        return PinningRemote(Stores(**of_stores), retry, check, options.get("transport", "auto"))

    @classmethod
    def devices(cls) -> Iterable[DeviceStatus]:
        return origins()

    def _fetch(self, batch: Batch, spans: Spans) -> None:
        """Fill spans of a batch by requests."""
        enter("reading")
        part = int(np.clip(spans.sizes.sum() // self._share, _SHORTEST, _LONGEST))
        spans = spans.split(part)
        spans = spans[np.argsort(spans.slots, kind="stable")]
        pieces = self._objects.pieces(spans.files, spans.starts, spans.sizes)
        memory = memoryview(batch.buffer)  # type: ignore[arg-type]
        starts, ends = spans.offsets.tolist(), (spans.offsets + spans.sizes).tolist()
        places = [memory[start:end] for start, end in zip(starts, ends, strict=True)]
        self._objects.read(pieces, places, self._own)


def _cache_type() -> type[Cache]:
    with explained():
        from .objects.cache.samples import Cache
    return Cache


def _needed(batch: Batch, slots: IntArray) -> npt.NDArray[np.bool_]:
    """bool[k]: true for spans of a batch with bytes of the samples in some slots."""
    needed = np.isin(batch.spans.slots, slots)  # an empty object has the offset of another one
    filled = batch.offsets[slots[batch.sizes[slots] > 0]]
    needed[np.searchsorted(batch.spans.offsets, filled, "right") - 1] = True
    return needed
