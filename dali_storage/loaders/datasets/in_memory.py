"""Records: samples of one size in files that are read whole, once, when the reader is opened.

Right for data sets of small records that fit in memory. A record of 3 KB touches 7 KB of a disk's
blocks, in every epoch; the whole file is read with the largest reads there are, and only once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...contract._types import HostBuffer, IntArray
from ...contract.catalog import Catalog
from ...contract.format import windows
from ...contract.lane import run_in_lane
from ...contract.reader import Batch, Reader
from ...reading.prefetch import read_batch


def read_whole(
    files: Catalog, open_reader: Callable[[Catalog], Reader]
) -> tuple[HostBuffer, list[slice]]:
    """Read `files`, all in one batch, by the reader that `open_reader` returns; close the reader.

    (The backend `memory` has a copy of its own until it is closed.)

    Returns:
        One block of host memory, and where in it each file is; there are gaps between them.

    Raises:
        SampleChangedError: the size of a file changed twice while it was read.
        ValueError: the reader reads into the memory of a GPU.
        OSError, BackendUnavailable: as the reader; an OSError names the file.
    """
    with open_reader(files) as reader:
        if reader.device != "cpu":
            raise ValueError(
                f"{type(reader).__name__} reads into GPU memory with these options, and records "
                "are gathered by the processor: have it read into host memory (mem='cpu')"
            )
        samples = np.arange(len(files))
        batch = run_in_lane(partial(read_batch, reader, files, samples, reader.allocate))
    memory: HostBuffer = batch.buffer  # type: ignore[assignment]  # by its device
    ends = batch.offsets + batch.sizes
    return memory, list(map(slice, batch.offsets.tolist(), ends.tolist()))


class RecordsReader(Reader):
    """Copies records out of containers that are in memory; a batch is one gather.

    The records are not moved together first, so the data set is in memory once. Later changes of
    the files are not noticed, and the files may be gone.
    """

    def __init__(
        self, catalog: Catalog, *, memory: HostBuffer, starts: IntArray, size_bytes: int
    ) -> None:
        """Keep `memory`, usually that of `read_whole()`, until the reader is closed.

        Args:
            catalog: the n records.
            memory: what they are in.
            starts: int64[n], where each record starts in `memory`. Records may overlap.
            size_bytes: of every record, at least 1.

        Raises:
            ValueError: there are not n starts, or a record is not within `memory`.
        """
        if len(starts) != len(catalog):
            raise ValueError(f"{len(starts)} starts for {len(catalog)} records")
        if len(starts) and not 0 <= starts.min() <= starts.max() <= memory.size - size_bytes:
            raise ValueError(f"records of {size_bytes} bytes must be within {memory.size} bytes")
        self._starts = starts
        self._size = size_bytes
        self._records = windows(memory, size_bytes)

    def sizes(self, samples: IntArray) -> IntArray:
        """The same size for all."""
        return np.full(samples.shape, self._size, np.int64)

    def read(self, batch: Batch, lane: int) -> None:
        """Copy the records."""
        if batch.samples.size:
            records = windows(batch.buffer, self._size)
            records[batch.offsets] = self._records[self._starts[batch.samples]]

    def close(self) -> None:
        """Forget the memory."""
        self._records = self._records[:0].copy()
