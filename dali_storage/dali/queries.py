"""Questions to the readers of a pipeline, and changes: names of `dali_storage` and `readers`."""

import re
from collections.abc import Mapping
from typing import Any

from ..contract.catalog import Catalog
from ..contract.faces import explained
from ..contract.objects import full_path
from ..observing.statistics import ReaderStatistics, figures
from ..reading.source import BatchStream
from .compat import Pipeline
from .group import readers_of
from .iterators import not_delivered


def source(pipeline: Pipeline, name: str) -> BatchStream:
    """The batches of the reader `name` in `pipeline`, which is built if necessary.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    pipeline.build()
    readers = readers_of(pipeline)
    if name not in readers:
        raise ValueError(
            f"the pipeline has no reader {name!r} of dali_storage; it has {sorted(readers)}: pass "
            f"name={name!r} to a reader of dali_storage.readers, or use another name"
        )
    return readers[name].source(pipeline)


_ITS_PLACE = r"C\+\+ context|Stacktrace|Current pipeline object"  # DALI's additions to errors

_stream = source  # where an argument has this name


def catalog(pipeline: Pipeline, name: str) -> Catalog:
    """The samples of the reader `name` in `pipeline`, which is built if necessary.

    With `return_index`, `catalog.path(index * catalog.pieces)` is the path of a sample's file, as
    bytes; `pieces` is 1 except for containers with several components per sample.
    `catalog.name()`, relative to the root, is DALI's source_info, and `catalog.where()` is the
    place in a container, as text.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    return source(pipeline, name).open()[0]


def replaced(pipeline: Pipeline, name: str) -> list[tuple[int, str, str]]:
    """Index, path or URL, and reason of the bad samples found by this pipeline's reader.

    The list has the order of discovery since the pipeline began to read. With on_error="replace",
    each of these samples is replaced; otherwise the list is empty.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    return source(pipeline, name).substitute.found


def last_batch(pipeline: Pipeline, name: str) -> list[list[tuple[int, str]]]:
    """Index, and path or URL, of the samples of each batch in which the pipeline may have failed.

    For an error of an operator, which names no sample, before any other call of the pipeline. The
    oldest batch is the last that `run()` or an iterator returned or should have returned; the
    others are those that the reader `name` has given to DALI in advance. Empty before the first
    batch. With several pieces in a sample, the path is that of the first one.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    stream = source(pipeline, name)
    samples, order = stream.open()[0], stream.batches()
    indices = stream.position.latest(not_delivered(pipeline))
    batches = [stream.substitute.chosen(order.batch(index)).tolist() for index in indices]
    return [[(it, full_path(samples.path(it * samples.pieces))) for it in its] for its in batches]


@explained()
def state(pipeline: Pipeline, name: str) -> dict[str, Any]:
    """The position of the reader `name` in its epoch, for `resume` on any number of ranks.

    A dict of integers, flags and None, with weights also of text and a list; about 300 bytes of
    JSON. All ranks have the same state after equally many batches, so only one of them needs to
    save the state. Batches count when returned by `pipeline.run()` or an iterator of DALI, as for a
    checkpoint; batches read ahead do not. A state after the last batch of an epoch is the start of
    the next epoch. States of random operators are not included.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`; the
            reader does not pad its last batches; or it shuffles on several ranks by the seed of
            the pipeline, which may differ between them.
    """
    from ..saving.positions import state as state_of

    reader = source(pipeline, name)
    saved = state_of(reader, not_delivered(pipeline))
    if saved["seed"] is None:
        raise ValueError(
            f"{reader}: its seed comes from the pipeline and may differ between ranks, but a state "
            "is for all ranks: set the same seed= for the reader on all ranks"
        )
    return saved


def receipt(
    pipeline: Pipeline, name: str, epoch: int | None = None, source: Any = None
) -> dict[str, Any]:
    """Return what this rank has delivered of an epoch; see docs/receipts.md.

    Args:
        pipeline: a pipeline with a reader that was created with `receipt=`.
        name: the name of the reader.
        epoch: the current epoch, or the one before. None: that of the latest sample. In a stream
            with passes (`readers.mix`, `weights`, `epoch_size`) the pass of the source.
        source: the name or label of a source of a mixture.

    Returns:
        A dict of plain types for `receipts.combine()`, 12 KB of JSON; among others `epoch`, the
        `count` of samples without padding, and `sum`, 128 bits in hexadecimal. Batches count as for
        `state()`.

    Raises:
        ValueError: the pipeline has no such reader; it has no receipts; or the epoch or the source
            is unknown.
    """
    stream = _stream(pipeline, name)
    return stream.ledger.receipt(stream, not_delivered(pipeline), epoch, source)


@explained()
def set_weights(
    pipeline: Pipeline, name: str, weights: Mapping[Any, Any], at: int | None = None
) -> int:
    """Mix the sources of the reader `name` by other weights, from a position of its stream on.

    All ranks must do so with the same weights and the same `at`; `dali_storage.ranks.check()`
    verifies this. States and checkpoints include the change. Later scheduled changes are dropped.

    Args:
        pipeline: a pipeline with a reader made by `readers.mix()`, or with `weights` of labels.
        name: the name of the reader.
        weights: a number of at least 0 for each source, by its name or label.
        at: the position. None: the first batch that the pipeline has not requested yet, the same on
            all ranks whose pipelines have run equally often and prefetch equally far.

    Returns:
        The position.

    Raises:
        ValueError, TypeError: the weights are wrong; the pipeline has requested batches from `at`
            on; or the reader has no weights.
    """
    from ..saving.weights import set_weights as change

    return change(source(pipeline, name), weights, at)


@explained()
def progress(pipeline: Pipeline, name: str) -> dict[Any, tuple[int, int]]:
    """Return the numbers of samples and of whole passes that each source has given.

    The numbers are those of all ranks together, up to the latest batch that the user has taken from
    the reader `name`.

    Raises:
        ValueError: the reader has no weights, or the pipeline has no such reader.
    """
    from ..saving.weights import progress as progress_of

    return progress_of(source(pipeline, name), not_delivered(pipeline))


def statistics(pipeline: Any, name: str) -> ReaderStatistics:
    """Return what a reader has delivered, and how long each stage took.

    Args:
        pipeline: a `Pipeline` of DALI, built if necessary.
        name: the name of a reader of `dali_storage.readers` in it.

    Returns:
        Batches, bytes, seconds of waiting, the average fill of the queue of batches read ahead, the
        percentiles of each stage and the slowest batches, since the pipeline began to read or since
        `reset()` of the result; all zeros before. DALI asks for batches ahead of the user.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    return figures(source(pipeline, name).observer)


def failure(error: Exception) -> str:
    """DALI's message about a failed operator, without its place in the code."""
    operator = str(error).partition("operator `nvidia.dali.")[2].partition("`")[0]
    text = re.split(_ITS_PLACE, str(error).rpartition("encountered:")[2], maxsplit=1)[0]
    return f"{operator or 'an operator'} fails: {' '.join(text.split())[:150]}".rstrip(" :.")
