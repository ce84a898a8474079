"""The receipt of a data set, and its comparison with that of an epoch."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..bad_samples.replacement import OnError
from ..contract._types import IntArray
from ..contract.views import Contents, Views
from ..order import OrderOptions
from ..order.ordering import Ordering
from ..reading.opening import Opening
from ..reading.source import BatchStream
from .hashing import HashedLoading, marks
from .values import Receipt, Words, table_of

_BATCH = 64


class _Sizes(HashedLoading):
    """Looks up the sizes of samples, without reading."""

    def _read(
        self, samples: IntArray, pieces: IntArray, lane: int
    ) -> tuple[IntArray, list[Contents]]:
        whole = self._catalog.ranges is None
        sizes = self.reader.sizes(pieces, lane) if whole else np.zeros_like(pieces)
        views = Views(np.empty(0, np.uint8), sizes, sizes)
        return sizes, [marks(self._catalog, samples, views, hashes=False)]


def stream_of(opening: Opening, hashes: bool) -> BatchStream:
    """Open the samples of a data set, for `marks_of()`; the caller closes the stream."""
    handling = OnError(kind=partial(HashedLoading if hashes else _Sizes, hashes))
    listed: dict[str, Any] = {"order": OrderOptions(), "ordering": Ordering}
    stream = BatchStream("receipt", replace(opening, on_error=handling, **listed))
    stream.configure(batch_size=_BATCH, seed=None, checkpointing=False)
    stream.start(device_id=None)
    return stream


def marks_of(stream: BatchStream) -> Iterator[Words]:
    """Go through the samples of a data set, in their order; see `hashing.marks()`."""
    for left in range(stream.open().catalog.delivered, 0, -_BATCH):
        found: Any = stream.batch().outputs[-1]
        stream.position.advance(0)()
        yield found[:left]


def compare(dataset: Receipt, epoch: Receipt) -> tuple[bool, str]:
    """Return whether an epoch is its data set, each sample once, and the verdict.

    Raises:
        ValueError: a receipt is damaged, or they are of different modes.
    """
    tables = table_of(dataset), table_of(epoch)
    mode, count = epoch["mode"], dataset["count"]
    if dataset["mode"] != mode:
        make = "with --bytes" if mode == "bytes" else "without --bytes"
        what = f"the data set's is {dataset['mode']!r}, the epoch's {mode!r}"
        raise ValueError(f"modes differ: {what}; make the first one {make}")
    what = f"epoch {epoch['epoch']}"
    what += "" if epoch["source"] is None else f" of {epoch['source']!r}"
    content = "sizes and bytes" if mode == "bytes" else "sizes"
    once = f"{what} has each of {count:,} samples exactly once"
    here, its = (table.sum(axis=0) for table in tables)
    if (here == its).all():
        return True, f"{once}, with the same {content}"
    if (here[[0, 2]] == its[[0, 2]]).all():
        bad = epoch["replaced"]
        but = f"{bad:,} bad ones were replaced" if bad else f"with other {content}"
        return False, f"{once}, but {but}"
    less = count - epoch["count"]
    how = f"{abs(less):,} {'missing' if less > 0 else 'too many'}" if less else "others than these"
    return False, f"{what} is not complete: {epoch['count']:,} of {count:,} samples, {how}"


def suspects(dataset: Receipt, epoch: Receipt, keys: Words) -> Iterator[tuple[str, IntArray]]:
    """Find what may be missing, too many, or changed: the word, and samples of the data set.

    `keys` are the halves of the samples' keys' hashes: uint64[n]. Where one sample of a row of the
    tables is missing or too many, it is found exactly; otherwise all samples of the row may be.
    """
    here, its = table_of(dataset), table_of(epoch)
    if here.shape != its.shape:
        return
    differs, rows = its - here, keys % np.uint64(len(here))
    for row in np.flatnonzero(differs.any(axis=1)).tolist():
        count, replaced, key = differs[row, :3].view(np.int64).tolist()
        members = np.flatnonzero(rows == row)
        kind = "missing" if count < 0 else "too many" if count else "missing and too many"
        if not count and not key:
            kind = "replaced" if replaced else "changed"
        exact = members[keys[members].view(np.int64) * np.int64(count or 1) == key]
        yield kind, exact if exact.size else members
