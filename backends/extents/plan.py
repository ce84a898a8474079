"""From samples to the reads of a device: a batch is one set of numpy columns.

Positions are bytes on the device or image that is read, memory is addresses; what they are made
into (iocbs, NVMe commands) is the backend's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bmap_tools.extent_map import ExtentMap, csr_offsets, csr_rows

from ..._types import IntArray
from ...reader import Batch


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """What to read: k pieces.

    Attributes:
        positions: int64[k], bytes on the device, multiples of the alignment, as are the lengths.
        memory: int64[k], addresses.
        lengths: int64[k], bytes.
    """

    positions: IntArray
    memory: IntArray
    lengths: IntArray

    def __len__(self) -> int:
        return self.lengths.size

    def __getitem__(self, chosen: slice | IntArray) -> Reads:
        """Some of them."""
        return Reads(self.positions[chosen], self.memory[chosen], self.lengths[chosen])

    def merged(self) -> Reads:
        """Neighbours that follow each other on the device and in memory, made one."""
        ends = (self.positions[:-1] + self.lengths[:-1], self.memory[:-1] + self.lengths[:-1])
        apart = (self.positions[1:] != ends[0]) | (self.memory[1:] != ends[1])
        if apart.all():
            return self
        starts = np.flatnonzero(np.concatenate(([True], apart)))
        lengths = np.add.reduceat(self.lengths, starts)
        return Reads(self.positions[starts], self.memory[starts], lengths)

    def split(self, most: int) -> Reads:
        """The same in pieces of at most `most` bytes."""
        counts = -(-self.lengths // most)
        total = int(counts.sum())
        if total == counts.size:
            return self
        whole = np.repeat(np.arange(counts.size), counts)
        within = (np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)) * most
        lengths = np.minimum(self.lengths[whole] - within, most)
        return Reads(self.positions[whole] + within, self.memory[whole] + within, lengths)

    def touched_by(self, others: Reads) -> IntArray:
        """Which of these share bytes of the device with one of `others`."""
        starts, ends = self.positions, self.positions + self.lengths
        hit = np.zeros(starts.size, bool)
        for start, length in zip(others.positions, others.lengths, strict=True):
            hit |= (starts < start + length) & (ends > start)
        return np.flatnonzero(hit)

    def within(self, piece: Reads) -> IntArray:
        """Which of these write to no other memory than that of one read, `piece`."""
        start, end = piece.memory, piece.memory + piece.lengths
        return np.flatnonzero((self.memory >= start) & (self.memory + self.lengths <= end))


class Extents:
    """Where the bytes of every file of a map lie, ready to be made into reads.

    Extents that were never written, and what no extent covers, are zeros: they are never read.

    Attributes:
        sizes: int64[files], bytes.
    """

    def __init__(self, mapped: ExtentMap, start: int, unit: int) -> None:
        """Take the columns out of a map.

        Args:
            mapped: the map.
            start: bytes, where its file system begins on the device that is read.
            unit: bytes, a multiple of the device's block. Of the last block of a file no more is
                read than its size rounded up to this.
        """
        self.sizes = mapped.sizes
        file = np.repeat(np.arange(len(mapped)), np.diff(mapped.extent_offsets))
        room = (-(-mapped.sizes // unit) * unit)[file]
        # A file's last block can be larger than the unit, and its end an extent of its own.
        read = (mapped.extents[:, 1] >= 0) & (mapped.extents[:, 0] < room)
        self._logical, physical, length = (
            np.ascontiguousarray(column[read]) for column in mapped.extents.T
        )
        file = file[read]
        self._length = np.minimum(length, room[read] - self._logical)
        self._position = physical + start
        self._first = _starts(file, len(mapped))
        self._gap_start, self._gap_end, self._gap_first = self._gaps(file)

    def reads(self, batch: Batch, files: IntArray) -> tuple[Reads, IntArray]:
        """What to read for a batch, in its order, neither merged nor split.

        Args:
            batch: with sizes as here.
            files: int64[n], the file of each of its samples.

        Returns:
            The k reads, and the place in the batch that each is for (int64[k]).
        """
        owners, extents = _members(self._first, files)
        logical = self._logical[extents]
        memory = logical + (batch.buffer.ctypes.data + batch.offsets)[owners]
        return Reads(self._position[extents], memory, self._length[extents]), owners

    def fill_gaps(self, batch: Batch, files: IntArray) -> None:
        """Write the zeros of holes and unwritten ranges."""
        owners, gaps = _members(self._gap_first, files)
        starts = (self._gap_start[gaps] + batch.offsets[owners]).tolist()
        ends = (self._gap_end[gaps] + batch.offsets[owners]).tolist()
        for start, end in zip(starts, ends, strict=True):
            batch.buffer[start:end] = 0

    def _gaps(self, file: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """What no read fills, up to each file's size: starts, ends, and the first of each file."""
        ends = np.zeros(file.size + 1, np.int64)  # of the extent before, in the same file
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
    """Where the members of each of `count` owners begin in a column sorted by owner; count + 1."""
    return csr_offsets(np.bincount(owner, minlength=count))


def _members(first: IntArray, chosen: IntArray) -> tuple[IntArray, IntArray]:
    """The members of the chosen owners, one after the other: places in `chosen`, and indices."""
    starts = first[chosen]
    counts = first[chosen + 1] - starts
    return np.repeat(np.arange(chosen.size), counts), csr_rows(starts, counts)
