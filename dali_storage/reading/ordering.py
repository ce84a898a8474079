"""The order of a reader's samples: DALI's, or a stream dealt out to the ranks."""

from collections.abc import Callable, Mapping
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..order import Order, OrderOptions
from ..order.dealing import StreamOrder
from ..order.resume import Rest, RestOrder
from ..order.sampling.stream import MixedStream, SampleStream
from ..order.sequence import Batches
from ..order.state import SavedPositions


class Ordering:
    """Makes the order of a reader, and saves and restores positions in the order.

    Attributes:
        saved: saves and reads positions.
    """

    def __init__(
        self,
        reader: str,
        catalog: Catalog,
        stream: SampleStream | None,
        options: OrderOptions,
        batch_size: int,
        shared_seed: bool,
    ) -> None:
        """`reader` begins the messages; `stream`: None for the order of DALI.

        `shared_seed`: all ranks have the seed of the options.
        """
        self._reader, self._catalog, self._stream = reader, catalog, stream
        self._options, self._batch_size, self._shared_seed = options, batch_size, shared_seed
        self.saved = self._saves()

    def make(self, rest: Rest | None) -> Batches:
        """Make the order, which is not thread-safe. `rest`: the part of an epoch left by others."""
        if self._stream is not None:
            return self.dealt(rest)
        catalog = self._catalog
        order = catalog.delivered, self._batch_size, self._options, catalog.containers
        return Order(*order) if rest is None else RestOrder(*order, rest)

    def dealt(self, rest: Rest | None) -> StreamOrder:
        """Make the order of a stream, by default of the mixture; `rest` as in `make()`."""
        stream = self.mixture if self._stream is None else self._stream
        return StreamOrder(stream, self._batch_size, self._options, rest)

    @property
    def mixture(self) -> MixedStream:
        """The mixed stream of the samples.

        Raises:
            ValueError: the reader has DALI's or the user's order, or a single source.
        """
        if not isinstance(self._stream, MixedStream) or len(self._stream.names) < 2:
            raise ValueError(
                f"{self._reader} has no weights of sources or labels; create the reader by "
                "readers.mix(), or with weights= of labels"
            )
        return self._stream

    def sources_of(self, samples: IntArray) -> NDArray[np.int32]:
        """Return the number of the source of each sample of a mixture: int32[n]."""
        assert isinstance(self._stream, MixedStream)
        return self._stream.sources_of(samples)

    def members(self, sample: int) -> IntArray | range:
        """Return the possible replacements of a bad sample: its source or class, ascending.

        For a single source: the samples of the first epoch, without samples excluded by a weight of
        0 or by the user's order.
        """
        return range(self._catalog.delivered) if self._stream is None else self._group_of(sample)

    @cached_property
    def _group_of(self) -> Callable[[int], IntArray]:
        stream = self._stream
        assert stream is not None
        if isinstance(stream, MixedStream) and len(stream.names) > 1:
            numbers = stream.sources_of(np.arange(self._catalog.delivered))
            group = cache(lambda number: np.flatnonzero(numbers == number))
            return lambda sample: group(int(numbers[sample]))
        given = np.unique(stream.entries(np.arange(stream.epoch_size)))
        return lambda sample: given

    def set_weights(self, weights: Mapping[Any, Any], at: int) -> None:
        """Change the weights of the mixture from a position of the stream on.

        Raises:
            ValueError, TypeError: the weights are wrong, or there is no mixture.
        """
        self._stream = self.mixture.with_weights(weights, at)
        self.saved = self._saves()

    @property
    def changes(self) -> list[Any]:
        """The weights that were set while running."""
        return [] if self._stream is None else self._stream.changes

    def replay(self, changes: list[Any]) -> None:
        """Set the weights of a state.

        Raises:
            ValueError: they are damaged.
        """
        if self._stream is None:
            return
        try:
            self._stream = self._stream.changed(changes)
        except ValueError as error:
            raise ValueError(f"{self._reader}: the state is damaged: {error}") from None
        self.saved = self._saves()

    def _saves(self) -> SavedPositions:
        settings = self._options, self._batch_size, self._shared_seed
        return SavedPositions(self._reader, self._catalog, *settings, self._stream)
