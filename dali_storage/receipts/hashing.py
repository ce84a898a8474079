"""Hashes of samples: XXH3-128 of name, place and size and, with "bytes", of the bytes.

The *key* of a sample has, for each of its pieces, its name, a zero byte and its start in the file.
The hash of a sample is that of its key, followed by the size of each piece and, with "bytes", the
hash of the piece's bytes. Numbers are little-endian, of 64 bits, and hashes in xxhash's canonical
form. A name is the path below the directory that all files of the data set, or of a source of a
mixture, share: so it is the same wherever the data set is mounted.
"""

import importlib
import os
from collections.abc import Container, Iterable, Mapping, Sequence
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


def xxhash() -> Any:
    """Import the package; raise BackendUnavailable if missing."""
    try:
        return importlib.import_module("xxhash")
    except ModuleNotFoundError:
        what = "receipts need the package xxhash, which is not installed"
        raise BackendUnavailable(what, "pip install 'dali-storage[receipts]'") from None


def marks(catalog: Catalog, samples: IntArray, views: Views, hashes: bool) -> Words:
    """Return what receipts need of a batch: uint64[n, 1 + pieces * (1 or 3)].

    Of each sample, its number; then of each piece its size in bytes and, with `hashes`, the hash of
    its bytes.
    """
    ranges = catalog.ranges  # if a part of a sample was read, its whole size
    sizes = views.sizes if ranges is None else ranges.sizes[catalog.pieces_of(samples)]
    pieces = sizes.astype("<u8")[:, None]
    if hashes:
        digest = xxhash().xxh3_128_digest  # releases the interpreter lock
        found = np.frombuffer(b"".join(map(digest, views.slices())), "<u8")
        pieces = np.hstack([pieces, found.reshape(-1, 2)])
    numbers = samples.astype("<u8")[:, None]
    return np.hstack([numbers, pieces.reshape(samples.size, -1)])


def hashed(catalog: Catalog, its_marks: Words, above: Iterable[int]) -> Words:
    """Return of each sample the hash of its key, half of it, and its own, low half first.

    uint64[n, 3]. `above`: the length of the path above the names of each sample.
    """
    digest, samples, step = xxhash().xxh3_128_digest, its_marks[:, 0].view(np.int64), catalog.pieces
    pieces, keys = catalog.pieces_of(samples), [b""] * samples.size
    starts = catalog.starts(pieces).astype("<i8").view("V8").reshape(-1, step)
    names = np.array(catalog.file_names(catalog.files(pieces)), object).reshape(-1, step)
    for piece in range(step):
        parts = zip(keys, names[:, piece], above, starts[:, piece].tolist(), strict=True)
        keys = [key + name[cut:] + b"\0" + start for key, name, cut, start in parts]
    rows = np.ascontiguousarray(its_marks[:, 1:])
    ends = rows.view(f"V{rows.itemsize * rows.shape[1]}").ravel().tolist()
    found = [*map(digest, keys), *map(digest, map(bytes.__add__, keys, ends))]
    words = np.frombuffer(b"".join(found), ">u8").astype(np.uint64).reshape(2, -1, 2)
    return np.column_stack([words[0, :, 1], words[1, :, ::-1]])


def above_all(catalog: Catalog, samples: IntArray) -> int:
    """Return the length of the path of the directory that the files of all `samples` share."""
    files = catalog.files(catalog.pieces_of(samples))
    names, starts = np.frombuffer(catalog.names, np.uint8), catalog.offsets[:-1][files]
    shared = catalog.file_name(int(files[0]))[: int((catalog.offsets[1:][files] - starts).min())]
    for at, byte in enumerate(shared):  # class directories in a root soon differ
        if (names[starts + at] != byte).any():
            return shared[:at].rfind(b"/") + 1
    return shared.rfind(b"/") + 1


def shown(catalog: Catalog, sample: int, above: int) -> str:
    """Return the name of a sample that is in its key, and its start in a container."""
    piece = sample * catalog.pieces
    name = os.fsdecode(catalog.name(piece)[above:])
    return name if catalog.ranges is None else f"{name} at {int(catalog.ranges.starts[piece])}"


class HashedLoading(Substituting):
    """Reads batches with one more output, which no pipeline uses: `marks()`.

    A sample that another one replaces has its own number, but the size and hash of the other.
    """

    def __init__(self, hashes: bool, *arguments: Any, **named: Any) -> None:
        """See `Substituting` for the other arguments."""
        super().__init__(*arguments, **named)
        self._hashes = hashes
        if hashes:
            self._wanted = Format().wanted  # all bytes of a sample
        if self.substitute.replaces:
            self.views = ()  # `load()` knows which samples were asked for

    def load(
        self, batches: Mapping[int, IntArray | Exception], lane: int, wanted: Container[int]
    ) -> dict[int, LoadedBatch | Exception]:
        """See `Loading`."""
        found = super().load(batches, lane, wanted)
        for index, batch in found.items():
            if isinstance(batch, LoadedBatch):
                cast("Words", batch.outputs[-1])[:, 0] = cast("IntArray", batches[index])
        return found

    def outputs(self, samples: IntArray, views: Views, wanted: Wanted | None) -> Sequence[Contents]:
        """See `Loading`."""
        found = super().outputs(samples, views, wanted)
        enter("checking")
        return [*found, marks(self._catalog, samples, views, self._hashes)]
