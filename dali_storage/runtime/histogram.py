"""Histograms of durations; a thread fills them without a lock."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import partial

import numpy as np

from ..contract._types import IntArray

_BITS = 3  # 8 buckets for each factor of 2: a percentile is at most an eighth too high
_BUCKETS = (64 - _BITS) << _BITS


class Histogram:
    """Counts of non-negative integers, such as nanoseconds, in logarithmic buckets.

    Integers below 16 have a bucket each. Above, each factor of 2 has 8 buckets.

    Attributes:
        counts: int64[k], how many were recorded in each bucket.
        total: their sum.
        most: the largest; 0 if there is none.
    """

    __slots__ = ("_cells", "counts", "most", "total")

    def __init__(self) -> None:
        self.counts: IntArray = np.zeros(_BUCKETS, np.int64)
        self._cells = self.counts.data  # faster than numpy for one of them
        self.total = self.most = 0

    def record(self, value: int, times: int = 1) -> None:
        """Count an integer so often; a negative one counts as 0. For one thread at a time."""
        if value < 0:
            value = 0
        shift = value.bit_length() - _BITS - 1
        self._cells[(shift << _BITS) + (value >> shift) if shift > 0 else value] += times
        self.total += value * times
        if value > self.most:
            self.most = value

    def add(self, other: Histogram) -> None:
        """Count what another one has counted, which may go on meanwhile."""
        self.counts += other.counts
        self.total += other.total
        self.most = max(self.most, other.most)

    def since(self, earlier: Histogram | None) -> Histogram:
        """The counts since an earlier copy of this histogram; None: all of them.

        `most` is then the bound of its bucket: at most an eighth too high.
        """
        found = Histogram()
        if earlier is None:
            found.add(self)
        else:
            found.counts += self.counts - earlier.counts
            found.total = self.total - earlier.total
            used = np.flatnonzero(found.counts)
            bound = upper_bound(int(used[-1])) if used.size else 0
            found.most = min(bound, self.most, found.total)
        return found

    @staticmethod
    def below(shift: int) -> int:
        """The last bucket of integers that are less than 2 to the power of `shift` (4 or more)."""
        return ((shift - _BITS) << _BITS) + (1 << _BITS) - 1

    @property
    def count(self) -> int:
        """The number of recorded integers."""
        return int(self.counts.sum())

    def percentile(self, percent: float) -> int:
        """The least bound of a bucket that at least `percent` of the integers do not exceed."""
        reached = self.counts.cumsum()
        if not reached[-1]:
            return 0
        rank = max(math.ceil(reached[-1] * percent / 100), 1)
        return min(upper_bound(int(np.searchsorted(reached, rank))), self.most)


def upper_bound(bucket: int) -> int:
    """The largest integer of a bucket."""
    shift = max((bucket >> _BITS) - 1, 0)
    return ((bucket - (shift << _BITS) + 1) << shift) - 1


class Times:
    """Histograms by name, one set for each thread; merged when somebody asks."""

    def __init__(self) -> None:
        self.reset()

    def record(self, thread: int, values: Mapping[str, int], count: int = 1) -> None:
        """Count integers, in `count` equal shares, in a thread, which has a number of its own."""
        own = self._of[thread]
        for name, value in values.items():
            own[name].record(value // count, count)

    def merged(self) -> dict[str, Histogram]:
        """The histograms of all threads together, by name."""
        merged: dict[str, Histogram] = {}
        for own in self._of.copy().values():
            for name, histogram in own.copy().items():
                merged.setdefault(name, Histogram()).add(histogram)
        return merged

    def reset(self) -> None:
        """Begin with empty histograms. A value that is recorded meanwhile may be lost."""
        self._of = defaultdict[int, dict[str, Histogram]](partial(defaultdict, Histogram))
        self.generation = object()  # another one after each reset
