"""Checkpoints and states of a stream of batches."""

from collections.abc import Mapping
from typing import Any, cast

from ..order.resuming.resume import Rest
from ..order.resuming.state import SavedPositions
from ..reading.source import BatchStream


def saver_of(stream: BatchStream) -> SavedPositions:
    """Return the saver of a configured stream's positions, made once: it reads all names."""
    if stream.saved is None:
        catalog, _, ordering = stream.open()
        settings = stream.options, stream.batch_size, stream.shared_seed, ordering
        stream.saved = SavedPositions(repr(stream), catalog, *settings)
    return cast("SavedPositions", stream.saved)


def checkpoint(stream: BatchStream, pending: int) -> dict[str, Any]:
    """Make a checkpoint, with `pending` batches given to DALI but not yet to the user."""
    rest = cast("Rest | None", stream.rest)
    saved = saver_of(stream).checkpoint(stream.position.delivered(pending), rest)
    return saved | stream.ledger.saved(stream, pending)


def restore(stream: BatchStream, checkpoint: Mapping[str, Any]) -> None:
    """Move to the position of a checkpoint.

    Raises:
        ValueError: the checkpoint is damaged, or of another data set or order, or the reader
            has `resume`, too.
    """
    if stream.opening.resume is not None:
        either = "either checkpoint= to the pipeline or resume= to the reader"
        raise ValueError(f"{stream} cannot begin at two places; pass {either}")
    saved = saver_of(stream).read_checkpoint(checkpoint)
    if saved["resumed"] is not None:
        _move(stream, saved["resumed"])
    replay(stream, saved["changes"])
    # Last, because `_move()` moves to its own position.
    stream.position.seek(saved["batches"])
    stream.restored = True
    stream.ledger.begin(stream, saved["receipt"])


def state(stream: BatchStream, pending: int) -> dict[str, Any]:
    """Make a state for `resume()`; the same on all ranks after equally many batches.

    Its seed is None if the ranks may have different seeds.

    Raises:
        ValueError: the reader does not pad its last batches.
    """
    rest = cast("Rest | None", stream.rest)
    saved = saver_of(stream).state(stream.position.delivered(pending), rest)
    return saved | stream.ledger.saved(stream, pending)


def resume(stream: BatchStream, state: Mapping[str, Any]) -> None:
    """Go on where `state()` was called, with any number of ranks and batch size.

    After `configure()` and before `start()`. Each sample of the remaining epoch is delivered once,
    by one of the ranks; then whole epochs follow. `rest` describes the remaining batches.

    Raises:
        TypeError, ValueError: the state is damaged, or of another data set or order; names the
            reader.
        RuntimeError: the reader has begun to read.
    """
    if stream.has_begun:
        raise RuntimeError(f"{stream} has begun to read; resume it before the first batch")
    _move(stream, state)
    stream.ledger.begin(stream, state.get("receipt"))


def _move(stream: BatchStream, state: Mapping[str, Any]) -> None:
    position, stream.rest, saved = saver_of(stream).read_state(state)
    replay(stream, saved.get("changes", []))
    stream.resumed = True
    stream.position.seek(position)


def replay(stream: BatchStream, changes: list[Any]) -> None:
    """Make the changes of weights of a state again.

    Raises:
        ValueError: they are damaged.
    """
    try:
        stream.open().ordering.replay(changes)
    except ValueError as error:
        raise ValueError(f"{stream}: the state is damaged: {error}") from None
