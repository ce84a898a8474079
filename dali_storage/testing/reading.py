"""Batches of test samples, laid out and read as by the prefetcher: in a lane."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

import numpy as np

from ..contract._types import Buffer, IntArray
from ..contract.catalog import Catalog
from ..contract.format import Wanted
from ..contract.reader import Batch, Reader
from ..reading import batches

GUARD = 0xA5  # fills memory before a read: a byte that was not written is wrong

_WHOLE_FILES = Catalog.from_names((), ())
_Result = TypeVar("_Result")


def in_lane(call: Callable[[], _Result]) -> _Result:
    """Run `call` in a thread, always the same one; a thread other than the main one is a lane."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    return _lane(os.getpid()).submit(call).result()


@cache
def _lane(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1)


def in_other_files(catalog: Catalog, broken: int) -> IntArray:
    """Return the samples outside of the file of sample `broken`: int64[n]."""
    files = catalog.files(np.arange(len(catalog)))
    return np.flatnonzero(files != files[broken])


def make_batch(
    reader: Reader,
    samples: IntArray,
    catalog: Catalog = _WHOLE_FILES,
    *,
    gap: int = 0,
    lane: int = 0,
    buffer: Buffer | None = None,
    wanted: Wanted | None = None,
) -> Batch:
    """Make a batch of `samples` in `buffer` or a new one; ranges need their catalog.

    The layout is that of the prefetcher, with `gap` more bytes before each span. The memory is
    filled with `GUARD`.
    """
    room = 0

    def note(nbytes: int) -> Buffer:
        nonlocal room
        room = nbytes
        return np.empty(0, np.uint8)

    batch = in_lane(partial(batches.make_batch, reader, catalog, samples, note, lane, wanted))
    starts = batch.spans.offsets
    shifts: IntArray = gap * np.arange(1, starts.size + 1)
    memory = reader.allocate(room + gap * (starts.size + 1)) if buffer is None else buffer
    memory[:] = GUARD
    # An empty range is in no span.
    moved = np.append(shifts, 0)[np.searchsorted(starts, batch.offsets, "right") - 1]
    spans = replace(batch.spans, offsets=starts + shifts)
    return replace(batch, offsets=batch.offsets + moved, buffer=memory, spans=spans)


def fill(reader: Reader, batch: Batch, lane: int = 0) -> None:
    """Fill the buffer of a batch by `reader.read()`, in a lane."""
    in_lane(partial(reader.read, batch, lane))


def make_known_batch(reader: Reader, samples: IntArray, catalog: Catalog = _WHOLE_FILES) -> Batch:
    """Read the samples once, so that the reader knows them; return a new batch of them."""
    read(reader, samples, catalog)
    return make_batch(reader, samples, catalog)


def read(
    reader: Reader,
    samples: IntArray,
    catalog: Catalog = _WHOLE_FILES,
    *,
    lane: int = 0,
    buffer: Buffer | None = None,
    wanted: Wanted | None = None,
) -> list[bytes]:
    """Read the bytes of `samples`, or of parts of them; ranges need their catalog."""
    batch = make_batch(reader, samples, catalog, lane=lane, buffer=buffer, wanted=wanted)
    fill(reader, batch, lane)
    ends = batch.offsets + batch.sizes
    pieces = zip(batch.offsets.tolist(), ends.tolist(), strict=True)
    return [batch.buffer[start:end].tobytes() for start, end in pieces]


def names_path(error: OSError, path: bytes) -> bool:
    """Return whether an error has this path as `filename`."""
    return isinstance(error.filename, str) and os.fsencode(error.filename) == path
