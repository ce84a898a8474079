"""Positions of the shards in the list, and of the epochs in the endless stream."""

from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray
from .options import OrderOptions

_Index = TypeVar("_Index", int, IntArray)
CHUNK = 8192  # entries that are computed at a time

Indices: TypeAlias = npt.NDArray[np.int32] | IntArray
"""Indices of a list, in the smaller type if they fit."""


class Stream(Protocol):
    """The endless stream of indices into the list of samples, without padding."""

    def chunk(self, position: int) -> tuple[int, Indices]:
        """The start and the entries of a piece of the stream that contains `position`."""


def rounds(size: int, world: int, batch_size: int) -> int:
    """Batches of each of `world` ranks for `size` samples, with a padded last batch."""
    return -(-size // (world * batch_size))


class Shards:
    """Conversion between indices in the list and positions in the endless stream.

    Also the stream of a list that nothing shuffles. Shard k of `num_shards` starts at the index
    `size * k // num_shards` (DALI, loader.h, start_index). Methods with an index as argument also
    accept int64[n].

    Attributes:
        size: entries in the list, at least one per shard.
        largest: entries in the largest shard.
        sticks: all epochs read the same shard.
    """

    def __init__(self, size: int, options: OrderOptions) -> None:
        self.size, self._count, self._shard = size, options.num_shards, options.shard_id
        if self._count > size:
            at_most = f"at most {size}, the number of samples"
            raise ValueError(f"num_shards must be {at_most}, not {self._count}")
        self.largest = -(-size // self._count)
        self.sticks = options.stick_to_shard or options.shuffle_after_epoch
        # The stream cycles through the whole list, or through one shard of it.
        first = self.start(self._shard)
        self._origin, self._phase, self._cycle = 0, first, size
        if self.sticks:
            self._origin, self._phase, self._cycle = first, 0, self.start(self._shard + 1) - first

    def start(self, shard: _Index) -> _Index:
        """The first index of a shard; for `num_shards`, the end of the list."""
        return self.size * shard // self._count

    def epoch_start(self, epoch: int) -> int:
        """The first position of an epoch."""
        if self.sticks:
            return epoch * self._cycle
        turns, shard = divmod(self._shard + epoch, self._count)
        return turns * self.size + self.start(shard) - self._phase

    def index(self, position: int) -> int:
        """The index in the list for a position."""
        return self._origin + (self._phase + position) % self._cycle

    def indices(self, start: int, stop: int) -> IntArray:
        """The indices of the positions start to stop - 1: int64[stop - start]."""
        first = (self._phase + start) % self._cycle  # Python's integers have no limit, int64 has
        return self._origin + np.arange(first, first + stop - start) % self._cycle

    def chunk(self, position: int) -> tuple[int, IntArray]:
        """See `Stream`."""
        return position, self.indices(position, position + CHUNK)

    def since_start(self, index: int) -> int:
        """Number of entries of its shard before an index."""
        return index - self.start(self._shard_of(index))

    def until_end(self, index: _Index) -> _Index:
        """Number of entries of its shard from an index on, including the index."""
        return self.start(self._shard_of(index) + 1) - index

    def _shard_of(self, index: _Index) -> _Index:
        return ((index + 1) * self._count - 1) // self.size
