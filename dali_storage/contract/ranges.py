"""Samples that are byte ranges of files, and where the ranges of a batch go in a buffer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._types import IntArray

_PART = 1 << 16  # samples
GAP = 4096
"""Bytes between two ranges of a file that cost less to read than another read does."""


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Where the samples of a catalog are in its files: 12 bytes per sample, in columns.

    A *run* is a sequence of samples of one file; usually a file has one. If there are very many,
    each sample has a number of its file instead, of 1 to 4 bytes.

    Attributes:
        runs: int64[r], the first sample of each run; ascending, the first is 0. Empty if `files`
            has an entry for each sample.
        files: int64[r], the file of each run; or unsigned[n], of each sample.
        starts: int64[n], bytes into the file.
        sizes: int64[n] or uint32[n], bytes.
    """

    runs: IntArray
    files: NDArray[np.integer[Any]]
    starts: IntArray
    sizes: NDArray[np.int64] | NDArray[np.uint32]

    @classmethod
    def of_files(cls, files: Iterable[tuple[IntArray, IntArray]]) -> Ranges:
        """From the starts and sizes of the samples of each file, in the order of the files."""
        columns = list(files)
        counts = np.array([len(starts) for starts, _ in columns], np.int64)
        none = np.empty(0, np.int64)
        starts = np.concatenate([none, *(starts for starts, _ in columns)])
        sizes = np.concatenate([none, *(sizes for _, sizes in columns)])
        return cls(np.cumsum(counts) - counts, np.arange(len(counts)), starts, _narrow(sizes))

    @classmethod
    def of_columns(cls, files: IntArray, starts: IntArray, sizes: IntArray) -> Ranges:
        """From the file, start and size of each sample."""
        changes = np.flatnonzero(files[1:] != files[:-1]) + 1
        if changes.size >= files.size // 4:  # a run has 16 bytes
            kind = np.min_scalar_type(int(files.max(initial=0)))
            return cls(np.empty(0, np.int64), files.astype(kind), starts, _narrow(sizes))
        runs = np.concatenate(([0], changes))
        return cls(runs, files[runs], starts, _narrow(sizes))

    def __len__(self) -> int:
        return len(self.sizes)

    def files_of(self, samples: IntArray) -> IntArray:
        """The file of each of `samples`, int64[n]."""
        rows = np.searchsorted(self.runs, samples, "right") - 1 if self.runs.size else samples
        return self.files[rows].astype(np.int64, copy=False)

    def first_outside(self, file_sizes: IntArray) -> int | None:
        """The first sample that is not within its file, if any; `file_sizes`: of all files, bytes.

        Takes a few MiB for any number of samples.
        """
        for first in range(0, len(self), _PART):
            sizes, starts = self.sizes[first : first + _PART], self.starts[first : first + _PART]
            room = file_sizes[self.files_of(np.arange(first, first + len(sizes)))] - sizes
            for bad in np.flatnonzero((starts < 0) | (sizes < 0) | (starts > room))[:1].tolist():
                return first + int(bad)
        return None


def _narrow(sizes: IntArray) -> NDArray[np.int64] | NDArray[np.uint32]:
    if sizes.max(initial=0) >= 1 << 32:
        return sizes
    if sizes.strides == (0,):  # one size for all takes no memory
        return np.broadcast_to(sizes[:1].astype(np.uint32), sizes.shape)
    return sizes.astype(np.uint32)


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """What to read of files: each span is one contiguous read of a whole file or of close ranges.

    Whole files are in the order of the batch, ranges in that of the files and of their starts.

    Attributes:
        files: int64[k], the file of each, as an index into the catalog's files.
        starts: int64[k], bytes into the file; multiples of the unit.
        sizes: int64[k], bytes; multiples of the unit, so a span may reach beyond the file's end.
        needed: int64[k], bytes; what lies behind belongs to no sample. If a read ends before, the
            file is too short.
        offsets: int64[k], where each goes in the buffer: bytes, multiples of the alignment.
        slots: int64[k], the slot of one of its samples, the first in the batch.
    """

    files: IntArray
    starts: IntArray
    sizes: IntArray
    needed: IntArray
    offsets: IntArray
    slots: IntArray

    @classmethod
    def of_files(cls, files: IntArray, sizes: IntArray, offsets: IntArray, unit: int) -> Spans:
        """Whole files (int64[n]) of `sizes` bytes, one span each, also if a file is empty."""
        rooms = sizes if unit == 1 else (sizes + (unit - 1)) & -unit
        count = sizes.size
        return cls(files, np.zeros(count, np.int64), rooms, sizes, offsets, np.arange(count))

    def __len__(self) -> int:
        return self.sizes.size

    def __getitem__(self, chosen: NDArray[np.bool_] | IntArray) -> Spans:
        """Some of them, or all in another order."""
        return Spans(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def split(self, max_bytes: int) -> Spans:
        """The same in spans of at most `max_bytes`, a multiple of the unit."""
        if not (self.sizes > max_bytes).any():
            return self
        whole, within = divide(np.maximum(self.sizes, 1), max_bytes)  # an empty one stays
        return Spans(
            files=self.files[whole],
            starts=self.starts[whole] + within,
            sizes=np.minimum(self.sizes[whole] - within, max_bytes),
            needed=np.minimum(self.needed[whole] - within, max_bytes),
            offsets=self.offsets[whole] + within,
            slots=self.slots[whole],
        )


def divide(lengths: IntArray, max_bytes: int) -> tuple[IntArray, IntArray]:
    """Pieces of at most `max_bytes` of reads: the read of each, and bytes into it, int64[k]."""
    counts = -(-lengths // max_bytes)
    whole = np.repeat(np.arange(counts.size), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return whole, (np.arange(whole.size) - before) * max_bytes


def lay_out(
    files: IntArray, starts: IntArray, sizes: IntArray, alignment: int, unit: int, gap: int = GAP
) -> tuple[IntArray, int, Spans]:
    """Lay out n ranges in one buffer so that nothing has to be moved after it was read.

    Ranges of one file that follow each other within `gap` bytes become one span, in which they keep
    their distance; overlapping ones do not. Each span begins at a multiple of `alignment` (a
    multiple of `unit`) and is read in whole units, so the offset of a range is congruent to its
    start modulo `unit`.

    Returns:
        The offsets in the buffer, int64[n] bytes; the length of the buffer in bytes; the spans.
        An empty range has the offset 0 and is in no span.
    """
    # 64 ranges in 20 us: bit masks and methods are cheaper than divisions and functions of numpy.
    order = np.lexsort((starts, files))
    if np.count_nonzero(sizes) < sizes.size:
        order = order[sizes[order] > 0]
    file, start = files[order], starts[order]
    end = start + sizes[order]
    between = (start[1:] - end[:-1]).view(np.uint64)  # of overlapping ranges it is huge
    begins = np.ones(order.size, bool)
    begins[1:] = (file[1:] != file[:-1]) | (between > gap)
    first = begins.nonzero()[0]
    last = np.empty_like(first)
    last[:-1], last[-1:] = first[1:] - 1, order.size - 1
    low = start[first] & -unit
    needed = end[last] - low
    rooms = (needed + (alignment - 1)) & -alignment
    ends = rooms.cumsum()
    where = ends - rooms
    offsets = np.zeros_like(starts)
    offsets[order] = start + (where - low)[begins.cumsum() - 1]
    slots = np.minimum.reduceat(order, first) if first.size else first
    lengths = (needed + (unit - 1)) & -unit
    spans = Spans(file[first], low, lengths, needed, where, slots)
    return offsets, int(ends[-1]) if ends.size else 0, spans
