"""The receipt of a data set, and its comparison with that of an epoch."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..bad_samples.replacement import OnError
from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.views import Contents, Views
from ..order import OrderOptions
from ..order.ordering import Ordering
from ..reading.opening import Members, Opening
from ..reading.source import BatchStream
from .hashing import HashedLoading, Hashing, Words, marks
from .values import Receipt, bucket, read

_BATCH = 64
_SHOWN = 5
_KINDS = {-1: "missing", 0: "changed", 1: "too many"}


class _Sizes(HashedLoading):
    """Looks up the sizes of samples, without reading."""

    def _read(
        self, samples: IntArray, pieces: IntArray, lane: int
    ) -> tuple[IntArray, list[Contents]]:
        ranges = self._catalog.ranges
        sizes = (
            self.reader.sizes(pieces, lane)
            if ranges is None
            else ranges.sizes[pieces].astype(np.int64)
        )
        views = Views(np.empty(0, np.uint8), sizes, sizes)
        return sizes, [marks(self._catalog, samples, views, hashes=False)]


class _Sizing(Hashing):
    def loading(self, catalog: Catalog, members: Members) -> Callable[..., HashedLoading]:
        return partial(_Sizes, False, self.on_error.substitute(catalog, members))


def stream_of(opening: Opening, hashes: bool) -> BatchStream:
    """Open the samples of a data set, for `marks_of()`; the caller closes the stream."""
    handling = (Hashing if hashes else _Sizing)(OnError(), hashes)
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
    (whole, here), (given, its) = read(dataset), read(epoch)
    if whole["mode"] != given["mode"]:
        make = "with --bytes" if given["mode"] == "bytes" else "without --bytes"
        what = f"the data set's is {whole['mode']!r}, the epoch's {given['mode']!r}"
        raise ValueError(f"modes differ: {what}; make the first one {make}")
    of = "" if given["source"] is None else f" of {given['source']!r}"
    what, many = f"epoch {given['epoch']}{of}", f"{here.count:,} samples"
    once, content = f"{what} has each of {many} exactly once", "sizes"
    content += " and bytes" * (given["mode"] == "bytes")
    if here.total == its.total and not its.replaced:
        return True, f"{once}, with the same {content}"
    if len(here.table) > len(its.table):  # without buckets
        here = replace(here, table=here.table.sum(0, np.uint32, keepdims=True))
    if np.array_equal(here.table[:, :2], its.table[:, :2]):
        bad, some = len(its.replaced), ", ".join(its.replaced[:_SHOWN])
        return False, f"{once}, but " + (
            f"{bad:,} bad samples were replaced: {some}" if bad else f"other {content}"
        )
    apart = here.count - its.count
    how = f"{apart:,} missing" if apart > 0 else f"{-apart:,} too many"
    how = how if apart else "others in place of some"
    return False, f"{what} is not complete: {its.count:,} of {many}, {how}"


def suspects(dataset: Receipt, epoch: Receipt, keys: Words) -> Iterator[tuple[str, IntArray]]:
    """Find what may be missing, too many, or changed: the word, and samples of the data set.

    `keys` are the low words of the samples' keys' hashes: uint64[n]. A single sample is found
    exactly; otherwise all in the same bucket are returned.
    """
    (_, here), (_, its) = read(dataset), read(epoch)
    if here.table.shape != its.table.shape:
        return
    differs = (its.table - here.table).view(np.int32)
    buckets, high = bucket(keys, len(differs)), (keys >> np.uint64(32)).astype(np.uint32)
    for number in np.flatnonzero(differs.any(axis=1)).tolist():
        count, key, _ = differs[number].tolist()
        members = np.flatnonzero(buckets == number)
        kind = _KINDS[(count > 0) - (count < 0)]
        if count == 0 and key:
            kind = "missing and too many"
        elif abs(count) == 1:
            exact = members[(high[members].view(np.int32) * np.int32(count)) == key]
            members = exact if exact.size else members
        yield kind, members
