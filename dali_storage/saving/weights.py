"""Weights of a mixture that change while it runs."""

import operator
from collections.abc import Mapping
from typing import Any

from ..contract.options import require_integer
from ..order.sampling.dealing import StreamOrder
from ..order.sampling.ordering import StreamOrdering
from ..order.sampling.stream import MixedStream
from ..reading.source import BatchStream


def mixed(stream: BatchStream) -> tuple[StreamOrdering, MixedStream]:
    """Return the order of a stream, and its mixture.

    Raises:
        ValueError: the reader has DALI's or the user's order, or a single source.
    """
    ordering = stream.open().ordering
    if isinstance(ordering, StreamOrdering) and (mixture := ordering.mixture) is not None:
        return ordering, mixture
    raise ValueError(
        f"{stream} has no weights of sources or labels; create the reader by "
        "readers.mix(), or with weights= of labels"
    )


def set_weights(stream: BatchStream, weights: Mapping[Any, Any], at: int | None) -> int:
    """Change the weights of the mixture from a position of the stream on; return the position.

    By default from the first batch that DALI does not have yet.

    Raises:
        ValueError, TypeError: the weights are wrong; DALI already has batches from `at` on; or
            the reader has no weights.
    """
    at = place_of(stream, stream.position.next) if at is None else at
    position = require_change(stream, weights, at)
    mixed(stream)[0].change(weights, position)
    order = _order_of(stream)
    stream.change_order(lambda index: order.start(index + 1) <= position)
    return position


def require_change(stream: BatchStream, weights: Mapping[Any, Any], at: int) -> int:
    """Refuse wrong arguments of `set_weights()`; return the position."""
    # Only for its errors, before anything is changed.
    mixed(stream)[1].with_weights(weights, 0)
    require_integer("set_weights", "at", position := operator.index(at), range(2**62))
    if position < (least := place_of(stream, stream.position.next)):
        what = f"at must be at least {least}, not {position}"
        raise ValueError(f"{stream}: {what}: DALI already has the batches before")
    return position


def place_of(stream: BatchStream, index: int) -> int:
    """Return the position of a global batch's start in the stream of samples."""
    return _order_of(stream).start(index)


def progress(stream: BatchStream, pending: int) -> dict[Any, tuple[int, int]]:
    """Return, for each source, the samples delivered in all and the number of whole passes."""
    position = place_of(stream, stream.position.delivered(pending))
    return mixed(stream)[1].progress(position)


def _order_of(stream: BatchStream) -> StreamOrder:
    return mixed(stream)[0].make(stream.options, stream.batch_size, stream.rest)
