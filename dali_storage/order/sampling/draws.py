"""Draws of single samples by their weights: systematic sampling."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ..permutation import KeyArray, mixed

_BITS = 58  # of the sum of the weights


class Draws:
    """Passes of `length` draws, in which each sample has its share, rounded up or down.

    Draw q selects the sample at (q + u) / length of the cumulated weights, with the same u in
    [0, 1) for all draws of a pass and another in each pass. So the mean over passes is exact
    (systematic sampling; Madow, 1949). Memory: 8 bytes per sample.
    """

    def __init__(self, weights: Any, samples: int, length: int) -> None:
        """Draw by `weights`: one number of at least 0 per sample, not all 0.

        Raises:
            ValueError, TypeError: the weights are wrong.
        """
        given = np.asarray(weights)
        if given.ndim != 1 or given.dtype.kind not in "iuf":
            raise TypeError(f"weights must be one number per sample, not {weights!r:.80}")
        if given.size != samples:
            raise ValueError(f"weights: {given.size} numbers for {samples} samples; give one each")
        wrong = np.flatnonzero(~np.isfinite(given) | (given < 0))
        if wrong.size:
            at = int(wrong[0])
            raise ValueError(
                f"weights: a weight must be a finite number of at least 0, not {given[at]} of "
                f"sample {at}"
            )
        if not given.any():
            raise ValueError("all weights are 0: at least one sample must have a larger one")
        if given.dtype.kind == "f" or int(given.max()) * given.size >= 1 << 60:
            given = _scaled(given.astype(np.float64))
        self.length = length
        self.ends = np.cumsum(given.astype(np.int64))
        self._total = int(self.ends[-1])

    def at(self, keys: KeyArray, draws: IntArray) -> IntArray:
        """The sample of each draw of the pass with each key: int64[n]."""
        offsets = (mixed(~keys) % np.uint64(self._total)).astype(np.int64)
        # (draw * total + offset) // length, in parts: the product may need more than 63 bits.
        whole, part = divmod(self._total, self.length)
        whole_offsets, rest = np.divmod(offsets, self.length)
        targets = draws * whole + whole_offsets + (draws * part + rest) // self.length
        order = np.argsort(targets)  # sorted targets need half the time
        samples = np.empty(draws.shape, np.int64)
        samples[order] = np.searchsorted(self.ends, targets[order], "right")
        return samples


def _scaled(weights: npt.NDArray[np.float64]) -> IntArray:
    """Integers in the ratio of the weights, with a sum of about 2**58; at least 1, or 0 for 0.

    The factor is a power of two, derived from a sum of integers: a sum of floats would depend on a
    machine's order of additions.
    """
    largest = 62 - weights.size.bit_length()  # bits of the first integers, so that the sum fits
    shift = largest - int(np.frexp(weights.max())[1])
    total = int(np.ldexp(weights, shift).astype(np.int64).sum()) + weights.size
    scaled = np.rint(np.ldexp(weights, shift + _BITS - total.bit_length()))
    return np.where(weights > 0, np.maximum(scaled, 1), 0).astype(np.int64)
