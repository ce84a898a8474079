"""Search for the parts of many files that spans need."""

from __future__ import annotations

import numpy as np

from ...contract._types import IntArray
from ...contract.ranges import Spans

_FEW = 8  # parts of a file, of which to look at all costs less than a search


class SegmentIndex:
    """Parts of files that do not overlap, such as extents, with all files on one line."""

    def __init__(self, files: IntArray, begins: IntArray, ends: IntArray) -> None:
        """`files` is where on the line each file begins and the last ends; the parts are sorted."""
        self._files = files
        self._first = np.searchsorted(begins, files)  # the first part of each file
        self._begins = begins
        self._ends = ends

    def __len__(self) -> int:
        return self._begins.size

    def cut(
        self, files: IntArray, spans: Spans
    ) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """What spans of these files share with the parts, in the order of the spans.

        Returns int64[k] each: the span; the part; and in bytes, how much of the part lies before
        the span, where in the span the rest begins, and its length.
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
    """`counts[i]` rows from `starts[i]` on, for each i: the i of each, and the row."""
    owners = np.repeat(np.arange(counts.size), counts)
    before: IntArray = counts.cumsum() - counts
    return owners, (starts - before)[owners] + np.arange(owners.size)
