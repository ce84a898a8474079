"""Compressed sparse rows: the rows of a table that belong to one of many owners, in a row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]


def offsets(counts: IntArray | Sequence[int]) -> IntArray:
    """Where the rows of each of n owners begin, and the last ones end: int64[n + 1]."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def rows(starts: IntArray, counts: IntArray) -> IntArray:
    """`counts[0]` numbers from `starts[0]` on, then those of the next owner: int64[m]."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())


def within(extents: IntArray, counts: IntArray, sizes: IntArray) -> tuple[IntArray, IntArray]:
    """The extents that hold bytes of their file, without space merely reserved beyond its end.

    Args:
        extents: int64[m, 3], as in an ExtentMap.
        counts: int64[n], how many each file has.
        sizes: int64[n], of the files, bytes.

    Returns:
        Those extents, int64[k, 3], and how many of them each file has, int64[n].
    """
    file = np.repeat(np.arange(len(counts)), counts)
    inside = extents[:, 0] < sizes[file]
    return extents[inside], np.bincount(file[inside], minlength=len(counts))
