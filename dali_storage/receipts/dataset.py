"""The receipt of a data set, and its comparison with that of an epoch."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Self

import numpy as np

from bmap_tools import console

from ..contract._types import IntArray
from ..contract.views import Views
from ..reading.batches import read_batch
from ..reading.opening import Opening
from ..runtime.machine import processors
from .hashing import Hashes
from .values import COLUMNS, Receipt, Words, table_of

_BATCH = 64


class Listed:
    """The samples of a data set, in their order. Closed by `with`.

    Attributes:
        catalog: the samples.
    """

    def __init__(self, opening: Opening) -> None:
        """Find the samples, and open the backend."""
        self.catalog, self._reader, _ = opening.open()
        self._hashes = Hashes(self.catalog)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._reader.close()

    def rows(self, of_bytes: bool = False) -> Iterator[tuple[Words, IntArray]]:
        """Go through all samples: `Hashes.rows()`, and the sizes of the pieces in bytes."""
        catalog, reader, own, lanes = self.catalog, self._reader, threading.local(), count()

        def work(start: int) -> tuple[Words, IntArray]:
            samples = np.arange(start, min(start + _BATCH, catalog.delivered))
            pieces, lane, contents = catalog.pieces_of(samples), own.lane, None
            if of_bytes:
                batch = read_batch(reader, catalog, pieces, reader.allocate, lane)
                sizes = batch.sizes
                contents = Views(batch.buffer, batch.offsets, sizes).slices()
            elif catalog.ranges is None:
                sizes = reader.sizes(pieces, lane)
            else:
                sizes = catalog.ranges.sizes[pieces].astype(np.int64)
            return self._hashes.rows(samples, sizes, contents), sizes

        jobs, starts = min(processors(), reader.lanes), range(0, catalog.delivered, _BATCH)
        pool = ThreadPoolExecutor(jobs, initializer=lambda: setattr(own, "lane", next(lanes)))
        with console.bar("hashing", catalog.delivered) as tick, pool:
            try:
                for start, found in zip(starts, pool.map(work, starts), strict=True):
                    yield found
                    tick(start)
            finally:
                pool.shutdown(cancel_futures=True)

    def shown(self, sample: int) -> str:
        """Return the name of a sample, as it is hashed, and its start in a container."""
        piece = np.array([sample * self.catalog.pieces])
        name = os.fsdecode(self._hashes.names(self.catalog.files(piece))[0])
        where = "" if self.catalog.ranges is None else f" at {self.catalog.starts(piece)[0]}"
        return name + where


def compare(dataset: Receipt, epoch: Receipt) -> tuple[bool, str]:
    """Return whether an epoch is its data set, each sample once, and the verdict.

    Raises:
        ValueError: a receipt is damaged, or they are of different modes.
    """
    here, its = (table_of(it).sum(axis=0) for it in (dataset, epoch))
    mode, size = epoch["mode"], dataset["count"]
    if dataset["mode"] != mode:
        make = "with --bytes" if mode == "bytes" else "without --bytes"
        what = f"the data set's is {dataset['mode']!r}, the epoch's {mode!r}"
        raise ValueError(f"modes differ: {what}; make the first one {make}")
    what = f"epoch {epoch['epoch']}"
    what += "" if epoch["source"] is None else f" of {epoch['source']!r}"
    content = "sizes and bytes" if mode == "bytes" else "sizes"
    once = f"{what} has each of {size:,} samples exactly once"
    if (here == its).all():
        return True, f"{once}, with the same {content}"
    if (here[[0, 2]] == its[[0, 2]]).all():
        bad = epoch["replaced"]
        but = f"{bad:,} bad ones were replaced" if bad else f"with other {content}"
        return False, f"{once}, but {but}"
    less = size - epoch["count"]
    how = f"{abs(less):,} {'missing' if less > 0 else 'too many'}" if less else "others than these"
    return False, f"{what} is not complete: {epoch['count']:,} of {size:,} samples, {how}"


def suspects(dataset: Receipt, epoch: Receipt, keys: Words) -> Iterator[tuple[str, IntArray]]:
    """Find what may be missing, too many, or changed: the word, and samples of the data set.

    `keys` are the halves of the samples' keys' hashes: uint64[n]. Where one sample of a row of the
    tables is missing or too many, it is found exactly; otherwise all samples of the row may be.
    """
    its, here = table_of(epoch), table_of(dataset)
    differs = its - here.reshape(-1, len(its), COLUMNS).sum(axis=0)  # a mixture has fewer rows
    rows = keys % np.uint64(len(its))
    for row in np.flatnonzero(differs.any(axis=1)).tolist():
        less, replaced, key = differs[row, :3].view(np.int64).tolist()
        members = np.flatnonzero(rows == row)
        kind = "missing" if less < 0 else "too many" if less else "missing and too many"
        if not less and not key:
            kind = "replaced" if replaced else "changed"
        exact = members[keys[members].view(np.int64) * np.int64(less or 1) == key]
        yield kind, exact if exact.size else members
