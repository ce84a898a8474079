"""Index of the segments of many files, to look up segments by spans of bytes."""

from __future__ import annotations

import numpy as np

from ...contract._types import IntArray
from ...contract.ranges import Spans

_FEW = 8  # segments of a file: to look at all of so few costs less than a search


class SegmentIndex:
    """Index of segments of files, such as extents, that do not overlap.

    All files lie one after another in a single range of offsets.
    """

    def __init__(self, files: IntArray, begins: IntArray, ends: IntArray) -> None:
        """Index sorted segments; `files` has the offset of each file, and the end of the last."""
        self._files = files
        self._first = np.searchsorted(begins, files)  # the first segment of each file
        self._begins = begins
        self._ends = ends

    def __len__(self) -> int:
        return self._begins.size

    def cut(
        self, files: IntArray, spans: Spans
    ) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Find the overlaps of spans of these files with the segments, in the order of the spans.

        Returns int64[k] each: the span; the segment; and in bytes, the part of the segment before
        the span, the position of the overlap in the span, and its length.
        """
        low = self._files[files] + spans.starts
        high = low + spans.sizes
        first, stop = self._first[files], self._first[files + 1]
        counts = stop - first
        if counts.max(initial=0) > _FEW:
            first = np.searchsorted(self._ends, low, "right")
            counts = np.searchsorted(self._begins, high, "left") - first
        owners, parts = expand(first, counts)
        begins, low = self._begins[parts], low[owners]
        starts = np.maximum(begins, low)
        lengths = np.minimum(self._ends[parts], high[owners]) - starts
        columns = owners, parts, starts - begins, starts - low, lengths
        if lengths.min(initial=1) > 0:
            return columns
        owners, parts, before, within, lengths = (column[lengths > 0] for column in columns)
        return owners, parts, before, within, lengths


def expand(starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Expand `counts[i]` rows from `starts[i]` on, for each i: the i of each row, and the row."""
    owners = np.repeat(np.arange(counts.size), counts)
    before: IntArray = counts.cumsum() - counts
    return owners, (starts - before)[owners] + np.arange(owners.size)
