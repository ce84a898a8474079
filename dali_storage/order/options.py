"""The arguments of `fn.readers.file` that decide the order."""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np


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
