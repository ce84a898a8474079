"""Hashes of samples: XXH3-128 of name, place and size and, with "bytes", of the bytes.

The *name* of a file is its path below the directory that all files of its source have in common: of
the source of a mixture, otherwise of the catalog. So all paths that differ have different names,
and the same files have the same names at any mount point, and in a list as below a root. A single
file, and all files of one directory, have the last part of their paths. Parts such as "." and an
empty one are left out, but a link stays as it is.

The *key* of a sample has, for each of its pieces, its name, a zero byte and its start in the file.
The hash of a sample is that of its key, followed by the size of each piece and, with "bytes", the
hash of the piece's bytes. Numbers are little-endian, of 64 bits, and hashes in xxhash's canonical
form. Labels are apart, because lists without labels have the numbers of the samples instead: the
high half of the key's hash is multiplied by 2 * label + 1, modulo 2**64.

With "content", the hash of a sample is that of the bytes of each of its outputs, each hash after
the size, and is the hash of the key, too. Names and labels do not count: so an image in a file, in
a tar and in another shard has one hash.
"""

import importlib
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.describing import described
from ..contract.faces import explained
from ..contract.format import Format, Output, Wanted
from ..contract.objects import scheme
from ..contract.stages import enter
from ..contract.views import Contents, Views
from ..order.ordering import Ordering
from .values import COLUMNS, Words

_PART = 1 << 16  # names that are Python objects at the same time


def xxh3() -> Any:
    """Return the hash, 16 bytes of bytes; raise BackendUnavailable if the package is missing."""
    with explained():
        return importlib.import_module("xxhash").xxh3_128_digest  # releases the interpreter lock


class Hashes:
    """Hashes the samples of a catalog; used by all lanes."""

    def __init__(self, catalog: Catalog, ordering: Ordering) -> None:
        """Look once for what the paths of each source have in common."""
        self._catalog, self._digest, self._source_of = catalog, xxh3(), ordering.sources_of
        absolute = np.frombuffer(catalog.names, np.uint8)[catalog.offsets[:-1]] == ord("/")
        odd = any(re.search(it, catalog.names) for it in (b"//", rb"\./"))  # faster than one
        is_url = scheme(catalog.root) or scheme(catalog.file_name(0))
        self._odd = not is_url and (odd or absolute.any() != absolute.all())
        sources = self._source_of(np.arange(catalog.delivered))
        order = np.argsort(sources, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(sources[order])) + 1)
        self._cuts = np.zeros(int(sources.max(initial=0)) + 1, np.int64)
        # None: there are no labels, or those of readers.mix, or of classes, are not the data set's.
        is_of_classes = not isinstance(ordering.sources[0], (str, type(None)))
        given = catalog.labels[: 0 if is_of_classes or "joint" in catalog.sidecar else None]
        self._labels = np.zeros(given.size, np.int64)
        pieces = np.full(self._cuts.size, catalog.pieces)
        self._pieces = catalog.sidecar.get("pieces", pieces)  # of the samples of each source
        for group in groups:
            self._cuts[sources[group[0]]] = self._above(group)
            # A list without labels has the numbers of its samples, some of which may be excluded.
            if given.size and (np.diff(given[group]) <= 0).any():
                self._labels[group] = 2 * given[group].astype(np.int64) + 1

    def rows(self, samples: IntArray, sizes: IntArray, pieces: Sequence[Any] | None) -> Words:
        """Return what is added up of n delivered samples: uint64[n, 6].

        One, zero (for a replaced sample, one), the low half of the hash of the key, both halves of
        the sample's hash, low half first, and the product of the label, or 0 without labels.
        `sizes`: int64[n * pieces]; `pieces`: their bytes, if hashed.
        """
        digest, its = self._digest, self._catalog.pieces_of(samples)
        cuts = self._cuts[self._source_of(samples)].repeat(step := self._catalog.pieces).tolist()
        starts, ends = _words(self._catalog.starts(its)), _words(sizes)
        files = zip(self._paths(self._catalog.files(its)), cuts, starts, strict=True)
        keys = [path[cut:] + b"\0" + start for path, cut, start in files]
        if pieces is not None:
            ends = [size + digest(it) for size, it in zip(ends, pieces, strict=True)]
        if step > 1:
            counts = self._pieces[self._source_of(samples)].tolist()
            some = [*zip(range(0, len(keys), step), counts, strict=True)]
            keys, ends = ([b"".join(it[at : at + n]) for at, n in some] for it in (keys, ends))
        found = b"".join([*map(digest, keys), *map(digest, map(bytes.__add__, keys, ends))])
        words = np.frombuffer(found, ">u8").astype(np.uint64).reshape(2, -1, 2)
        rows = np.zeros((samples.size, COLUMNS), np.uint64)
        rows[:, 0], rows[:, 2], rows[:, 3:5] = 1, words[0, :, 1], words[1, :, ::-1]
        if self._labels.size:
            rows[:, 5] = words[0, :, 0] * self._labels[samples].view(np.uint64)
        return rows

    def rows_of_replaced(self, samples: IntArray) -> Words:
        """Return the rows of n samples that others replace: with their keys and labels, no hash."""
        rows = self.rows(samples, np.zeros_like(self._catalog.pieces_of(samples)), None)
        rows[:, 1], rows[:, 3:5] = 1, 0
        return rows

    def _paths(self, files: IntArray) -> list[bytes]:
        paths = self._catalog.file_paths(files)
        # abspath() keeps two slashes at the start.
        whole = os.path.abspath
        return [whole(it).replace(b"//", b"/") for it in paths] if self._odd else paths

    def _above(self, samples: IntArray) -> int:
        """Return the length of the directory, with its slash, above the files of some samples."""
        files = self._catalog.files(self._catalog.pieces_of(samples))
        files = files if self._catalog.ranges is None else np.unique(files)
        shared = list[Any]()
        for start in range(0, files.size, _PART):
            paths = self._paths(files[start : start + _PART])
            # Of characters: commonpath() is slower, and would end at a file itself.
            shared = [os.path.commonprefix([*shared, *paths])]  # noqa: RUF071
        return int(shared[0].rfind(b"/")) + 1


