"""The arguments of `fn.readers.file` that determine the order."""

from dataclasses import dataclass, fields
from typing import Any

from ..contract.options import dali_flag, dali_integer

_BITS = {"seed": 64, "shuffle_after_epoch_seed": 64}  # of DALI's types; all others are int32


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """The arguments of `fn.readers.file` that determine the order; `readers.file` describes them.

    Attributes:
        seed: only the low 32 bits matter; -1 is a seed like any other.
        shuffle_after_epoch_seed: None is 524287.
        checkpointing: the pipeline's enable_checkpointing. DALI then shuffles the original list
            after every epoch; otherwise the result of the last shuffle.
        shuffle_bits: 64, or 32 as in DALI before 2.2: the random engine of shuffle_after_epoch. Not
            an argument of DALI's.
        by_container: the order of DALI's readers of containers: random_shuffle does not shuffle the
            list; shuffle_after_epoch shuffles the containers, always from their original order, and
            goes with random_shuffle. Not an argument of DALI's.

    Raises:
        ValueError, TypeError: DALI would refuse or misread the named value, or crash.
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
    shuffle_bits: int = 64
    by_container: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = _converted(field.name, getattr(self, field.name), field.default)
            object.__setattr__(self, field.name, value)
        if self.random_shuffle and self.initial_fill < 1:
            least = "at least 1 with random_shuffle"
            raise ValueError(f"initial_fill must be {least}, not {self.initial_fill}")
        if self.num_shards < 1:
            raise ValueError(f"num_shards must be at least 1, not {self.num_shards}")
        if not 0 <= self.shard_id < self.num_shards:
            last = self.num_shards - 1
            raise ValueError(f"shard_id must be from 0 to {last}, not {self.shard_id}")
        excluded = ["stick_to_shard"] if self.by_container else ["random_shuffle", "stick_to_shard"]
        for other in excluded if self.shuffle_after_epoch else ():
            if getattr(self, other):
                raise ValueError(f"shuffle_after_epoch and {other} cannot both be True")


def _converted(name: str, value: Any, default: Any) -> bool | int | None:
    if value is None:
        return default  # type: ignore[no-any-return]
    if isinstance(default, bool):
        return dali_flag(name, value)
    return dali_integer(name, value, bits=_BITS.get(name, 32))
