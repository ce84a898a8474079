"""The endless sequence of full batches that `fn.readers.file` delivers.

The entries of the list form one endless stream, cut into batches. An epoch covers one shard; the
next epoch covers the next shard or, with `stick_to_shard`, the same shard again. Arithmetic gives
the start of an epoch in the stream, and the entry at a position. With `pad_last_batch` every epoch
starts with a new batch, and all have the same number of batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ..contract._types import IntArray
from .options import OrderOptions
from .shards import Indices, Shards, Stream, rounds

if TYPE_CHECKING:
    from .streams import Lists


class Batches(Protocol):
    """The endless sequence of batches of one rank."""

    def batch(self, index: int) -> IntArray:
        """Batch `index`, counted from 0 across epochs: int64[batch_size], owned by the caller."""


class Order:
    """The endless sequence of batches of indices of delivered samples. Not thread-safe.

    Consecutive batches are cheap. A jump is free without shuffling. With random_shuffle a jump
    costs some nanoseconds per skipped sample, and the shuffle of the epoch up to the batch. With
    shuffle_after_epoch the cost is the shuffles of all epochs in between, and a jump back starts
    from the first epoch; with checkpointing, one shuffle; with containers, one shuffle of these.

    Memory is O(size) if the list is shuffled, O(containers) if containers are shuffled, and
    O(initial_fill) for the window, which is never larger than a shard.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        options: OrderOptions,
        containers: IntArray | None = None,
        lists: Lists | None = None,
    ) -> None:
        """Make the order of a list of `size` entries.

        `containers`, int64[k], has the number of entries of each container, and is needed and used
        with `by_container`. `lists` saves time for several shards of one order.

        Raises:
            ValueError: batch_size is below 1, there are more shards than entries, or the containers
                are missing or do not have `size` entries.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        self._batch_size = batch_size
        self._padded = options.pad_last_batch
        self._shards = Shards(size, options)
        self._rounds = rounds(size, options.num_shards, batch_size)
        self._stream: Stream = self._shards
        if options.random_shuffle or options.shuffle_after_epoch:
            from .streams import make_stream

            self._stream = make_stream(self._shards, options, containers, lists)
        self._chunk_start = 0
        self._chunk: Indices = np.empty(0, np.int64)

    def batch(self, index: int) -> IntArray:
        """Batch `index`, counted from 0 across epochs: int64[batch_size], owned by the caller."""
        if index < 0:
            raise ValueError(f"index must be at least 0, not {index}")
        if self._padded:
            return self._padded_batch(index)
        return self._entries(index * self._batch_size, (index + 1) * self._batch_size)

    def epoch(self, epoch: int) -> IntArray:
        """The entries of an epoch, without padding: int64[n], owned by the caller."""
        return self._entries(self._shards.epoch_start(epoch), self._shards.epoch_start(epoch + 1))

    def _padded_batch(self, index: int) -> IntArray:
        epoch, batch = divmod(index, self._rounds)
        end = self._shards.epoch_start(epoch + 1)
        start = self._shards.epoch_start(epoch) + batch * self._batch_size
        # The last batch of a shard that is one sample short may be all padding.
        entries = self._entries(min(start, end - 1), min(start + self._batch_size, end))
        padding = np.full(self._batch_size - len(entries), entries[-1])
        return np.concatenate([entries, padding])

    def _entries(self, start: int, stop: int) -> IntArray:
        """A copy of the stream from position start to stop - 1."""
        pieces = []
        while start < stop:
            if not 0 <= start - self._chunk_start < len(self._chunk):
                self._chunk_start, self._chunk = self._stream.chunk(start)
            first = start - self._chunk_start
            pieces.append(self._chunk[first : first + stop - start])
            start += len(pieces[-1])
        return np.concatenate(pieces, dtype=np.int64)


def reader_meta(size: int, options: OrderOptions) -> dict[str, int]:
    """The answer of DALI's `pipe.reader_meta(name)` for a reader of `size` entries.

    Raises:
        ValueError: there are more shards than entries.
    """
    shards = Shards(size, options)
    padded = shards.largest * options.num_shards
    return {
        "epoch_size": size,
        "epoch_size_padded": padded if options.pad_last_batch else size,
        "number_of_shards": options.num_shards,
        "shard_id": options.shard_id,
        "pad_last_batch": int(options.pad_last_batch),
        "stick_to_shard": int(shards.sticks),
    }
