"""Batches that need no lane: their samples are views, and reading them does not block."""

import contextlib
import copy
import sys

from ..contract._types import IntArray
from ..contract.errors import RecordError
from ..order.sequence import Batches
from .loading import LoadedBatch, Loading, clear_frames


class HotPath:
    """Reads batches in the thread that asks for them. The lanes' own order goes ahead of it."""

    def __init__(self, loading: Loading, order: Batches) -> None:
        self._loading = loading
        self.use(order)

    def use(self, order: Batches) -> None:
        """Use another order, of which this is given a copy."""
        self._first = copy.deepcopy(order)
        self._order: Batches | None = None

    def samples(self, index: int) -> tuple[IntArray, IntArray] | None:
        """Return a batch's samples, and the samples to read; None if the batch needs a lane."""
        # Put back when it is done: after a Ctrl-C it may be in the midst of a shuffle.
        order, self._order = self._order, None
        order = order or copy.deepcopy(self._first)
        samples = order.batch(index)
        self._order = order
        chosen = samples
        with contextlib.suppress(OSError, RecordError):  # a lane finds them, too
            chosen = self._loading.substitute.chosen(samples)
        return (samples, chosen) if self._loading.is_hot(chosen) else None

    def read(self, chosen: IntArray) -> LoadedBatch | None:
        """Read the samples; None if a bad one is to be replaced, which a lane does."""
        handled = sys.exception()
        try:
            return self._loading.read(chosen, self._loading.reader.lanes)
        except Exception as error:
            clear_frames(error, handled)
            if not self._loading.substitute.handles(error):
                raise
        return None
