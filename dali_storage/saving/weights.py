"""Weights of a mixture that change while it runs."""

import operator
from collections.abc import Mapping
from typing import Any

from ..contract.options import require_integer
from ..order.sampling.dealing import StreamOrder
from ..order.sampling.ordering import StreamOrdering
from ..order.sampling.stream import MixedStream
from ..reading.source import BatchStream


def mixture_of(stream: BatchStream) -> MixedStream:
    """Return the mixed samples of a stream.

    Raises:
        ValueError: the reader has DALI's or the user's order, or a single source.
    """
    ordering = stream.open().ordering
    mixture = ordering.mixture if isinstance(ordering, StreamOrdering) else None
    if mixture is None:
        raise ValueError(
            f"{stream} has no weights of sources or labels; create the reader by "
            "readers.mix(), or with weights= of labels"
        )
    return mixture


def set_weights(stream: BatchStream, weights: Mapping[Any, Any], at: int | None) -> int:
    """Change the weights of the mixture from a position of the stream on; return the position.

    By default from the first batch that DALI does not have yet.

    Raises:
        ValueError, TypeError: the weights are wrong; DALI already has batches from `at` on; or
            the reader has no weights.
    """
    at = place_of(stream, stream.position.next) if at is None else at
    position = require_change(stream, weights, at)
    ordering = stream.open().ordering
    assert isinstance(ordering, StreamOrdering)
    ordering.change(weights, position)
    order = _dealt(stream)
    stream.change_order(lambda index: order.start(index + 1) <= position)
    return position


def require_change(stream: BatchStream, weights: Mapping[Any, Any], at: int) -> int:
    """Refuse wrong arguments of `set_weights()`; return the position."""
    mixture_of(stream).with_weights(weights, 0)
    require_integer("set_weights", "at", position := operator.index(at), range(2**62))
    if position < (least := place_of(stream, stream.position.next)):
        what = f"at must be at least {least}, not {position}"
        raise ValueError(f"{stream}: {what}: DALI already has the batches before")
    return position


def place_of(stream: BatchStream, index: int) -> int:
    """Return the position of a global batch's start in the stream of samples."""
    mixture_of(stream)
    return _dealt(stream).start(index)


def progress(stream: BatchStream, pending: int) -> dict[Any, tuple[int, int]]:
    """Return, for each source, the samples delivered in all and the number of whole passes."""
    position = place_of(stream, stream.position.delivered(pending))
    return mixture_of(stream).progress(position)


def _dealt(stream: BatchStream) -> StreamOrder:
    order = stream.batches()
    assert isinstance(order, StreamOrder)
    return order
