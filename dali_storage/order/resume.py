"""The rest of an epoch, for another number of ranks.

Let S be the samples of an epoch, interleaved over the ranks that began it: the first one of rank 0,
the first one of rank 1 and so on, then the second ones; without padding. As all ranks have been
given equally many batches, what they have been given is the beginning of S. So one number says what
is left: S[given:]. Rank r of any number of ranks goes on with every world-th entry of that, from
the r-th on. What these ranks are given is the beginning of the rest in turn, so the number of ranks
may change again within the epoch.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..contract._types import IntArray
from .options import OrderOptions
from .sequence import Order
from .shards import rounds
from .streams import Lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left of an epoch, and where it is in the streams of the ranks that go on.

    It takes the last positions of the epoch, so that later epochs are where they always are.

    Attributes:
        size: samples of an epoch.
        began: the order of the ranks that began the epoch; any shard_id.
        epoch: the epoch.
        given: how many of its samples were given, at least one less than all.
        world: how many ranks go on.
        batch_size: theirs.
    """

    size: int
    began: OrderOptions
    epoch: int
    given: int
    world: int
    batch_size: int

    @property
    def rounds(self) -> int:
        """How many batches each rank is given of a whole epoch."""
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
        """Where the ranks go on in the order that they have anyway, if they can; else None."""
        batches, odd = divmod(self.given, self.world * self.batch_size)
        if odd or (batches and self.began.num_shards != self.world):
            return None
        return self.epoch * self.rounds + batches

    def shares(self) -> IntArray:
        """int64[world], how many of the samples each rank is given."""
        return (self.size - self.given - np.arange(self.world) + self.world - 1) // self.world

    def given_at(self, position: int) -> int:
        """How many samples of the epoch were given before the batch at a position."""
        batches = position - self.start
        return min(self.given + batches * self.batch_size * self.world, self.size)

    def entries(self, rank: int, containers: IntArray | None) -> IntArray:
        """The entries of all batches of a rank, padded: int64[(stop - start) * batch_size]."""
        first = max(0, self.given - self.world)
        known = interleaved(self.size, self.began, containers, self.epoch, first)
        at = self.given - first + rank
        entries = known[at :: self.world]
        # Without a sample of its own, a rank repeats what it was given last, if it was there.
        last = entries[-1] if len(entries) else known[at - self.world if at >= self.world else -1]
        padded = np.full((self.stop - self.start) * self.batch_size, last)
        padded[: len(entries)] = entries
        return padded


class RestOrder(Order):
    """The order of a rank that goes on with the rest of an epoch, and then with whole ones."""

    def __init__(
        self,
        size: int,
        batch_size: int,
        options: OrderOptions,
        containers: IntArray | None,
        rest: Rest,
    ) -> None:
        """`rest` is for as many ranks, of this batch size; see Order for the others."""
        super().__init__(size, batch_size, options, containers)
        self._rest, self._rank, self._containers = rest, options.shard_id, containers

    def batch(self, index: int) -> IntArray:
        """See Order.

        Raises:
            ValueError: the batch would be of the part of the epoch that was given before.
        """
        rest = self._rest
        if index >= rest.stop or index < rest.stop - rest.rounds:
            return super().batch(index)
        if index < rest.start:
            raise ValueError(
                f"batch {index} is of epoch {rest.epoch}, of which {rest.given} samples were given "
                f"before it was resumed; its rest begins at batch {rest.start}"
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

    It costs the epoch's shuffles of all ranks, but shuffles the list that they share only once.
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
