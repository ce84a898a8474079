"""Requests for objects, and the comparison of their versions."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.reader import Batch
from ...contract.remote import PINNED, Versions
from ..files.containers import outside_error
from .calls import Client
from .errors import ShortBodyError, compare, is_elsewhere, mapped, quoted
from .pool import RequestPool
from .store import Store, Stores, get, head

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta


class ObjectPart(NamedTuple):
    """A range of bytes of an object.

    Attributes:
        url: the URL of the object.
        place: the store, and the key there.
        version: the identity of the content; empty if not compared.
        size: the size of the whole object in bytes.
        start: the start of the piece, in bytes from the start of the object.
        length: the length of the piece in bytes; 0 only for an empty object.
    """

    url: bytes
    place: tuple[Store, str]
    version: bytes
    size: int
    start: int
    length: int


class VersionedObjects:
    """The objects of a catalog; versions not known from a list are requested at first use."""

    def __init__(
        self, catalog: Catalog, stores: Stores, requests: RequestPool, check: bool
    ) -> None:
        """Request nothing yet. `check`: compare versions, not only sizes."""
        self._catalog, self._stores, self._requests = catalog, stores, requests
        self._check = check
        count, sizes, versions = catalog.file_count, catalog.sizes, catalog.versions
        if sizes is None or versions is None:
            sizes, versions = np.full(count, -1, np.int64), np.zeros(count, "S1")
        self._sizes, self._versions = sizes, versions  # -1: not known yet
        self._noting = threading.Lock()

    def sizes(self, files: IntArray) -> IntArray:
        """The sizes of n files in bytes, int64[n]; requests the unknown ones.

        Raises:
            OSError: an object is missing, cannot be requested, or has no version; names the URL.
        """
        if (sizes := self._sizes[files]).min(initial=0) >= 0:
            return sizes
        _, first = np.unique(files[sizes < 0], return_index=True)
        unknown = files[sizes < 0][np.sort(first)]  # in the order of the batch
        urls = self._catalog.file_paths(unknown)
        places = [*map(self._stores.locate, urls)]
        metas: dict[int, ObjectMeta] = {}

        def explain(position: int, error: BaseException) -> Exception:
            return mapped(error, urls[position])

        self._requests.run(lambda place: head(*place), places, metas.__setitem__, explain)
        found = [metas[position] for position in range(len(urls))]
        self._note(unknown, [*map(version_of, found)], [meta["size"] for meta in found], urls)
        return self._sizes[files]

    @property
    def versions(self) -> Versions:
        """bytes[files]: the versions of files with known sizes."""
        return self._versions

    def strong_versions(self, files: IntArray) -> list[bytes]:
        """The strong versions of n files with known sizes; empty if there is none."""
        return [version * is_strong(version) for version in self._versions[files].tolist()]

    def pieces(self, files: IntArray, starts: IntArray, lengths: IntArray) -> list[ObjectPart]:
        """Make the pieces of n files with known sizes.

        Raises:
            ValueError, OSError, BackendUnavailable: as `Stores.locate()`.
        """
        urls, count = self._catalog.file_paths(files), len(files)
        versions = self._versions[files].tolist() if self._check else [b""] * count
        versions = [b"" if it.startswith(PINNED) else it for it in versions]
        numbers = self._sizes[files].tolist(), starts.tolist(), lengths.tolist()
        return [*map(ObjectPart, urls, map(self._stores.locate, urls), versions, *numbers)]

    def read(
        self, pieces: list[ObjectPart], places: Sequence[memoryview], client: Client | None
    ) -> None:
        """Request n pieces at once, each to its place; `client` is as for `RequestPool.run()`.

        Raises:
            ObjectReplacedError: an object was replaced; names the URL.
            OSError: an object cannot be read; names the URL. Of several errors, the first.
        """

        def take(position: int, body: memoryview | None) -> None:
            if body is not None:  # otherwise, the client has received it
                places[position][:] = body

        def explain(position: int, error: BaseException) -> Exception:
            return mapped(error, pieces[position].url)

        self._requests.run(
            partial(self._get, client.target if client else lambda url: None),
            pieces,
            take,
            explain,
            client=client,
            places=places,
            describe=_name,
        )

    def require_inside(self, batch: Batch) -> None:
        """Refuse ranges beyond the ends of their containers of known sizes."""
        samples = batch.samples
        sizes = self._sizes[self._catalog.files(samples)]
        beyond = (batch.starts + batch.sizes > sizes) & (batch.sizes > 0)
        for slot in np.flatnonzero(beyond)[:1].tolist():
            raise outside_error(self._catalog, int(samples[slot]), int(sizes[slot]))

    def _note(
        self, files: IntArray, versions: list[bytes], sizes: list[int], urls: list[bytes]
    ) -> None:
        """Note the state of n files, unless another lane was faster."""
        if self._check and b"" in versions:
            what = "the server sends neither ETag nor Last-Modified, so a replaced object would "
            what += "go unnoticed; check=False compares sizes only"
            raise OSError(errno.EOPNOTSUPP, what, os.fsdecode(urls[versions.index(b"")]))
        column = np.array(versions)
        with self._noting:
            if column.itemsize > self._versions.itemsize:
                self._versions = self._versions.astype(column.dtype)
            new = self._sizes[files] < 0
            self._versions[files[new]] = column[new]
            self._sizes[files[new]] = np.array(sizes)[new]  # last: now the files count as known

    def _get(self, target: Callable[[bytes], Store | None], piece: ObjectPart) -> memoryview:
        if kept := target(piece.url):
            try:
                return self._get_from(kept, "", piece)
            except Exception as error:
                if not is_elsewhere(error):
                    raise
        return self._get_from(*piece.place, piece)

    def _get_from(self, store: Store, key: str, piece: ObjectPart) -> memoryview:
        options: GetOptions = {}
        if is_strong(piece.version):
            options["if_match"] = piece.version.decode()
        if piece.length != piece.size:  # whole objects without: some file servers lack ranges
            options["range"] = piece.start, piece.start + piece.length
        answer = get(store, key, options)
        self._compare(piece, answer.meta)
        body = memoryview(answer.buffer())
        if body.nbytes != piece.length:
            raise _short(piece, body.nbytes)
        return body

    def _compare(self, piece: ObjectPart, meta: ObjectMeta) -> None:
        """Refuse another version, even if the store ignores If-Match."""
        version, size = version_of(meta) if piece.version else b"", int(meta["size"])
        if version == piece.version and is_strong(version) and piece.length == piece.size != size:
            raise _short(piece, size)  # without a range, `size` is only the length of the answer
        compare(piece.url, (size, version), (piece.size, piece.version))


def _name(piece: ObjectPart) -> str:
    return os.fsdecode(piece.url)


def version_of(meta: ObjectMeta) -> bytes:
    """The version of an object's content: the ETag or, without one, the time of modification."""
    if tag := str(meta["e_tag"] or ""):
        return quoted(tag.encode())
    modified = meta["last_modified"]
    return f"modified {modified.isoformat()}".encode() if modified.timestamp() else b""


def is_strong(version: bytes) -> bool:
    """Test if a version may be sent as If-Match (RFC 9110, 13.1.1)."""
    return bool(version) and not version.startswith((b"W/", b"modified "))


def _short(piece: ObjectPart, got: int) -> ShortBodyError:
    return ShortBodyError.of(got, piece.length)
