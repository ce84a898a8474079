"""From samples to the reads of a device: a batch is planned as numpy columns.

Whole files take all of their extents. For ranges, all files lie one after the other on one line, on
which extents are sorted, so those of a range are found by bisection.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bmap_tools.extent_map import ExtentMap, csr_offsets

from ...contract._types import IntArray, address_of
from ...contract.ranges import Spans, divide
from ...contract.reader import Batch
from .segments import SegmentIndex, expand


@dataclass(frozen=True, slots=True, eq=False)
class DeviceReads:
    """What to read, and where to.

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
        """Some of them."""
        return DeviceReads(self.offsets[chosen], self.memory[chosen], self.lengths[chosen])

    def coalesced(self) -> DeviceReads:
        """The same with neighbours joined that are adjacent on the device and in memory."""
        ends = (self.offsets[:-1] + self.lengths[:-1], self.memory[:-1] + self.lengths[:-1])
        apart = (self.offsets[1:] != ends[0]) | (self.memory[1:] != ends[1])
        if apart.all():
            return self
        starts = np.flatnonzero(np.concatenate(([True], apart)))
        lengths = np.add.reduceat(self.lengths, starts)
        return DeviceReads(self.offsets[starts], self.memory[starts], lengths)

    def split(self, max_bytes: int) -> DeviceReads:
        """The same in reads of at most `max_bytes`."""
        if not (self.lengths > max_bytes).any():
            return self
        whole, within = divide(self.lengths, max_bytes)
        lengths = np.minimum(self.lengths[whole] - within, max_bytes)
        return DeviceReads(self.offsets[whole] + within, self.memory[whole] + within, lengths)

    def overlapping(self, others: DeviceReads) -> IntArray:
        """Indices of the reads that share bytes of the device with one of `others`."""
        starts, ends = self.offsets, self.offsets + self.lengths
        hit = np.zeros(starts.size, bool)
        for start, length in zip(others.offsets, others.lengths, strict=True):
            hit |= (starts < start + length) & (ends > start)
        return np.flatnonzero(hit)

    def within(self, read: DeviceReads) -> IntArray:
        """Indices of the reads that write only to the memory of one other read."""
        start, end = read.memory, read.memory + read.lengths
        return np.flatnonzero((self.memory >= start) & (self.memory + self.lengths <= end))


class Extents:
    """Where the bytes of each file of a map are, ready to plan reads.

    Unwritten extents and ranges without an extent are zeros; they are never read.

    Attributes:
        sizes: int64[files], bytes.
    """

    def __init__(
        self, extent_map: ExtentMap, start: int, alignment: int, *, ranges: bool = False
    ) -> None:
        """Take the columns from a map whose file system is at `start` (bytes) of the device.

        Files are read up to their size, rounded up to `alignment`: bytes, a multiple of the
        device's block. `ranges`: batches have spans; otherwise they have whole files.
        """
        self.sizes = extent_map.sizes
        file = np.repeat(np.arange(len(extent_map)), np.diff(extent_map.extent_offsets))
        room = (-(-extent_map.sizes // alignment) * alignment)[file]
        # The last block of a file can be larger than the alignment, and end in another extent.
        read = (extent_map.extents[:, 1] >= 0) & (extent_map.extents[:, 0] < room)
        self._logical, physical, length = (
            np.ascontiguousarray(column[read]) for column in extent_map.extents.T
        )
        file = file[read]
        self._length = np.minimum(length, room[read] - self._logical)
        self._offset = physical + start
        self._first = _starts(file, len(extent_map))
        self._hole_start, self._hole_end, self._hole_first = self._holes(file)
        if ranges:
            line = csr_offsets(-(-extent_map.sizes // alignment) * alignment)
            self._extent_line = SegmentIndex(line, self._first, self._logical, self._length)
            lengths = self._hole_end - self._hole_start
            self._hole_line = SegmentIndex(line, self._hole_first, self._hole_start, lengths)

    def reads(self, batch: Batch, files: IntArray) -> tuple[DeviceReads, IntArray]:
        """The k reads of a batch in its order, not coalesced, and whose they are (int64[k]).

        `files` is the file of each sample, int64[n], or of each span, if there are spans. The
        second result has indices into it.
        """
        if batch.spans is not None:
            return self._reads_of_spans(batch, batch.spans, files)
        slots, extents = _members(self._first, files)
        logical = self._logical[extents]
        memory = logical + batch.addresses[slots]
        return DeviceReads(self._offset[extents], memory, self._length[extents]), slots

    def _reads_of_spans(
        self, batch: Batch, spans: Spans, files: IntArray
    ) -> tuple[DeviceReads, IntArray]:
        owners, extents, skipped, into, lengths = self._extent_line.cut(files, spans)
        memory = into + (address_of(batch.buffer) + spans.offsets)[owners]
        return DeviceReads(self._offset[extents] + skipped, memory, lengths), owners

    def zero_holes(self, batch: Batch, files: IntArray) -> None:
        """Write the zeros of holes and unwritten extents; `files` as for `reads()`."""
        if not self._hole_start.size:
            return
        if batch.spans is None:
            slots, holes = _members(self._hole_first, files)
            starts = self._hole_start[holes] + batch.offsets[slots]
            ends = self._hole_end[holes] + batch.offsets[slots]
        else:
            owners, _, _, into, lengths = self._hole_line.cut(files, batch.spans)
            starts = into + batch.spans.offsets[owners]
            ends = starts + lengths
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            batch.buffer[start:end] = 0

    def _holes(self, file: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """The ranges that no read fills, up to each file's size: starts, ends, first per file."""
        ends = np.zeros(file.size + 1, np.int64)  # of the previous extent of the same file
        np.add(self._logical, self._length, out=ends[1:])
        before = ends[:-1].copy()
        firsts = self._first[:-1][self._first[:-1] < self._first[1:]]
        before[firsts] = 0
        has_any = self._first[1:] > self._first[:-1]
        tails = np.where(has_any, ends[self._first[1:]], 0)
        starts = np.concatenate((before, tails))
        stops = np.concatenate((np.minimum(self._logical, self.sizes[file]), self.sizes))
        owner = np.concatenate((file, np.arange(self.sizes.size)))
        found = np.flatnonzero(starts < stops)
        found = found[np.argsort(owner[found], kind="stable")]
        return starts[found], stops[found], _starts(owner[found], self.sizes.size)


def _starts(owner: IntArray, count: int) -> IntArray:
    """Where the rows of each of `count` owners begin in a column sorted by owner: count + 1."""
    return csr_offsets(np.bincount(owner, minlength=count))


def _members(first: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
    """The rows of the chosen owners, one after the other: indices into `chosen`, and the rows."""
    starts = first[chosen]
    return expand(starts, first[chosen + 1] - starts)
