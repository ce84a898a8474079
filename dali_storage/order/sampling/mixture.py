"""The source and sample at each position of a mixture, by arithmetic without counters.

Each inner node of a Huffman tree divides its own positions between two children as evenly as
integers allow (Bresenham's line). The error of a node is at most 1/2, and is scaled by the ratio of
child and parent on the way down. In Huffman's tree the totals of the ancestors grow at least like
Fibonacci's numbers. So after any number of positions, each source has its share to within 1.68.
"""

import heapq
from collections.abc import Iterable
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np

from ...contract._types import IntArray

TOTAL = 1 << 31
"""The largest sum of weights, so that products stay within 62 bits."""

_TABLE = 1 << 16  # positions; the longest period that is tabulated


def integer_weights(weights: Iterable[tuple[str, Any]]) -> list[int]:
    """Integers in the ratio of the weights, exactly if their sum can stay below 2**31.

    A float counts as its printed decimal number: 0.7 is 7/10. There is no float arithmetic, so all
    machines agree. Otherwise the integers are the nearest with the sum 2**31, by largest
    remainders, and at least 1 for a weight above 0.

    Args:
        weights: pairs of a source's name, for messages, and its weight.

    Raises:
        ValueError, TypeError: a weight is not a finite number of at least 0, or all are 0.
    """
    fractions = [_fraction(name, weight) for name, weight in weights]
    total = sum(fractions)
    if not total:
        raise ValueError("all weights are 0: at least one source must have a larger one")
    multiple = 1
    for each in fractions:
        multiple = lcm(multiple, each.denominator)
        if multiple > TOTAL:
            break
    exact = [int(each * multiple) for each in fractions]
    divisor = gcd(*exact)
    if multiple <= TOTAL and sum(exact) // divisor <= TOTAL:
        return [each // divisor for each in exact]
    shares = [each * TOTAL / total for each in fractions]
    integers = [max(int(share), 1) if share else 0 for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda i: (int(shares[i]) - shares[i], i))
    for index in by_remainder[: max(0, TOTAL - sum(integers))]:
        integers[index] += shares[index] > 0
    return integers


def _fraction(name: str, weight: Any) -> Fraction:
    if isinstance(weight, (str, bytes, bool)) or not hasattr(weight, "__float__"):
        raise TypeError(_wrong(name, weight))
    try:
        exact = isinstance(weight, (int, Fraction))
        fraction = Fraction(weight) if exact else Fraction(repr(float(weight)))
    except (ValueError, OverflowError):
        raise ValueError(_wrong(name, weight)) from None
    if fraction < 0:
        raise ValueError(_wrong(name, weight))
    return fraction


def _wrong(name: str, weight: Any) -> str:
    return f"weights: a weight must be a finite number of at least 0, not {weight!r} of {name}"


class Mixture:
    """Source and ordinal of each position k >= 0, for fixed weights.

    A node with the total T, and a left child with the weight a, gives (k a + T // 2) // T of its
    first k positions to the left. At a leaf, k is the ordinal in the source. A sequence with a
    short period is tabulated.
    """

    def __init__(self, weights: Iterable[int]) -> None:
        """Mix by the weights from `integer_weights()`; a source with 0 has no positions."""
        self.weights = np.array([*weights], np.int64)
        children, lefts, totals = [], [], []
        # Leaves are ~source, so negative; inner nodes count from 0. Among equals, oldest first.
        heap = [(weight, at, ~at) for at, weight in enumerate(self.weights.tolist()) if weight]
        heapq.heapify(heap)
        while len(heap) > 1:
            (left, _, one), (right, _, other) = heapq.heappop(heap), heapq.heappop(heap)
            children.append((other, one))  # indexed by whether a position goes left
            lefts.append(left)
            totals.append(left + right)
            serial = self.weights.size + len(totals)
            heapq.heappush(heap, (left + right, serial, len(totals) - 1))
        self._root = heap[0][2]
        self._children = np.array(children, np.int64).reshape(-1, 2)
        self._lefts, self._totals = np.array(lefts, np.int64), np.array(totals, np.int64)
        self._period = int(self.weights.sum())
        self._table: tuple[IntArray, IntArray] | None = None
        if self._period <= _TABLE:
            self._table = self._walk(np.arange(self._period))

    def at(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """The source of each position, and its ordinal in the source: int64[n] both."""
        if self._table is None:
            return self._walk(positions)
        periods, within = np.divmod(positions, self._period)
        sources = self._table[0][within]
        return sources, periods * self.weights[sources] + self._table[1][within]

    def counts(self, position: int) -> list[int]:
        """Number of samples of each source in the positions before this one."""
        counts, stack = [0] * self.weights.size, [(self._root, position)]
        while stack:
            node, count = stack.pop()
            if node < 0:
                counts[~node] = count
                continue
            right, left = self._children[node].tolist()
            weight, total = int(self._lefts[node]), int(self._totals[node])
            here = (count * weight + total // 2) // total
            stack += [(left, here), (right, count - here)]
        return counts

    def _walk(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Compute `at()` down the tree, level by level."""
        nodes, ordinals = np.full(positions.shape, self._root), positions.copy()
        live = np.arange(positions.size if self._root >= 0 else 0)
        while live.size:
            here, at = nodes[live], ordinals[live]
            left, total = self._lefts[here], self._totals[here]
            # In two parts: at * left may need more than 63 bits.
            turns, within = np.divmod(at, total)
            more, rest = np.divmod(within * left + total // 2, total)
            before = turns * left + more
            goes_left = rest + left >= total
            ordinals[live] = np.where(goes_left, before, at - before)
            nodes[live] = here = self._children[here, goes_left.astype(np.intp)]
            live = live[here >= 0]
        return ~nodes, ordinals
