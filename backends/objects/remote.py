"""Requests before a reader exists: lists of objects, sizes, versions, and indexes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
from obstore.exceptions import InvalidPathError

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.remote import Listing, Part, Versions
from .errors import ShortBodyError, mapped
from .listing import AT_ONCE, Choose, KeyRun, OddKeys, list_objects
from .pool import RequestPool
from .store import Stores, get, split
from .versions import VersionedObjects

_IN_ORDER = "s3", "gs"  # list keys in order, and can start after any key
_PATH = re.compile(r'Path "(.*?)"(?: contained|:)', re.DOTALL)


class StoreRemote:
    """The `Remote` of object stores and web servers."""

    def __init__(self, stores: Stores, retry: float, check: bool) -> None:
        """Request nothing yet. `retry` and `check` are the options of the backend."""
        self.stores, self._retry, self._check = stores, retry, check

    def listing(self, root: bytes, choose: Choose) -> Listing:
        scheme, bucket, prefix = split(root)
        if prefix := prefix.removesuffix("/"):
            self.stores.locate(root.removesuffix(b"/"))  # refuses odd ones
        store = self.stores.bucket(scheme, bucket, root)
        # Directory buckets of S3 Express One Zone have no order.
        in_order = scheme in _IN_ORDER and not bucket.endswith("--x-s3")
        with self._requests() as requests:
            each = partial(_answers, requests, lambda _: root)
            below = partial(list_objects, store, f"{prefix}/" if prefix else "", each, choose)
            try:
                return _joined(root, below(in_order))
            except OddKeys:
                return _joined(root, below(in_order=False))

    def heads(self, urls: Sequence[bytes]) -> tuple[IntArray, Versions]:
        with self._requests() as requests:
            named = Catalog.from_names(urls, ())
            objects = VersionedObjects(named, self.stores, requests, self._check)
            return objects.sizes(np.arange(len(urls))), objects.versions

    def contents(self, parts: Sequence[Part]) -> list[bytes]:
        places = [(*self.stores.locate(url), start, size) for url, start, size in parts]
        with self._requests() as requests:
            return _answers(requests, lambda position: parts[position][0], _get, places)

    def _requests(self) -> closing[RequestPool]:
        renewed = self.stores.renewed
        return closing(RequestPool(AT_ONCE, retry=self._retry, hedge=None, renewed=renewed))


def _answers(
    requests: RequestPool,
    url_of: Callable[[int], bytes],
    ask: Callable[[Any], Any],
    items: Sequence[Any],
) -> list[Any]:
    """Call `ask` for n items; return the results. Errors become ours, for `url_of(position)`."""
    answers = [None] * len(items)
    requests.run(ask, items, answers.__setitem__, lambda at, error: _mapped(error, url_of(at)))
    return answers


def _get(place: tuple[Any, str, int, int | None]) -> bytes:
    store, key, start, size = place
    part: Any = {"offset": start} if size is None else (start, start + size)
    options: Any = {"range": part} if start or size is not None else {}
    answer = get(store, key, options)
    body, (first, end) = bytes(answer.buffer()), answer.range
    if len(body) != end - first:
        raise ShortBodyError.of(len(body), end - first)
    return body


def _mapped(error: BaseException, url: bytes) -> Exception:
    if isinstance(error, OddKeys):
        return error
    if not isinstance(error, InvalidPathError):
        return mapped(error, url)
    match, bucket = _PATH.search(str(error)), b"/".join(url.split(b"/")[:3]).decode()
    name = repr(f"{bucket}/{match[1]}") if match else f"an object below {url.decode()!r}"
    what = "has an empty, '.' or '..' part, or control characters"
    return ValueError(f"{name} {what}; rename it, or list the other objects in files or file_list")


def _joined(root: bytes, pieces: list[KeyRun]) -> Listing:
    lengths = np.concatenate([[0], *(piece.lengths for piece in pieces)])
    return Listing(
        root,
        b"".join(piece.names for piece in pieces),
        np.cumsum(lengths),
        np.concatenate([np.empty(0, np.int64), *(piece.sizes for piece in pieces)]),
        np.concatenate([np.empty(0, "S1"), *(piece.versions for piece in pieces)]),
    )
