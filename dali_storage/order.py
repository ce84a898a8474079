"""In which order the samples come: for ever, in full batches, as `fn.readers.file` of DALI 2.4.

The entries of the list form one endless stream, of which every batch is a piece. An epoch covers
one shard; the next epoch covers the next shard, or the same one again with `stick_to_shard`. Where
an epoch starts in the stream is arithmetic, and so is which entry of the list is at a position.
With `pad_last_batch` every epoch starts a batch, and all of them take equally many.

Nothing here does I/O or knows DALI.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .reader import IntArray
from .streams import Shards, make_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """The arguments of `fn.readers.file` that decide the order; names and defaults are DALI's.

    Attributes:
        random_shuffle: shuffle the list once, always the same way, and draw from a window of it.
        initial_fill: entries in that window, at least 1; of no effect without random_shuffle.
        seed: of the draws. Only its low 32 bits matter; -1 is a seed like any other.
        shuffle_after_epoch: shuffle the list anew before each epoch; implies stick_to_shard.
        shuffle_after_epoch_seed: of those shuffles; None is 524287.
        num_shards: how many parts the list is cut into.
        shard_id: the part to begin with, from 0 to num_shards - 1.
        stick_to_shard: stay with this part; otherwise each epoch goes on to the next one.
        pad_last_batch: repeat the last sample of an epoch up to the end of its last batch, and up
            to as many batches as the largest shard has; otherwise an epoch may start in a batch.
        checkpointing: the pipeline's enable_checkpointing. DALI then applies every
            shuffle_after_epoch to the original list; otherwise to the outcome of the last one.

    Raises:
        ValueError, TypeError: an option that DALI refuses or dies of, by its name and value.
    """

    random_shuffle: bool = False
    initial_fill: int = 1024
    seed: int = -1
    shuffle_after_epoch: bool = False
    shuffle_after_epoch_seed: int | None = None
    num_shards: int = 1
    shard_id: int = 0
    stick_to_shard: bool = False
    pad_last_batch: bool = False
    checkpointing: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = _checked(field.name, getattr(self, field.name), field.default)
            object.__setattr__(self, field.name, value)
        if self.random_shuffle and self.initial_fill < 1:
            raise ValueError(f"initial_fill={self.initial_fill}: random_shuffle needs at least 1")
        if self.num_shards < 1:
            raise ValueError(f"num_shards={self.num_shards}: must be at least 1")
        if not 0 <= self.shard_id < self.num_shards:
            raise ValueError(f"shard_id={self.shard_id}: must be from 0 to {self.num_shards - 1}")
        if self.shuffle_after_epoch and (self.random_shuffle or self.stick_to_shard):
            other = "random_shuffle" if self.random_shuffle else "stick_to_shard"
            raise ValueError(f"shuffle_after_epoch=True: excludes {other}=True")


def _checked(name: str, value: Any, default: Any) -> bool | int | None:
    """An option as the type of its default. As in DALI, None is the default, and 1 is True."""
    if value is None:
        return default  # type: ignore[no-any-return]
    try:
        whole = isinstance(value, float) and value.is_integer()
        number = int(value) if whole or isinstance(value, np.bool_) else operator.index(value)
    except TypeError:
        kind = "True or False" if isinstance(default, bool) else "an integer"
        raise TypeError(f"{name} must be {kind}, not {value!r}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name}={number}: has more than 64 bits")
    return bool(number) if isinstance(default, bool) else number


class Order:
    """The endless sequence of batches of catalog indices. Not thread-safe.

    Consecutive batches are cheap. Any other batch can be had too: at once without shuffling. With
    random_shuffle the random engine is wound on, some nanoseconds a sample, and the epoch shuffled
    up to there. With shuffle_after_epoch the shuffles of all epochs between are made, and going
    back begins at the first one; with checkpointing, only the one shuffle.

    Memory is O(size) where the list is shuffled, and O(initial_fill) for the window, but never more
    than the size of a shard.

    Args:
        size: number of entries of the catalog.
        batch_size: samples in a batch.
        options: what decides the order.

    Raises:
        ValueError: batch_size is below 1, or there are more shards than entries.
    """

    def __init__(self, size: int, batch_size: int, options: OrderOptions) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: must be at least 1")
        self._batch_size = batch_size
        self._padded = options.pad_last_batch
        self._shards = Shards(size, options)
        self._stream = make_stream(self._shards, options)
        self._chunk_start, self._chunk = 0, np.empty(0, np.int64)

    def batch(self, index: int) -> IntArray:
        """The batch number `index`, counted from 0; the count runs on over the epochs.

        Returns:
            int64[batch_size], catalog indices, owned by the caller.

        Raises:
            ValueError: index is negative.
        """
        if index < 0:
            raise ValueError(f"index={index}: batches are numbered from 0")
        if self._padded:
            return self._padded_batch(index)
        return self._entries(index * self._batch_size, (index + 1) * self._batch_size)

    def _padded_batch(self, index: int) -> IntArray:
        epoch, batch = divmod(index, -(-self._shards.largest // self._batch_size))
        end = self._shards.epoch_start(epoch + 1)
        start = self._shards.epoch_start(epoch) + batch * self._batch_size
        # A shard that is one sample short may have a last batch of nothing but padding.
        entries = self._entries(min(start, end - 1), min(start + self._batch_size, end))
        padding = np.full(self._batch_size - len(entries), entries[-1])
        return np.concatenate([entries, padding])

    def _entries(self, start: int, stop: int) -> IntArray:
        """A copy of the positions start to stop - 1 of the stream."""
        pieces = []
        while start < stop:
            if not 0 <= start - self._chunk_start < len(self._chunk):
                self._chunk_start, self._chunk = self._stream.chunk(start)
            first = start - self._chunk_start
            pieces.append(self._chunk[first : first + stop - start])
            start += len(pieces[-1])
        return np.concatenate(pieces)


def reader_meta(size: int, options: OrderOptions) -> dict[str, int]:
    """What DALI's `pipe.reader_meta(name)` tells about a reader of `size` entries.

    Raises:
        ValueError: there are more shards than entries.
    """
    shards = Shards(size, options)
    return {
        "epoch_size": size,
        "epoch_size_padded": shards.largest * options.num_shards
        if options.pad_last_batch
        else size,
        "number_of_shards": options.num_shards,
        "shard_id": options.shard_id,
        "pad_last_batch": int(options.pad_last_batch),
        "stick_to_shard": int(shards.sticks),
    }
