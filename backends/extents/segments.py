"""Search for the parts of many files that spans need."""

from __future__ import annotations

import numpy as np

from bmap_tools.extent_map import csr_rows

from ...contract._types import IntArray
from ...contract.ranges import Spans


class SegmentIndex:
    """Parts of files that do not overlap, such as extents, with all files on one line."""

    def __init__(
        self, files: IntArray, first: IntArray, starts: IntArray, lengths: IntArray
    ) -> None:
        """The parts are sorted: those of file i begin at `first[i]`, in the order of `starts`.

        `files` is where on the line each file begins and the last ends.
        """
        self._files = files
        self._begins = starts + np.repeat(files[:-1], np.diff(first))
        self._ends = self._begins + lengths

    def cut(
        self, files: IntArray, spans: Spans
    ) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """What spans of these files share with the parts, in the order of the spans.

        Returns int64[k] each: the span; the part; and in bytes, how much of the part lies before
        the span, where in the span the rest begins, and its length.
        """
        low = self._files[files] + spans.starts
        high = low + spans.sizes
        first = np.searchsorted(self._ends, low, "right")
        owners, parts = expand(first, np.searchsorted(self._begins, high, "left") - first)
        begins, low = self._begins[parts], low[owners]
        starts = np.maximum(begins, low)
        lengths = np.minimum(self._ends[parts], high[owners]) - starts
        return owners, parts, starts - begins, starts - low, lengths


def expand(starts: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """`counts[i]` rows from `starts[i]` on, for each i: the i of each, and the row."""
    return np.repeat(np.arange(counts.size), counts), csr_rows(starts, counts)
