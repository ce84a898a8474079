"""How a reader takes part in DALI's pipelines; beside `dynamic` all that knows DALI's insides.

`compat` knows the version of DALI. `group` is what a pipeline's graph holds of a reader, `seeds`,
`iterators` and `hold` serve it, and `executor` adds metadata and checkpoints to pipelines.
"""

from collections.abc import Mapping
from typing import Any

from ..contract.catalog import Catalog
from ..reading.opening import Opening
from ..reading.source import BatchStream
from .compat import AS_STORED, SHUFFLE_BITS, OpCounter, Pipeline  # first: it refuses other DALIs
from .executor import extend_pipelines
from .group import DataNode, ReaderGroup, failure, has_other_sources, readers_of
from .iterators import extend_iterators
from .resume import extend_iterators_to_resume, not_delivered
from .self_test import require_same_order

__all__ = [
    "AS_STORED",
    "SHUFFLE_BITS",
    "DataNode",
    "add_reader",
    "catalog",
    "failure",
    "has_other_sources",
    "progress",
    "replaced",
    "set_weights",
    "source",
    "state",
]


def add_reader(
    name: str | None,
    opening: Opening,
    *,
    stream: BatchStream | None = None,
    inherits_seed: bool = False,
    preserve: bool = False,
    lazy: bool = False,
    with_index: bool = False,
    with_source: bool = False,
) -> tuple[DataNode, ...]:
    """Put a reader into the current pipeline, or into the pipelines that use its outputs.

    The name is generated if it is None. Each pipeline has a stream of its own, the first one
    `stream` if it is given. A `lazy` reader is not opened before a pipeline needs it.
    """
    require_same_order()
    pipeline = Pipeline.current()
    if getattr(pipeline, "_debug_on", False):
        # Its definition runs once per batch, and every run would open the files again.
        what = f"dali_storage.readers.{opening.fmt.operator}"
        raise RuntimeError(f"{what} does not work in a pipeline with debug=True")
    if preserve and pipeline is None:
        Pipeline._raise_pipeline_required("Operators with side-effects ")
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"name must be a string, not {name!r}")
    extend_pipelines()
    extend_iterators()
    extend_iterators_to_resume()
    if name is None:  # the one that DALI would generate here, which uses up the same number
        number = f"detached_{OpCounter().id}" if pipeline is None else pipeline._next_op_id()
        name = f"__{opening.fmt.schema}_{number}"
    if not lazy:
        stream = BatchStream(name, opening)
        stream.open()
    group = ReaderGroup(name, opening, inherits_seed, stream)
    if not lazy and pipeline is not None:
        group.claim(pipeline).require_gpu(pipeline.device_id)
    nodes = group.add_outputs(with_index=with_index, preserve=preserve, with_source=with_source)
    for node in nodes if preserve else ():
        pipeline.add_sink(node)
    return nodes


def source(pipeline: Pipeline, name: str) -> BatchStream:
    """The batches of the reader `name` in `pipeline`, which is built if it has not been.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    pipeline.build()
    readers = readers_of(pipeline)
    if name not in readers:
        raise ValueError(
            f"the pipeline has no reader {name!r} of dali_storage; it has {sorted(readers)}: give "
            f"one of dali_storage.readers name={name!r}, or ask for another one"
        )
    return readers[name].source(pipeline)


def catalog(pipeline: Pipeline, name: str) -> Catalog:
    """The samples of the reader `name` in `pipeline`, which is built if it has not been.

    With `return_index`, `catalog.path(index * catalog.pieces)` is the path of a sample's file, as
    bytes; `pieces` is 1 but for containers with several components a sample. `catalog.name()`,
    relative to the root, is what DALI calls its source_info, and `catalog.where()` is the place in
    a container, as text.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    return source(pipeline, name).open()[0]


def replaced(pipeline: Pipeline, name: str) -> list[tuple[int, str, str]]:
    """Index, path or URL, and reason of the bad samples that this pipeline's reader has found.

    In the order in which they were found, since the pipeline began to read. Each of them is
    replaced with on_error="replace"; without it, the list is empty.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    found = source(pipeline, name).replacement
    return [] if found is None else found.found


def state(pipeline: Pipeline, name: str) -> dict[str, Any]:
    """Where the epoch of the reader `name` is: for `resume` of readers, on any number of ranks.

    A dict of integers, flags and None, with weights also of text and a list; about 300 bytes of
    JSON. All ranks that have been given equally many batches have the same one, so that one of them
    needs to save it. Batches count when `pipeline.run()` or an iterator of DALI has returned them,
    as for a checkpoint; what is read ahead does not. A state after the last batch of an epoch is
    the start of the next one. Nothing of random operators is in it.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`; the
            reader does not pad its last batches; or it shuffles on several ranks by the seed of
            the pipeline, which may differ between them.
    """
    reader = source(pipeline, name)
    saved = reader.state(not_delivered(pipeline))
    if saved["seed"] is None:
        raise ValueError(
            f"{reader}: its seed comes from the pipeline, and every rank may have another; a state "
            "is for all ranks: give the reader the same seed= on all of them"
        )
    return saved


def set_weights(
    pipeline: Pipeline, name: str, weights: Mapping[Any, Any], at: int | None = None
) -> int:
    """Mix the sources of the reader `name` by other weights, from a position of its stream on.

    All ranks must do so with the same weights and the same `at`; `dali_storage.ranks.check()` finds
    out whether they have. States and checkpoints keep it. Weights that were to change later are
    forgotten.

    Args:
        pipeline: has a reader made by `readers.mix()`, or with `weights` of labels.
        name: of the reader.
        weights: a number of at least 0 for each source, by its name or label.
        at: the position. None: that of the first batch that the pipeline has not taken yet; it is
            the same on all ranks whose pipelines have run equally often, and prefetch equally far.

    Returns:
        The position.

    Raises:
        ValueError, TypeError: the weights are wrong; the pipeline has taken batches from `at` on;
            or the reader has no weights.
    """
    return source(pipeline, name).set_weights(weights, at)


def progress(pipeline: Pipeline, name: str) -> dict[Any, tuple[int, int]]:
    """How many samples each source of the reader `name` has given, and how many whole passes.

    Of all ranks together, until the batch that the user was given last.

    Raises:
        ValueError: the reader has no weights, or the pipeline has no such reader.
    """
    return source(pipeline, name).progress(not_delivered(pipeline))
