"""Compressed sparse rows: the rows of a table that belong to one of many owners, in a row each."""

from __future__ import annotations

import numpy as np

from .extent_map import IntArray


def offsets(counts: IntArray) -> IntArray:
    """Where the rows of each of n owners begin, and the last ones end: int64[n + 1]."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def rows(starts: IntArray, counts: IntArray) -> IntArray:
    """`counts[0]` numbers from `starts[0]` on, then those of the next owner: int64[m]."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())
