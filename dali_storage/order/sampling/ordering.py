"""Streams of samples in the slot for the order of a reader."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ..options import OrderOptions
from ..ordering import Ordering, Remainder
from .dealing import StreamOrder, require_share
from .stream import MixedStream, SampleStream


class StreamOrdering(Ordering):
    """A stream of samples that is dealt out to the ranks."""

    dealt = True

    def __init__(
        self, stream: Callable[[Catalog], SampleStream], catalog: Catalog, options: OrderOptions
    ) -> None:
        """Make the stream of a catalog.

        Raises:
            ValueError: an epoch has fewer samples than there are ranks; or as `stream`.
        """
        self._catalog, self._stream = catalog, stream(catalog)
        require_share(self._stream, options)

    @property
    def epoch_size(self) -> int:
        """See `Ordering`."""
        return self._stream.epoch_size

    def make(
        self, options: OrderOptions, batch_size: int, rest: Remainder | None = None
    ) -> StreamOrder:
        """See `Ordering`."""
        return StreamOrder(self._stream, batch_size, options, rest)

    @property
    def changes(self) -> list[Any]:
        """See `Ordering`: the weights that were set."""
        return self._stream.changes

    @property
    def mixture(self) -> MixedStream | None:
        """The stream, if several sources are mixed in it."""
        mixed = isinstance(self._stream, MixedStream) and len(self._stream.names) > 1
        return self._stream if mixed else None  # type: ignore[return-value]

    @property
    def sources(self) -> Sequence[Any]:
        """See `Ordering`."""
        return super().sources if (mixture := self.mixture) is None else mixture.names

    def sources_of(self, samples: IntArray) -> NDArray[np.int32]:
        """See `Ordering`."""
        mixture = self.mixture
        return super().sources_of(samples) if mixture is None else mixture.sources_of(samples)

    def members(self, sample: int) -> IntArray | range:
        """Return the possible replacements of a bad sample: its source or class, ascending.

        For a single source: the samples of the first epoch, without samples excluded by a weight of
        0 or by the user's order.
        """
        return self._group_of(sample)

    @cached_property
    def _group_of(self) -> Callable[[int], IntArray]:
        stream = self._stream
        if (mixture := self.mixture) is not None:
            numbers = mixture.sources_of(np.arange(self._catalog.delivered))
            group = cache(lambda number: np.flatnonzero(numbers == number))
            return lambda sample: group(int(numbers[sample]))
        given = np.unique(stream.entries(np.arange(stream.epoch_size)))
        return lambda sample: given

    def described(self, epoch: int) -> dict[str, Any]:
        """See `Ordering`."""
        return {"stream": self._stream.describe(epoch), "changes": self.changes}

    def replay(self, changes: list[Any]) -> None:
        """See `Ordering`; the changes are those of the weights.

        Raises:
            ValueError: they are damaged.
        """
        self._stream = self._stream.changed(changes)

    def change(self, weights: Mapping[Any, Any], at: int) -> None:
        """Mix the sources by other weights, from a position of the stream on.

        Raises:
            ValueError, TypeError: the weights are wrong.
        """
        assert isinstance(self._stream, MixedStream)
        self._stream = self._stream.with_weights(weights, at)