def _words(numbers: IntArray) -> list[bytes]:
    words: list[bytes] = numbers.astype("<i8").view("V8").tolist()
    return words


def content_rows(outputs: Sequence[Contents]) -> Words:
    """Return what `Hashes.rows()` returns, but of the content of n samples: uint64[n, 6]."""
    digest, found = xxh3(), list[bytes]()
    parts: tuple[Any, ...]
    for parts in zip(*outputs, strict=True):
        each = [memoryview(it).nbytes.to_bytes(8, "little") + digest(it) for it in parts]
        found.append(digest(b"".join(each)))
    words = np.frombuffer(b"".join(found), ">u8").astype(np.uint64).reshape(-1, 2)
    rows = np.zeros((len(words), COLUMNS), np.uint64)
    rows[:, 0], rows[:, 2], rows[:, 3:5] = 1, words[:, 1], words[:, ::-1]
    return rows


class Hashed(Format):
    """A format with one more output, which no pipeline uses: `Hashes.rows()`."""

    def __init__(self, fmt: Format, hashes: Hashes, mode: str) -> None:
        """Add the output to those of `fmt`; `mode`: as the argument `receipt`."""
        self._fmt, self._hashes, self._mode = fmt, hashes, mode
        self.outputs = fmt.outputs

    def described(self, catalog: Catalog) -> Sequence[Output]:
        """See `Describes`."""
        return described(self._fmt, catalog)

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """See `Format`."""
        outputs = self._fmt.decode(catalog, delivered, views)
        return self._with_rows(outputs, catalog, delivered, views)

    def wanted(self, catalog: Catalog, delivered: IntArray) -> Wanted | None:
        """See `Format`; all bytes if they are hashed."""
        if self._mode == "bytes" or (wanted := self._fmt.wanted(catalog, delivered)) is None:
            return None
        decode, about = wanted.decode, (catalog, delivered)
        return wanted._replace(decode=lambda views: self._with_rows(decode(views), *about, views))

    def _with_rows(
        self, outputs: Sequence[Contents], catalog: Catalog, delivered: IntArray, views: Views
    ) -> Sequence[Contents]:
        enter("checking")
        if self._mode == "content":
            return [*outputs, content_rows(outputs)]
        ranges = catalog.ranges  # if a part of a sample was read, its whole size
        its = catalog.pieces_of(delivered)
        sizes: Any = views.sizes if ranges is None else ranges.sizes[its]
        pieces = views.slices() if self._mode == "bytes" else None
        return [*outputs, self._hashes.rows(delivered, sizes, pieces)]
