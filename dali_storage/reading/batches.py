"""The layout of a batch in memory, and its read."""

from collections.abc import Callable

import numpy as np

from ..contract._types import Buffer, IntArray
from ..contract.catalog import Catalog
from ..contract.errors import SampleChangedError, SampleSizeChanged
from ..contract.format import Wanted
from ..contract.ranges import Spans, lay_out
from ..contract.reader import Batch, Reader
from ..contract.stages import enter

_READ = 32 << 10  # bytes


def read_batch(
    reader: Reader,
    catalog: Catalog,
    samples: IntArray,
    allocate: Callable[[int], Buffer],
    lane: int,
    wanted: Wanted | None = None,
) -> Batch:
    """Read `samples` of a catalog into memory from `allocate`; read again if a size has changed.

    The caller has entered the stage "opening". `wanted`: the parts of the samples that are enough.
    Only these are read if this costs less; then the batch's `sizes` is the object `wanted.sizes`.

    Raises:
        SampleChangedError: a size changed again.
        OSError: as `Reader.read()`.
    """
    changed_before = False
    while True:
        batch = make_batch(reader, catalog, samples, allocate, lane, wanted)
        enter("reading")
        try:
            reader.read(batch, lane)
            return batch
        except SampleSizeChanged as changed:
            # Once more only: a file that grows all the time would keep the lane for ever.
            if changed_before:
                raise SampleChangedError(catalog.path(int(changed.samples[0]))) from None
        changed_before = True
        enter("opening")
        # Before the next lease, so that the pool can lease the same buffer again.
        del batch


def make_batch(
    reader: Reader,
    catalog: Catalog,
    samples: IntArray,
    allocate: Callable[[int], Buffer],
    lane: int,
    wanted: Wanted | None = None,
) -> Batch:
    """Lay out `samples` of a catalog in memory from `allocate`, without reading."""
    if (ranges := catalog.ranges) is None:
        sizes = reader.sizes(samples, lane)
        offsets, nbytes = layout(sizes, reader.alignment)
        spans = Spans.of_files(samples, sizes, offsets, reader.unit)
        return Batch(samples, np.zeros_like(sizes), sizes, offsets, allocate(nbytes), spans)
    files, starts = ranges.files_of(samples), ranges.starts[samples]
    sizes, granules = ranges.sizes[samples].astype(np.int64), (reader.alignment, reader.unit)
    offsets, nbytes, spans = lay_out(files, starts, sizes, *granules, reader.gap)
    if wanted is not None:
        within = starts + wanted.starts
        parts = lay_out(files, within, wanted.sizes, *granules, reader.gap)
        # Whole samples may share one read where their parts are too far from each other.
        if _cost(parts[-1]) < _cost(spans):
            starts, sizes, (offsets, nbytes, spans) = within, wanted.sizes, parts
    return Batch(samples, starts, sizes, offsets, allocate(nbytes), spans)


def _cost(spans: Spans) -> int:
    """Estimate the duration of reads, in bytes: each read costs as much as `_READ` bytes more."""
    return int(spans.sizes.sum()) + _READ * len(spans)


def layout(sizes: IntArray, alignment: int) -> tuple[IntArray, int]:
    """Return the start of each sample (int64[n] `sizes`) in one buffer, and the buffer's length."""
    rooms = (sizes + (alignment - 1)) & -alignment
    ends = rooms.cumsum()
    return ends - rooms, int(ends[-1]) if ends.size else 0
