"""Epochs of a pipeline, for any training loop."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from .shard import Shard
from .stats import LoaderStats


class Loader:
    """The batches of one pipeline: every `iter()` is a new epoch, whatever was left of the last."""

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        reader_name: str = "Reader",
        last_batch: Literal["partial", "drop", "pad"] = "partial",
        to: Literal["torch", "jax", "numpy"] | Callable[[Any], Any] = "torch",
        shard: Shard | None = None,
        classes: Callable[[], tuple[str, ...]] | None = None,
    ) -> None:
        """`make(checkpoint=None, shard_id=rank, num_shards=world)` builds the pipeline."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` is this epoch."""

    def state_dict(self) -> dict[str, Any]:
        """Where the epochs are."""
        raise NotImplementedError

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict()` was called."""

    def close(self) -> None:
        """Close the pipeline."""

    @property
    def stats(self) -> LoaderStats:
        """Of the epoch under way, or else of the last one."""
        raise NotImplementedError
