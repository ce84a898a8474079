"""The slot for the order of a reader's samples, with DALI's order in it."""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from .options import OrderOptions
from .sequence import Batches, Order, reader_meta


class Remainder(Protocol):
    """The part of an epoch that other ranks have left, see `order.resuming.resume.Rest`."""

    @property
    def epoch(self) -> int:
        """The epoch."""

    @property
    def given(self) -> int:
        """The number of its samples that were delivered before."""

    @property
    def start(self) -> int:
        """The index of its first batch."""

    @property
    def stop(self) -> int:
        """The index of the first batch of the next epoch."""

    def shares(self) -> IntArray:
        """Return the number of samples of each rank: int64[world]."""

    def order(
        self, size: int, batch_size: int, options: OrderOptions, containers: IntArray | None
    ) -> Batches:
        """Make the order of one rank: the rest, followed by whole epochs."""


class Ordering:
    """The order of a reader's samples: DALI's. `order.sampling` has others.

    Attributes:
        dealt: True if a stream of samples is dealt out to the ranks; such a stream has an epoch of
            its own size, and may change.
    """

    dealt: ClassVar[bool] = False

    def __init__(self, catalog: Catalog, options: OrderOptions) -> None:
        """Raise ValueError if there are more shards than samples."""
        self._catalog = catalog
        reader_meta(self.epoch_size, options)

    @property
    def epoch_size(self) -> int:
        """The number of samples in an epoch of all ranks."""
        return self._catalog.delivered

    def make(
        self, options: OrderOptions, batch_size: int, rest: Remainder | None = None
    ) -> Batches:
        """Make the batches of one rank, which are not thread-safe; after `rest`, whole epochs."""
        settings = self._catalog.delivered, batch_size, options, self._catalog.containers
        return Order(*settings) if rest is None else rest.order(*settings)

    @property
    def changes(self) -> list[Any]:
        """The changes while running, for `replay()`. DALI's order has none."""
        return []

    @property
    def sources(self) -> Sequence[Any]:
        """The names of the sources of a mixture; [None]: there is one source."""
        return [None]

    def members(self, sample: int) -> IntArray | range:
        """Return the possible replacements of a bad sample, ascending."""
        return range(self._catalog.delivered)

    def sources_of(self, samples: IntArray) -> NDArray[np.int32]:
        """Return the number of the source of each sample: int32[n]."""
        return np.zeros(len(samples), np.int32)

    def described(self, epoch: int) -> dict[str, Any]:
        """Return the entries of an epoch in a saved position, beside those of DALI's order."""
        return {}

    def replay(self, changes: list[Any]) -> None:
        """Make the changes of a saved position again."""
