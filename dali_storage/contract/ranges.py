"""Samples as byte ranges of files, and the layout of a batch of ranges in a buffer."""

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
    """The place of each sample in the files of a catalog: 12 bytes per sample, in columns.

    A *run* is a sequence of samples of one file; usually a file has one run. If there are very many
    runs, each sample has the number of its file instead, of 1 to 4 bytes.

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
        """Make ranges from the starts and sizes of each file's samples, in the files' order."""
        columns = list(files)
        counts = np.array([len(starts) for starts, _ in columns], np.int64)
        none = np.empty(0, np.int64)
        starts = np.concatenate([none, *(starts for starts, _ in columns)])
        sizes = np.concatenate([none, *(sizes for _, sizes in columns)])
        return cls(np.cumsum(counts) - counts, np.arange(len(counts)), starts, _narrow(sizes))

    @classmethod
    def of_columns(cls, files: IntArray, starts: IntArray, sizes: IntArray) -> Ranges:
        """Make ranges from the file, start and size of each sample."""
        changes = np.flatnonzero(files[1:] != files[:-1]) + 1
        if changes.size >= files.size // 4:  # a run has 16 bytes
            kind = np.min_scalar_type(int(files.max(initial=0)))
            return cls(np.empty(0, np.int64), files.astype(kind), starts, _narrow(sizes))
        runs = np.concatenate(([0], changes))
        return cls(runs, files[runs], starts, _narrow(sizes))

    def __len__(self) -> int:
        return len(self.sizes)

    def files_of(self, samples: IntArray) -> IntArray:
        """Return the file of each of `samples`, int64[n]."""
        rows = self.runs.searchsorted(samples, "right") - 1 if self.runs.size else samples
        return self.files[rows].astype(np.int64, copy=False)

    def first_outside(self, file_sizes: IntArray) -> int | None:
        """Return the first sample outside its file, or None; `file_sizes`: of all files, bytes."""
        # In parts, which need a few MiB for any number of samples.
        for first in range(0, len(self), _PART):
            sizes, starts = self.sizes[first : first + _PART], self.starts[first : first + _PART]
            # Subtracted, because start plus size of a damaged index may overflow.
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
    """The reads of a batch: each span is one contiguous read of a whole file or of close ranges.

    Whole files are in the order of the batch; ranges are sorted by file and start.

    Attributes:
        files: int64[k], the file of each span, as an index into the catalog's files.
        starts: int64[k], bytes into the file; multiples of the unit.
        sizes: int64[k], bytes; multiples of the unit, so a span may reach beyond the file's end.
        needed: int64[k], bytes; the bytes behind belong to no sample. If a read ends earlier, the
            file is too short.
        offsets: int64[k], the place of each span in the buffer: bytes, multiples of the alignment.
        slots: int64[k], for each span the slot of one of its samples, the first in the batch.
    """

    files: IntArray
    starts: IntArray
    sizes: IntArray
    needed: IntArray
    offsets: IntArray
    slots: IntArray

    @classmethod
    def of_files(cls, files: IntArray, sizes: IntArray, offsets: IntArray, unit: int) -> Spans:
        """Make one span for each whole file (int64[n]) of `sizes` bytes, also for empty files."""
        rooms = sizes if unit == 1 else (sizes + (unit - 1)) & -unit
        count = sizes.size
        return cls(files, np.zeros(count, np.int64), rooms, sizes, offsets, np.arange(count))

    def __len__(self) -> int:
        return self.sizes.size

    def __getitem__(self, chosen: NDArray[np.bool_] | IntArray) -> Spans:
        """Select some spans, or reorder all."""
        return Spans(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def split(self, max_bytes: int) -> Spans:
        """Split into spans of at most `max_bytes`, a multiple of the unit."""
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
    """Divide reads into pieces of at most `max_bytes`.

    Returns:
        The read of each piece, and the start of each piece in its read in bytes: int64[k] both.
    """
    counts = -(-lengths // max_bytes)
    whole = np.repeat(np.arange(counts.size), counts)
    before = np.repeat(np.cumsum(counts) - counts, counts)
    return whole, (np.arange(whole.size) - before) * max_bytes


def lay_out(
    files: IntArray, starts: IntArray, sizes: IntArray, alignment: int, unit: int, gap: int = GAP
) -> tuple[IntArray, int, Spans]:
    """Lay out n ranges in one buffer without any moves of bytes after reading.

    Ranges of one file with at most `gap` bytes in between become one span, in which they keep their
    distance; overlapping ranges do not. Each span begins at a multiple of `alignment` (a multiple
    of `unit`) and is read in whole units, so the offset of a range is congruent to its start modulo
    `unit`.

    Returns:
        The offsets in the buffer, int64[n] bytes; the length of the buffer in bytes; the spans. An
        empty range has the offset 0 and is in no span.
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
