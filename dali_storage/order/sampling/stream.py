"""The endless stream of samples of a mixture, by weights that may change at any position."""

from __future__ import annotations

import copy
import json
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ..permutation import hashed
from .mixture import TOTAL, Mixture, integer_weights
from .sources import Sources, require_names

_SHOWN = 8  # weights in a description


class SampleStream(Protocol):
    """An endless stream of samples for all ranks.

    Attributes:
        epoch_size: number of positions in an epoch.
        seed: the seed of the stream and of its division among ranks.
    """

    epoch_size: int
    seed: int

    def entries(self, positions: IntArray) -> IntArray:
        """The delivered sample at each position: int64[n]. Positions ascend."""

    def turns_at(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """The source number at each position, and its pass, or the epoch: int64[n] both."""

    def describe(self, epoch: int) -> str:
        """A description of everything that determines an epoch; equal for equal streams."""

    @property
    def changes(self) -> list[list[Any]]:
        """Weights that were set while running: pairs of a position and a list of integers."""

    def changed(self, changes: Any) -> Self:
        """The stream with these `changes` instead of its own."""


class _Piece(NamedTuple):
    """Positions with the same weights.

    Attributes:
        start: the first position.
        mixture: the mixture at the positions from `start` on.
        before: int64[k], the number of samples of each source before `start`.
    """

    start: int
    mixture: Mixture
    before: IntArray


class MixedStream:
    """A stream of sources, interleaved by weights.

    After any position each source has had its share to within 1.7 samples for each piece of the
    schedule. Objects are immutable.

    Attributes:
        names: the sources' names, in the order of their numbers.
        epoch_size, seed: see `SampleStream`.
    """

    def __init__(
        self,
        names: Sequence[Any],
        sources: Sources,
        numbers: Callable[[IntArray], IntArray],
        schedule: Sequence[tuple[int, Mapping[Any, Any]]],
        *,
        seed: int,
        epoch_size: int | str | None,
    ) -> None:
        """Mix `sources` by the weights of a schedule.

        Args:
            names: the sources' names.
            sources: as many sources, each with at least one sample.
            numbers: a function from int64[n] samples to the numbers of their sources.
            schedule: positions and the weights from there on, by name; the first position is 0.
            seed: the seed of all orders.
            epoch_size: positions of an epoch. "largest": the epoch ends when, by the first weights,
                each source with a weight has had one pass; "smallest": when one of these sources
                has. None: the length of one pass of all sources.

        Raises:
            ValueError, TypeError: an argument is wrong.
        """
        self.names, self.seed = [*names], seed
        self._sources, self._numbers, self._key = sources, numbers, hashed(seed)
        self._pieces: list[_Piece] = []
        for position, weights in _in_order(schedule):
            self._add(position, self._integers(weights))
        self._planned = [*self._pieces]
        self._changes: list[tuple[int, list[int]]] = []
        self.epoch_size = self._epoch_size(epoch_size)

    def entries(self, positions: IntArray) -> IntArray:
        """See `SampleStream`."""
        numbers, ordinals = self.sources_at(positions)
        return self._sources.entries(self._key, numbers, ordinals)

    def sources_at(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """The source number at each position, and the ordinal in the source: int64[n] both."""
        cuts = np.searchsorted(positions, [piece.start for piece in self._pieces[1:]]).tolist()
        parts = zip(self._pieces, pairwise([0, *cuts, positions.size]), strict=True)
        found = []
        for piece, (start, stop) in parts:
            if start < stop:
                numbers, ordinals = piece.mixture.at(positions[start:stop] - piece.start)
                found.append((numbers, ordinals + piece.before[numbers]))
        if len(found) < 2:
            return found[0] if found else (positions, positions)
        numbers, ordinals = (np.concatenate(each) for each in zip(*found, strict=True))
        return numbers, ordinals

    def turns_at(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """See `SampleStream`: passes."""
        numbers, ordinals = self.sources_at(positions)
        return numbers, ordinals // self._sources.lengths[numbers]

    def sources_of(self, samples: IntArray) -> npt.NDArray[np.int32]:
        """The number of the source of each sample: int32[n]."""
        return self._numbers(samples).astype(np.int32)

    def progress(self, position: int) -> dict[Any, tuple[int, int]]:
        """The samples and the whole passes of each source before a position."""
        counts = self._counts(position).tolist()
        lengths = self._sources.lengths.tolist()
        each = zip(self.names, counts, lengths, strict=True)
        return {name: (count, count // length) for name, count, length in each}

    @property
    def changes(self) -> list[list[Any]]:
        """See `SampleStream`."""
        return [[position, [*weights]] for position, weights in self._changes]

    def changed(self, changes: Any) -> Self:
        """See `SampleStream`.

        Raises:
            ValueError: the changes do not fit this stream.
        """
        other = copy.copy(self)
        other._pieces, other._changes = [*self._planned], []
        if not isinstance(changes, (list, tuple)):
            raise ValueError(f"changes: {changes!r:.80} is not a list")
        for each in changes:
            pair = isinstance(each, (list, tuple)) and len(each) == 2
            if not pair or type(each[0]) is not int or each[0] < 0 or not _integers(each[1]):
                raise ValueError(f"changes: {each!r:.80} is not a position and a list of weights")
            if other._changes and each[0] <= other._changes[-1][0]:
                raise ValueError(f"changes: position {each[0]} is not above the previous position")
            if len(each[1]) != len(self.names):
                raise ValueError(f"changes: {len(each[1])} weights for {len(self.names)} sources")
            while other._pieces and other._pieces[-1].start >= each[0]:  # later planned pieces
                other._pieces.pop()
            other._add(*each)
            other._changes.append((each[0], [*each[1]]))
        return other

    def with_weights(self, weights: Mapping[Any, Any], position: int) -> Self:
        """The stream with other weights from a position on; later changes are forgotten.

        Raises:
            ValueError, TypeError: the weights are wrong.
        """
        kept = [change for change in self.changes if change[0] < position]
        return self.changed([*kept, [position, self._integers(weights)]])

    def describe(self, epoch: int) -> str:
        """See `SampleStream`."""
        pieces = [[it.start, it.mixture.weights.tolist()] for it in self._planned]
        names = list(map(str, self.names))
        whole = json.dumps([names, pieces, self._sources.crc])
        shown = [f"{name}: {it}" for name, it in zip(names, pieces[0][1], strict=True)]
        more = ", ..." if len(shown) > _SHOWN else ""
        return (
            f"seed {self.seed}, epoch_size {self.epoch_size}, weights {{{', '.join(shown[:_SHOWN])}"
            f"{more}}} (CRC-32 {zlib.crc32(whole.encode()):#x})"
        )

    def _add(self, position: int, weights: Sequence[int]) -> None:
        before = np.zeros(len(weights), np.int64)
        if self._pieces:
            before = self._counts(position)
        self._pieces.append(_Piece(position, Mixture(weights), before))

    def _counts(self, position: int) -> IntArray:
        piece = self._pieces[bisect_right([it.start for it in self._pieces], position) - 1]
        return piece.before + np.array(piece.mixture.counts(position - piece.start), np.int64)

    def _integers(self, weights: Mapping[Any, Any]) -> list[int]:
        if not isinstance(weights, Mapping):
            raise TypeError(f"weights must be a mapping of sources to numbers, not {weights!r:.80}")
        require_names("weights", weights, dict.fromkeys(self.names))
        return integer_weights([(repr(name), weights[name]) for name in self.names])

    def _epoch_size(self, given: int | str | None) -> int:
        lengths, weights = self._sources.lengths, self._pieces[0].mixture.weights
        if given is None:
            return int(lengths.sum())
        if given in ("largest", "smallest"):
            enough = all if given == "largest" else any
            counts, weighted = self._pieces[0].mixture.counts, np.flatnonzero(weights).tolist()

            def is_through(position: int) -> bool:
                found = counts(position)
                return enough(found[number] >= lengths[number] for number in weighted)

            # No source is 2 samples behind its share.
            most = max(
                (int(lengths[it]) + 2) * int(weights.sum()) // int(weights[it]) for it in weighted
            )
            return bisect_left(range(most + 2), True, key=is_through)
        if isinstance(given, bool) or not isinstance(given, (int, np.integer)):
            raise TypeError(
                f"epoch_size must be an integer, 'largest' or 'smallest', not {given!r:.80}"
            )
        if given < 1:
            raise ValueError(f"epoch_size must be at least 1, not {given}")
        return int(given)


def _in_order(schedule: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Refuse positions that do not ascend from 0."""
    if not isinstance(schedule, Sequence):
        raise TypeError(f"schedule must be pairs (position, weights), not {schedule!r:.80}")
    pairs = [*schedule]
    for each in pairs:
        if not isinstance(each, (tuple, list)) or len(each) != 2 or type(each[0]) is not int:
            raise TypeError(f"schedule must be pairs (position, weights), not {each!r:.80}")
    positions = [position for position, _ in pairs]
    if not positions or positions[0] != 0:
        raise ValueError(f"schedule must begin at position 0, not {positions[:1]}")
    if sorted(set(positions)) != positions:
        raise ValueError(f"schedule: positions must ascend, not {positions!r:.80}")
    return pairs


def _integers(weights: Any) -> bool:
    known = isinstance(weights, (list, tuple)) and all(type(it) is int for it in weights)
    return known and min(weights, default=-1) >= 0 < sum(weights) <= TOTAL + len(weights)
