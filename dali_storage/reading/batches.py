"""A batch: laid out in memory, read, and divided into its samples."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..contract._types import Buffer, HostBuffer, IntArray
from ..contract.catalog import Catalog
from ..contract.errors import SampleChangedError, SampleSizeChanged
from ..contract.format import SMALL, Contents
from ..contract.ranges import Spans, lay_out
from ..contract.reader import Batch, Reader


def read_batch(
    reader: Reader,
    catalog: Catalog,
    samples: IntArray,
    allocate: Callable[[int], Buffer],
    lane: int,
) -> Batch:
    """Read `samples` of a catalog into memory from `allocate`; twice, if a size changes meanwhile.

    Raises:
        SampleChangedError: a size changed again.
        OSError: as `Reader.read()`.
    """
    changed_before = False
    while True:
        batch = make_batch(reader, catalog, samples, allocate, lane)
        try:
            reader.read(batch, lane)
            return batch
        except SampleSizeChanged as changed:
            if changed_before:
                raise SampleChangedError(catalog.path(int(changed.samples[0]))) from None
        changed_before = True
        del batch  # its buffer is leased again


def make_batch(
    reader: Reader,
    catalog: Catalog,
    samples: IntArray,
    allocate: Callable[[int], Buffer],
    lane: int,
) -> Batch:
    """A batch of `samples` of a catalog, laid out in memory from `allocate` and not read yet."""
    if (ranges := catalog.ranges) is None:
        sizes = reader.sizes(samples, lane)
        offsets, nbytes = layout(sizes, reader.alignment)
        spans = Spans.of_files(samples, sizes, offsets, reader.unit)
        return Batch(samples, sizes, offsets, allocate(nbytes), spans)
    sizes = ranges.sizes[samples].astype(np.int64)
    files, starts = ranges.files_of(samples), ranges.starts[samples]
    offsets, nbytes, spans = lay_out(
        files, starts, sizes, reader.alignment, reader.unit, reader.gap
    )
    return Batch(samples, sizes, offsets, allocate(nbytes), spans)


def layout(sizes: IntArray, alignment: int) -> tuple[IntArray, int]:
    """Where samples of `sizes` (int64[n], bytes) start in one buffer, and its length in bytes."""
    rooms = (sizes + (alignment - 1)) & -alignment
    ends = rooms.cumsum()
    return ends - rooms, int(ends[-1]) if ends.size else 0


def slices(buffer: Buffer, offsets: IntArray, sizes: IntArray) -> Contents:
    """The parts of a buffer: slices of it, in host memory memoryviews.

    Or the rows of one array, if all sizes are equal and the parts lie side by side.
    """
    ends = offsets + sizes
    if isinstance(buffer, np.ndarray):
        shape = len(sizes), int(sizes[0])
        # The first comparison is cheap, and fails unless all sizes happen to add up.
        if ends[-1] == shape[0] * shape[1] and (sizes == shape[1]).all():
            return buffer[: ends[-1]].reshape(shape)
    return _each(buffer, offsets, ends)


def parts(buffer: Buffer, offsets: IntArray, sizes: IntArray) -> Contents:
    """The same for ranges, in any order in the buffer. Small ones of one size are copied."""
    size = int(sizes[0])
    if isinstance(buffer, np.ndarray) and 0 < size <= SMALL and (sizes == size).all():
        return _windows(buffer, size)[offsets].view(np.uint8).reshape(sizes.size, size)
    return _each(buffer, offsets, offsets + sizes)


def _each(buffer: Buffer, starts: IntArray, ends: IntArray) -> Contents:
    # Slicing a memoryview costs a sixth of slicing an array, and keeps the lease as well.
    memory: Any = buffer.data if isinstance(buffer, np.ndarray) else buffer
    return [memory[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def _windows(memory: Buffer, size_bytes: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """Every range of `size_bytes` in `memory` as one element, which starts at its index.

    Numpy copies an element whole, so to gather records costs what it costs to copy them: 0.5 us
    for 3,072 bytes.
    """
    count = max(memory.nbytes - size_bytes + 1, 0)
    host: HostBuffer = memory  # type: ignore[assignment]
    return np.ndarray((count,), np.dtype(f"V{size_bytes}"), host, strides=(1,))
