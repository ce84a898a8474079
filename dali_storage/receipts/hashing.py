"""Hashes of samples: XXH3-128 of name, place and size and, with "bytes", of the bytes.

The *key* of a sample has, for each of its pieces, its name, a zero byte and its start in the file.
The hash of a sample is that of its key, followed by the size of each piece and, with "bytes", the
hash of the piece's bytes. Numbers are little-endian, of 64 bits, and hashes in xxhash's canonical
form. A name is the path below the directory that all files of the data set, or of a source of
`readers.mix`, share: so it is the same wherever the data set is mounted.
"""

import importlib
from collections.abc import Container, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np

from ..bad_samples.replacement import Substituting
from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..contract.format import Format, Wanted
from ..contract.stages import enter
from ..contract.views import Contents, Views
from ..reading.loading import LoadedBatch
from .values import Words

_PART = 1 << 16  # names that are Python objects at the same time


def xxh3() -> Any:
    """Return the hash, 16 bytes of bytes; raise BackendUnavailable if the package is missing."""
    try:
        return importlib.import_module("xxhash").xxh3_128_digest  # releases the interpreter lock
    except ModuleNotFoundError:
        what = "receipts need the package xxhash, which is not installed"
        raise BackendUnavailable(what, "pip install 'dali-storage[receipts]'") from None


class Hashes:
    """The hashes of a catalog's samples."""

    def __init__(self, catalog: Catalog) -> None:
        """Find the directories that names are relative to."""
        self._catalog, self._digest = catalog, xxh3()
        # The first file of each source, and the length of the path above its names.
        self._firsts, self._above = catalog.sidecar.get("firsts", [0]), list[int]()
        for start, stop in pairwise([*self._firsts, catalog.file_count]):
            shared = _shared(catalog.file_names(np.array([start, stop - 1])))
            for at in range(start, stop if shared else start, _PART):
                names = catalog.file_names(np.arange(at, min(at + _PART, stop)))
                shared = _shared([shared, min(names), max(names)])
            self._above.append(len(shared))

    def names(self, files: IntArray) -> list[bytes]:
        """Return the names of files, as they are hashed."""
        above = np.take(self._above, np.searchsorted(self._firsts, files, "right") - 1).tolist()
        return [it[n:] for it, n in zip(self._catalog.file_names(files), above, strict=True)]

    def rows(self, samples: IntArray, sizes: IntArray, pieces: Sequence[Any] | None) -> Words:
        """Return what is added up of n delivered samples: uint64[n, 5].

        One, zero (for a replaced sample, one), half of the hash of the key, and both halves of the
        sample's hash, low half first. `sizes`: int64[n * pieces]; `pieces`: their bytes, if hashed.
        """
        catalog, digest, its = self._catalog, self._digest, self._catalog.pieces_of(samples)
        starts = catalog.starts(its).astype("<i8").view("V8").tolist()
        names, ends = self.names(catalog.files(its)), sizes.astype("<i8").view("V8").tolist()
        keys = [name + b"\0" + start for name, start in zip(names, starts, strict=True)]
        if pieces is not None:
            ends = [size + digest(it) for size, it in zip(ends, pieces, strict=True)]
        if (step := catalog.pieces) > 1:
            firsts = range(0, len(keys), step)
            keys, ends = ([b"".join(it[at : at + step]) for at in firsts] for it in (keys, ends))
        found = b"".join([*map(digest, keys), *map(digest, map(bytes.__add__, keys, ends))])
        words = np.frombuffer(found, ">u8").astype(np.uint64).reshape(2, -1, 2)
        rows = np.zeros((samples.size, 5), np.uint64)
        rows[:, 0], rows[:, 2], rows[:, 3:] = 1, words[0, :, 1], words[1, :, ::-1]
        return rows


def _shared(names: Sequence[bytes]) -> bytes:
    """Return the path of the directory that all names share, with its slash."""
    differ = (at for at, its in enumerate(zip(*names)) if len({*its}) > 1)  # noqa: B905
    return names[0][: names[0].rfind(b"/", 0, next(differ, min(map(len, names)))) + 1]


class HashedLoading(Substituting):
    """Reads batches with one more output, which no pipeline uses: `Hashes.rows()`.

    Of a sample that another one replaces, it has the key, and 0 as the hash.
    """

    def __init__(self, of_bytes: bool, substitute: Any, catalog: Catalog, *arguments: Any) -> None:
        """See `Substituting` for the other arguments."""
        super().__init__(substitute, catalog, *arguments)
        self._hashes, self._of_bytes = Hashes(catalog), of_bytes
        if of_bytes:
            self._wanted = Format().wanted  # all bytes of a sample
        if substitute.replaces:
            self.views = ()  # `load()` knows which samples were asked for

    def load(
        self, batches: Mapping[int, IntArray | Exception], lane: int, wanted: Container[int]
    ) -> dict[int, LoadedBatch | Exception]:
        """See `Loading`."""
        found = super().load(batches, lane, wanted)
        for index, batch in found.items() if self.substitute.replaces else ():
            if isinstance(batch, LoadedBatch):
                asked = cast("IntArray", batches[index])
                instead = np.flatnonzero(batch.samples != asked)
                rows = self._hashes.rows(asked[instead], np.zeros_like(instead), None)
                rows[:, 1], rows[:, 3:] = 1, 0
                cast("Words", batch.outputs[-1])[instead] = rows
        return found

    def outputs(self, samples: IntArray, views: Views, wanted: Wanted | None) -> Sequence[Contents]:
        """See `Loading`."""
        found = super().outputs(samples, views, wanted)
        enter("checking")
        ranges = self._catalog.ranges  # if a part of a sample was read, its whole size
        sizes: Any = (
            views.sizes if ranges is None else ranges.sizes[self._catalog.pieces_of(samples)]
        )
        pieces = views.slices() if self._of_bytes else None
        return [*found, self._hashes.rows(samples, sizes, pieces)]
