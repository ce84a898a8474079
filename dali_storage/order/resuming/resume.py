"""The rest of an epoch, for another number of ranks.

Let S be the samples of an epoch, interleaved over the ranks of its beginning: the first sample of
rank 0, the first of rank 1 and so on, then the second samples; without padding. All ranks have been
given equally many batches, so together they have received a prefix of S, and one number describes
the rest: S[given:]. Rank r of any number of ranks goes on with every world-th entry of the rest,
from the r-th on. These ranks in turn receive a prefix of the rest, so the number of ranks may
change again within the epoch.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...contract._types import IntArray
from ..options import OrderOptions
from ..sequence import Order
from ..shards import rounds
from ..streams import Lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The rest of an epoch, and its position in the streams of the ranks that go on.

    The rest occupies the last positions of the epoch, so later epochs keep their positions.

    Attributes:
        size: samples of an epoch.
        began: the order of the ranks that began the epoch; any shard_id.
        epoch: the epoch.
        given: number of delivered samples of the epoch, below `size`.
        world: number of ranks that go on.
        batch_size: their batch size.
    """

    size: int
    began: OrderOptions
    epoch: int
    given: int
    world: int
    batch_size: int

    @property
    def rounds(self) -> int:
        """Batches of each rank in a whole epoch."""
        return rounds(self.size, self.world, self.batch_size)

    @property
    def stop(self) -> int:
        """The position of the next epoch."""
        return (self.epoch + 1) * self.rounds

    @property
    def start(self) -> int:
        """The position of the first batch."""
        return self.stop - rounds(self.size - self.given, self.world, self.batch_size)

    @property
    def same(self) -> int | None:
        """The position to go on from in the normal order of the ranks, or None if impossible."""
        batches, odd = divmod(self.given, self.world * self.batch_size)
        if odd or (batches and self.began.num_shards != self.world):
            return None
        return self.epoch * self.rounds + batches

    def order(
        self, size: int, batch_size: int, options: OrderOptions, containers: IntArray | None
    ) -> "RestOrder":
        """See `Remainder`."""
        return RestOrder(size, batch_size, options, containers, self)

    def shares(self) -> IntArray:
        """Number of samples of each rank: int64[world]."""
        return (self.size - self.given - np.arange(self.world) + self.world - 1) // self.world

    def given_at(self, position: int) -> int:
        """Samples of the epoch delivered before the batch at a position."""
        batches = position - self.start
        return min(self.given + batches * self.batch_size * self.world, self.size)

    def entries(self, rank: int, containers: IntArray | None) -> IntArray:
        """The entries of all batches of a rank, padded: int64[(stop - start) * batch_size]."""
        first = max(0, self.given - self.world)
        known = interleaved(self.size, self.began, containers, self.epoch, first)
        at = self.given - first + rank
        entries = known[at :: self.world]
        # Without a sample of its own, a rank repeats its last one, if the rank existed before.
        last = entries[-1] if len(entries) else known[at - self.world if at >= self.world else -1]
        padded = np.full((self.stop - self.start) * self.batch_size, last)
        padded[: len(entries)] = entries
        return padded


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRest(Rest):
    """The rest of an epoch of a stream."""

    @property
    def same(self) -> int | None:
        """See `Rest`; between global batches, any number of ranks can go on."""
        batches, odd = divmod(self.given, self.world * self.batch_size)
        return None if odd else self.epoch * self.rounds + batches

    def shares(self) -> IntArray:
        """See `Rest`."""
        ends = (self.size - self.given) * np.arange(self.world + 1) // self.world
        return np.diff(ends)


class RestOrder(Order):
    """The order of one rank: the rest of an epoch, followed by whole epochs."""

    def __init__(
        self,
        size: int,
        batch_size: int,
        options: OrderOptions,
        containers: IntArray | None,
        rest: Rest,
    ) -> None:
        """Make the order; `rest` has the same ranks and batch size. See Order for the others."""
        super().__init__(size, batch_size, options, containers)
        self._rest, self._rank, self._containers = rest, options.shard_id, containers

    def batch(self, index: int) -> IntArray:
        """See Order.

        Raises:
            ValueError: the batch is in the delivered part of the epoch.
        """
        rest = self._rest
        if index >= rest.stop or index < rest.stop - rest.rounds:
            return super().batch(index)
        if index < rest.start:
            raise ValueError(
                f"batch {index} is in the delivered part of epoch {rest.epoch}, which was resumed "
                f"after {rest.given} samples; the rest begins at batch {rest.start}"
            )
        start = (index - rest.start) * rest.batch_size
        return self._entries_of_rest[start : start + rest.batch_size].copy()

    @cached_property
    def _entries_of_rest(self) -> IntArray:
        return self._rest.entries(self._rank, self._containers)


def interleaved(
    size: int, options: OrderOptions, containers: IntArray | None, epoch: int, start: int
) -> IntArray:
    """S[start:] of an epoch, see the docstring of the module: int64[size - start].

    The cost is the epoch's shuffles of all ranks, but only one shuffle of their common list.
    """
    world = options.num_shards
    lists = Lists(size, options)
    row = start // world  # rows before it are not needed
    table = np.full((-(-size // world) - row, world), -1)
    for shard in range(world):
        order = Order(size, 1, replace(options, shard_id=shard), containers, lists)
        entries = order.epoch(epoch)[row:]
        table[: len(entries), shard] = entries
    entries = table.ravel()
    return entries[entries >= 0][start - row * world :]
