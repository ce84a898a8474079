"""Where the shards lie in the list, and where the epochs lie in the endless stream."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from .._types import IntArray
from .options import OrderOptions

_Places = TypeVar("_Places", int, IntArray)


class Shards:
    """Where the shards lie in the list, and where the positions of the endless stream do.

    A place is an index into the list; a position, one into the stream. Shard k is the places from
    size * k // count on (DALI, loader.h, start_index).
    """

    def __init__(self, size: int, options: OrderOptions) -> None:
        if options.num_shards > size:
            raise ValueError(f"num_shards={options.num_shards}: there are only {size} samples")
        self.size, self._count, self._shard = size, options.num_shards, options.shard_id
        self.largest = -(-size // self._count)
        self.sticks = options.stick_to_shard or options.shuffle_after_epoch
        # The stream runs round the whole list, or round one shard of it.
        first = self.start(self._shard)
        self._origin, self._phase, self._cycle = 0, first, size
        if self.sticks:
            self._origin, self._phase, self._cycle = first, 0, self.start(self._shard + 1) - first

    def start(self, shard: _Places) -> _Places:
        """The place where a shard starts; for as many shards as there are, the list's end."""
        return self.size * shard // self._count

    def epoch_start(self, epoch: int) -> int:
        """The position at which an epoch starts."""
        if self.sticks:
            return epoch * self._cycle
        rounds, shard = divmod(self._shard + epoch, self._count)
        return rounds * self.size + self.start(shard) - self._phase

    def place(self, position: int) -> int:
        """The place that is read at a position."""
        return self._origin + (self._phase + position) % self._cycle

    def places(self, start: int, stop: int) -> IntArray:
        """int64[stop - start], the places of the positions start to stop - 1."""
        first = (self._phase + start) % self._cycle  # Python's integers have no end, int64 has
        return self._origin + np.arange(first, first + stop - start) % self._cycle

    def since_start(self, place: int) -> int:
        """How many entries of its shard come before a place."""
        return place - self.start(self._shard_of(place))

    def until_end(self, place: _Places) -> _Places:
        """How many entries of its shard come from a place on."""
        return self.start(self._shard_of(place) + 1) - place

    def _shard_of(self, place: _Places) -> _Places:
        return ((place + 1) * self._count - 1) // self.size
