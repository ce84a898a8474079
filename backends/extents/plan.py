"""Plans of the device reads of a batch, computed as numpy columns.

For the search, all files lie one after another in a single range of offsets, and extents are
sorted by their place in this range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bmap_tools.extent_map import ExtentMap, csr_offsets

from ...contract._types import IntArray, address_of
from ...contract.ranges import divide
from ...contract.reader import Batch
from .segments import SegmentIndex


@dataclass(frozen=True, slots=True, eq=False)
class DeviceReads:
    """Reads of a device: ranges of the device and their destinations in memory.

    Attributes:
        offsets: int64[k], bytes on the device; multiples of the alignment, like the lengths.
        memory: int64[k], addresses.
        lengths: int64[k], bytes.
    """

    offsets: IntArray
    memory: IntArray
    lengths: IntArray

    def __len__(self) -> int:
        return self.lengths.size

    def __getitem__(self, chosen: slice | IntArray) -> DeviceReads:
        """The chosen reads."""
        return DeviceReads(self.offsets[chosen], self.memory[chosen], self.lengths[chosen])

    def coalesced(self) -> DeviceReads:
        """Coalesce successive reads that are adjacent both on the device and in memory."""
        ends = (self.offsets[:-1] + self.lengths[:-1], self.memory[:-1] + self.lengths[:-1])
        apart = (self.offsets[1:] != ends[0]) | (self.memory[1:] != ends[1])
        if apart.all():
            return self
        starts = np.flatnonzero(np.concatenate(([True], apart)))
        lengths = np.add.reduceat(self.lengths, starts)
        return DeviceReads(self.offsets[starts], self.memory[starts], lengths)

    def split(self, max_bytes: int) -> DeviceReads:
        """Split reads into reads of at most `max_bytes`."""
        if not (self.lengths > max_bytes).any():
            return self
        whole, within = divide(self.lengths, max_bytes)
        lengths = np.minimum(self.lengths[whole] - within, max_bytes)
        return DeviceReads(self.offsets[whole] + within, self.memory[whole] + within, lengths)

    def overlapping(self, others: DeviceReads) -> IntArray:
        """Indices of the reads that share device bytes with any of `others`."""
        starts, ends = self.offsets, self.offsets + self.lengths
        hit = np.zeros(starts.size, bool)
        for start, length in zip(others.offsets, others.lengths, strict=True):
            hit |= (starts < start + length) & (ends > start)
        return np.flatnonzero(hit)

    def within(self, read: DeviceReads) -> IntArray:
        """Indices of the reads whose memory lies within the memory of one given read."""
        start, end = read.memory, read.memory + read.lengths
        return np.flatnonzero((self.memory >= start) & (self.memory + self.lengths <= end))


class Extents:
    """The locations of all bytes of a map's files, prepared for read plans.

    Unwritten extents and holes are filled with zeros and never read.

    Attributes:
        sizes: int64[files], bytes.
    """

    def __init__(self, extent_map: ExtentMap, start: int, alignment: int) -> None:
        """Prepare the columns of a map whose file system starts at `start` (bytes) of the device.

        Files are read up to their size, rounded up to `alignment` (bytes, a multiple of the
        device's block).
        """
        self.sizes = sizes = extent_map.sizes
        rooms = -(-sizes // alignment) * alignment
        line = csr_offsets(rooms)
        logical, physical, length = extent_map.extents.T
        file = np.repeat(np.arange(len(extent_map)), np.diff(extent_map.extent_offsets))
        # The last block of a file can be larger than the alignment, and end in another extent.
        read = (physical >= 0) & (logical < rooms[file])
        file, logical = file[read], logical[read]
        begins = line[file] + logical
        ends = begins + np.minimum(length[read], rooms[file] - logical)
        self._offset = physical[read] + start
        self._extents = SegmentIndex(line, begins, ends)
        # Holes: before each extent, and from the last extent of each file up to the file's size.
        before = np.concatenate(([0], ends))
        last = np.searchsorted(file, np.arange(sizes.size), "right")
        starts = np.concatenate(
            (np.maximum(before[:-1], line[file]), np.maximum(before[last], line[:-1]))
        )
        stops = np.concatenate((np.minimum(begins, (line[:-1] + sizes)[file]), line[:-1] + sizes))
        holes = np.flatnonzero(starts < stops)
        holes = holes[np.argsort(starts[holes])]
        self._holes = SegmentIndex(line, starts[holes], stops[holes])

    def reads(self, batch: Batch, files: IntArray) -> tuple[DeviceReads, IntArray]:
        """The k reads of a batch in its order, not coalesced, and the span of each (int64[k]).

        `files` has the map's file of each span.
        """
        spans = batch.spans
        owners, extents, skipped, into, lengths = self._extents.cut(files, spans)
        memory = into + (address_of(batch.buffer) + spans.offsets)[owners]
        return DeviceReads(self._offset[extents] + skipped, memory, lengths), owners

    def zero_holes(self, batch: Batch, files: IntArray) -> None:
        """Write the zeros of holes and unwritten extents; `files` as for `reads()`."""
        if not len(self._holes):
            return
        owners, _, _, into, lengths = self._holes.cut(files, batch.spans)
        starts = into + batch.spans.offsets[owners]
        for start, end in zip(starts.tolist(), (starts + lengths).tolist(), strict=True):
            batch.buffer[start:end] = 0
