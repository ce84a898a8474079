"""Division of a stream of batches into epochs: pure arithmetic, without a pipeline."""

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from .options import OrderOptions
from .ordering import Remainder
from .shards import Shards, rounds

LastBatch: TypeAlias = Literal["partial", "drop", "pad"]

LAST_BATCH: tuple[LastBatch, ...] = get_args(LastBatch)


class Epochs:
    """The epochs in the endless stream of batches of a reader that pads.

    Every epoch has `rounds` positions in the stream, on every rank: as many as the largest shard
    has batches. Positions left out by `last_batch` are skipped. All epochs give at least one batch,
    and no batch is empty, except a batch of padding on some rank with "pad".

    Attributes:
        rounds: positions of an epoch.
        rest: the rest of an epoch that another number of ranks began, or None; at the last
            positions of the epoch.
    """

    def __init__(
        self,
        meta: Mapping[str, int],
        batch_size: int,
        last_batch: LastBatch,
        rest: Remainder | None = None,
    ) -> None:
        """Make the epochs of a reader with the metadata `meta` (`pipe.reader_meta(name)`).

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
                f"samples does not fill a batch of {batch_size}; use smaller batches, or "
                "last_batch='partial' or 'pad'"
            )

    def batches(self, epoch: int) -> int:
        """Number of batches in an epoch, including any before its rest."""
        if self._last_batch == "drop":
            return self._full(epoch)
        if self._last_batch == "pad":
            return self.rounds
        return self._first(epoch) - (-self._shard_size(epoch) // self._batch_size)

    def valid(self, epoch: int, batch: int) -> int:
        """Number of samples without padding in a batch, counted from 0."""
        if batch < self._full(epoch):
            return self._batch_size
        left = self._shard_size(epoch) - (batch - self._first(epoch)) * self._batch_size
        return max(0, min(left, self._batch_size))

    def reaches(self, epoch: int, batch: int) -> bool:
        """Return whether a batch can be given; batches before the rest of an epoch cannot."""
        return self.rest is None or self.position(epoch, batch) >= self.rest.start

    def position(self, epoch: int, batch: int) -> int:
        """The position of a batch in the stream."""
        return epoch * self.rounds + batch

    def successor(self, position: int) -> int:
        """The position of the next batch, after skipped ones."""
        following = position + 1
        epoch, batch = divmod(following, self.rounds)
        if batch < self._full(epoch) or batch < self.batches(epoch):
            return following
        return self.position(epoch + 1, 0)

    def after(self, position: int, batches: int) -> int:
        """The largest position of any rank after so many batches from a position on.

        The result is the same on all ranks, some of which may have one batch less per epoch.
        """
        for steps in range(batches + 1):
            position += min(steps, 1)
            epoch, batch = divmod(position, self.rounds)
            if batch >= self._least(epoch):
                position = self.position(epoch + 1, 0)
        return position

    def _least(self, epoch: int) -> int:
        """Number of batches in an epoch on the rank with the fewest."""
        if self._last_batch != "partial":
            return self.batches(epoch)
        rest = self._rest_of(epoch)
        smallest = self._smallest if rest is None else int(rest.shares().min())
        return self._first(epoch) - (-smallest // self._batch_size)

    def _rest_of(self, epoch: int) -> Remainder | None:
        return self.rest if self.rest and self.rest.epoch == epoch else None

    def _first(self, epoch: int) -> int:
        """The first batch for these ranks."""
        rest = self._rest_of(epoch)
        return self.rounds - (rest.stop - rest.start) if rest else 0

    def _full(self, epoch: int) -> int:
        """The first batch with padding on some rank."""
        rest = self._rest_of(epoch)
        if rest is None:
            return self._everywhere
        return self._first(epoch) + int(rest.shares().min()) // self._batch_size

    def _shard_size(self, epoch: int) -> int:
        if rest := self._rest_of(epoch):
            return int(rest.shares()[self._rank])
        return self._shards.epoch_start(epoch + 1) - self._shards.epoch_start(epoch)
