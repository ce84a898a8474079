"""Division of a stream of samples among ranks, in batches and epochs.

A global batch is `world * batch_size` consecutive positions, and each rank gets a run of them. The
ranks rotate by a hash of the batch's first position; otherwise a source with one sample per batch
would always be on one rank. In the last, shorter batch of an epoch with n samples left, rank r gets
the positions n r // world to n (r + 1) // world - 1, the shares of DALI's iterators
(nvidia/dali/plugin/base_iterator.py). After equally many batches, all ranks together have received
the beginning of the epoch, so any number of ranks can go on.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np

from ...contract._types import IntArray
from ..options import OrderOptions
from ..ordering import Remainder
from ..permutation import hashed
from ..shards import rounds
from .stream import SampleStream

_BATCHES, _SAMPLES = 128, 8192  # most to compute at once: a single batch costs 0.3 ms


class StreamOrder:
    """The batches of one rank. Not thread-safe. Consecutive batches are cheap."""

    def __init__(
        self,
        stream: SampleStream,
        batch_size: int,
        options: OrderOptions,
        rest: Remainder | None = None,
    ) -> None:
        """Make the order of one rank; only shard and padding of the options matter.

        `rest` is computed for this number of ranks.

        Raises:
            ValueError: batch_size is below 1, or an epoch has fewer samples than there are ranks.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        require_share(stream, options)
        self._stream, self._batch_size, self._options, self._rest = (
            stream,
            batch_size,
            options,
            rest,
        )
        self._rank, self._world = options.shard_id, options.num_shards
        self._wide = batch_size * self._world
        self._rounds = rounds(stream.epoch_size, self._world, batch_size)
        self._at_once = max(1, min(_BATCHES, _SAMPLES // batch_size))
        self._first = 0
        self._chunk = np.empty((0, batch_size), np.int64)

    def __deepcopy__(self, memo: object) -> Self:
        """Return another order of the same stream, which is shared because of its size."""
        return type(self)(self._stream, self._batch_size, self._options, self._rest)

    def batch(self, index: int) -> IntArray:
        """Batch `index`, counted from 0 across epochs: int64[batch_size], owned by the caller.

        Raises:
            ValueError: the index is negative, or in the delivered part of a resumed epoch.
        """
        if not 0 <= index - self._first < len(self._chunk):
            self._first, self._chunk = index, self._batches(index)
        batch: IntArray = self._chunk[index - self._first].copy()
        return batch

    def start(self, index: int) -> int:
        """The first position of a global batch."""
        if index < 0:
            raise ValueError(f"index must be at least 0, not {index}")
        if not self._options.pad_last_batch:
            return index * self._wide
        epoch, batch = divmod(index, self._rounds)
        given, rest = 0, self._rest
        if rest is not None and rest.epoch == epoch:
            if index < rest.start:
                raise ValueError(
                    f"batch {index} is in the delivered part of epoch {epoch}, which was resumed "
                    f"after {rest.given} samples; the rest begins at batch {rest.start}"
                )
            given, batch = rest.given, index - rest.start
        return epoch * self._stream.epoch_size + given + batch * self._wide

    def turns(self, indices: Sequence[int]) -> tuple[list[int], IntArray, IntArray]:
        """The numbers of samples in n batches, without padding, and the turns of the samples.

        Turns are as in `SampleStream.turns_at()`. The indices ascend.
        """
        parts = [np.arange(*self._run(index)) for index in indices]
        return [it.size for it in parts], *self._stream.turns_at(np.concatenate(parts))

    def _left(self, first: int) -> int:
        """The positions from the start of a global batch on, up to the end of its epoch."""
        size = self._stream.epoch_size
        return size - first % size if self._options.pad_last_batch else self._wide

    def _run(self, index: int) -> tuple[int, int]:
        """The positions of this rank in a global batch, from the first up to the other."""
        first = self.start(index)
        if (left := self._left(first)) < self._wide:
            start, stop = (left * (self._rank + more) // self._world for more in (0, 1))
            return first + start, first + stop
        turn = (self._rank + hashed(self._stream.seed, first)) % self._world
        return first + turn * self._batch_size, first + (turn + 1) * self._batch_size

    def _batches(self, index: int) -> IntArray:
        """The batches from an index on: int64[n, batch_size], up to the end of its epoch."""
        full = self._at_once
        if self._options.pad_last_batch:
            full = min(full, self._left(self.start(index)) // self._wide)
        if full == 0:
            start, stop = self._run(index)
            # A rank without a sample repeats the previous sample.
            entries = self._stream.entries(np.arange(min(start, stop - 1), stop))
            padding = np.full(self._batch_size - entries.size, entries[-1])
            return np.concatenate([entries, padding])[None]
        parts = [np.arange(*self._run(index + number)) for number in range(full)]
        return self._stream.entries(np.concatenate(parts)).reshape(-1, self._batch_size)


def require_share(stream: SampleStream, options: OrderOptions) -> None:
    """Refuse more ranks than an epoch has samples."""
    if stream.epoch_size < options.num_shards:
        raise ValueError(
            f"epoch_size must be at least num_shards, {options.num_shards}, not {stream.epoch_size}"
        )
