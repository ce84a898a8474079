"""Hashes of samples: XXH3-128 of name, place and size and, with "bytes", of the bytes.

The *key* of a sample has, for each of its pieces, its name, a zero byte and its start in the file.
The hash of a sample is that of its key, followed by the size of each piece and, with "bytes", the
hash of the piece's bytes. Numbers are little-endian, of 64 bits, and hashes in xxhash's canonical
form. A name has the file and its directory, or only the file if it is a container. So names are the
same wherever the data set is mounted.
"""

import importlib
from collections.abc import Container, Mapping, Sequence
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
from .values import COLUMNS, Words

_NO_START = bytes(1 + 8)


def xxh3() -> Any:
    """Return the hash, 16 bytes of bytes; raise BackendUnavailable if the package is missing."""
    try:
        return importlib.import_module("xxhash").xxh3_128_digest  # releases the interpreter lock
    except ModuleNotFoundError:
        what = "receipts need the package xxhash, which is not installed"
        raise BackendUnavailable(what, "pip install 'dali-storage[receipts]'") from None


def rows_of(
    catalog: Catalog, samples: IntArray, sizes: IntArray, pieces: Sequence[Any] | None
) -> Words:
    """Return what is added up of n delivered samples: uint64[n, 5].

    One, zero (for a replaced sample, one), half of the hash of the key, and both halves of the
    sample's hash, low half first. `sizes`: int64[n * pieces]; `pieces`: their bytes, if hashed.
    """
    digest, its = xxh3(), catalog.pieces_of(samples)
    names, ends = catalog.file_names(catalog.files(its)), _words(sizes)
    if catalog.ranges is None:
        keys = [it[it.rfind(b"/", 0, it.rfind(b"/")) + 1 :] + _NO_START for it in names]
    else:
        starts = zip(names, _words(catalog.starts(its)), strict=True)
        keys = [name[name.rfind(b"/") + 1 :] + b"\0" + start for name, start in starts]
    if pieces is not None:
        ends = [size + digest(it) for size, it in zip(ends, pieces, strict=True)]
    if (step := catalog.pieces) > 1:
        firsts = range(0, len(keys), step)
        keys, ends = ([b"".join(it[at : at + step]) for at in firsts] for it in (keys, ends))
    found = b"".join([*map(digest, keys), *map(digest, map(bytes.__add__, keys, ends))])
    words = np.frombuffer(found, ">u8").astype(np.uint64).reshape(2, -1, 2)
    rows = np.zeros((samples.size, COLUMNS), np.uint64)
    rows[:, 0], rows[:, 2], rows[:, 3:] = 1, words[0, :, 1], words[1, :, ::-1]
    return rows


def _words(numbers: IntArray) -> list[bytes]:
    words: list[bytes] = numbers.astype("<i8").view("V8").tolist()
    return words


class HashedLoading(Substituting):
    """Reads batches with one more output, which no pipeline uses: `rows_of()`.

    Of a sample that another one replaces, it has the key, and 0 as the hash.
    """

    def __init__(self, of_bytes: bool, substitute: Any, catalog: Catalog, *arguments: Any) -> None:
        """See `Substituting` for the other arguments."""
        super().__init__(substitute, catalog, *arguments)
        self._of_bytes = of_bytes
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
                rows = rows_of(self._catalog, asked[instead], np.zeros_like(instead), None)
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
        return [*found, rows_of(self._catalog, samples, sizes, pieces)]
