"""Which batches make an epoch: pure arithmetic, without a pipeline."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from ...order import OrderOptions
from ...order.resume import Rest
from ...order.shards import Shards, rounds

LastBatch: TypeAlias = Literal["partial", "drop", "pad"]

LAST_BATCH: tuple[LastBatch, ...] = get_args(LastBatch)


class Epochs:
    """The epochs in the endless stream of batches of a reader that pads.

    Every epoch has `rounds` positions in the stream, on every rank: as many as the largest shard
    has batches. What `last_batch` leaves out of them is skipped. All epochs give at least one
    batch, and no batch is empty, except that with "pad" a rank may have one of padding only.

    Attributes:
        rounds: positions of an epoch.
        rest: the rest of an epoch that another number of ranks has begun, or None. It takes the
            last positions of the epoch.
    """

    def __init__(
        self,
        meta: Mapping[str, int],
        batch_size: int,
        last_batch: LastBatch,
        rest: Rest | None = None,
    ) -> None:
        """For a reader with the metadata `meta` (`pipe.reader_meta(name)`).

        Raises:
            ValueError: "drop" would leave out all batches.
        """
        options = OrderOptions(
            num_shards=meta["number_of_shards"],
            shard_id=meta["shard_id"],
            stick_to_shard=bool(meta["stick_to_shard"]),
        )
        self._shards = Shards(meta["epoch_size"], options)
        self._batch_size = batch_size
        self._last_batch = last_batch
        self._rank = options.shard_id
        self.rest = rest
        self.rounds = rounds(meta["epoch_size"], options.num_shards, batch_size)
        self._smallest = smallest = meta["epoch_size"] // options.num_shards
        self._everywhere = smallest // batch_size  # full batches that every rank has
        if last_batch == "drop" and not self._everywhere:
            raise ValueError(
                f"last_batch='drop': an epoch would have no batch, because a shard of {smallest} "
                f"samples does not fill one of {batch_size}; make the batches smaller, or take "
                "last_batch='partial' or 'pad'"
            )

    def batches(self, epoch: int) -> int:
        """How many batches an epoch gives; those before its rest count as given."""
        if self._last_batch == "drop":
            return self._full(epoch)
        if self._last_batch == "pad":
            return self.rounds
        return self._first(epoch) - (-self._shard_size(epoch) // self._batch_size)

    def valid(self, epoch: int, batch: int) -> int:
        """How many samples of a batch, counted from 0, are not padding."""
        if batch < self._full(epoch):
            return self._batch_size
        left = self._shard_size(epoch) - (batch - self._first(epoch)) * self._batch_size
        return max(0, min(left, self._batch_size))

    def reaches(self, epoch: int, batch: int) -> bool:
        """Whether a batch can be given: what comes before the rest of an epoch cannot."""
        return self.rest is None or self.position(epoch, batch) >= self.rest.start

    def position(self, epoch: int, batch: int) -> int:
        """Where a batch is in the stream."""
        return epoch * self.rounds + batch

    def successor(self, position: int) -> int:
        """The position of the next batch that is given."""
        following = position + 1
        epoch, batch = divmod(following, self.rounds)
        if batch < self._full(epoch) or batch < self.batches(epoch):
            return following
        return self.position(epoch + 1, 0)

    def after(self, position: int, batches: int) -> int:
        """Where a rank may be at most that is given so many batches from a position on.

        The same on all ranks, of which some may have a batch less of an epoch than others.
        """
        for steps in range(batches + 1):
            position += min(steps, 1)
            epoch, batch = divmod(position, self.rounds)
            if batch >= self._least(epoch):
                position = self.position(epoch + 1, 0)
        return position

    def _least(self, epoch: int) -> int:
        """How many batches an epoch has on a rank that has the fewest."""
        if self._last_batch != "partial":
            return self.batches(epoch)
        rest = self._rest_of(epoch)
        smallest = self._smallest if rest is None else int(rest.shares().min())
        return self._first(epoch) - (-smallest // self._batch_size)

    def _rest_of(self, epoch: int) -> Rest | None:
        return self.rest if self.rest and self.rest.epoch == epoch else None

    def _first(self, epoch: int) -> int:
        """The first batch that these ranks are given."""
        rest = self._rest_of(epoch)
        return self.rounds - (rest.stop - rest.start) if rest else 0

    def _full(self, epoch: int) -> int:
        """The first batch that is not full on every rank."""
        rest = self._rest_of(epoch)
        if rest is None:
            return self._everywhere
        return self._first(epoch) + int(rest.shares().min()) // self._batch_size

    def _shard_size(self, epoch: int) -> int:
        if rest := self._rest_of(epoch):
            return int(rest.shares()[self._rank])
        return self._shards.epoch_start(epoch + 1) - self._shards.epoch_start(epoch)
