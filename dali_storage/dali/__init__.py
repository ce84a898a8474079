"""Readers in DALI's pipelines; only this package and `dynamic` know DALI's internals.

`compat` knows the version of DALI. `group` is the reader in a pipeline's graph, helped by `seeds`
and `iterators`; `gpu_memory` and `hold` are for batches that a GPU reads. `executor` adds metadata
and checkpoints to pipelines. This module is the composition root: it puts the plugs into the slots
of a reader. Imports reading/, saving/, observing/, bad_samples/, samples/, order/, runtime/ and
contract/.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.objects import full_path
from ..contract.options import dali_flag
from ..contract.reader import Reader
from ..observing.observer import Observed, stall_seconds
from ..reading.opening import Find, Opening, host_memory
from ..reading.slots import Memory
from ..reading.source import BatchStream
from ..samples import finding
from ..samples.locations import local_path
from ..saving import positions
from .arguments import Common
from .compat import AS_STORED, SHUFFLE_BITS, OpCounter, Pipeline  # first: refuses other DALIs
from .executor import extend_pipelines
from .group import DataNode, ReaderGroup, failure, has_other_sources, readers_of
from .iterators import extend_iterators
from .resume import extend_iterators_to_resume, not_delivered
from .self_test import require_same_order

__all__ = [
    "AS_STORED",
    "SHUFFLE_BITS",
    "Common",
    "DataNode",
    "add_reader",
    "batch_memory",
    "catalog",
    "failure",
    "has_other_sources",
    "last_batch",
    "leaving_out",
    "plugs",
    "progress",
    "receipt",
    "replaced",
    "samples_of",
    "set_weights",
    "source",
    "state",
]


_OWN_ORDER = "weights", "order", "epoch_size"
_BAD_SAMPLES = "on_error", "check", "max_replaced", "bad_samples"


def plugs(arguments: Common, device: str) -> dict[str, Any]:
    """Return the contents of the slots of an `Opening` for the arguments of a reader.

    What no argument asks for is not imported.

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value.
    """
    stall_after = stall_seconds(arguments.stall_after)
    pinned = None if arguments.pinned is None else dali_flag("pinned", arguments.pinned)
    found: dict[str, Any] = {
        "observe": partial(Observed, stall_after=stall_after),
        "memory": partial(batch_memory, pinned=pinned),
    }
    given = {name: value for name, value in vars(arguments).items() if value is not None}
    if own := [name for name in _OWN_ORDER if name in given]:
        from ..order.sampling.arguments import own_order

        found["ordering"] = own_order(own, given)
    about = {name: given[name] for name in _BAD_SAMPLES if name in given}
    if any(value is not getattr(Common, name) for name, value in about.items()):
        from ..bad_samples.arguments import bad_sample_options

        found["on_error"] = bad_sample_options(about, device)
    if arguments.receipt is not None:
        from ..receipts.ledger import receipt_plugs

        found |= receipt_plugs(arguments.receipt, about, device, arguments.pad_last_batch)
    if arguments.resume is not None:
        found["resume"] = partial(positions.resume, state=arguments.resume)
    return found


def batch_memory(
    name: str, reader: Reader, gpu: int | None, *, pinned: bool | None = None
) -> Callable[[], Memory]:
    """Choose the memory of batches: `Opening.memory`. `pinned` is the option of `readers.file`."""
    if gpu is None and reader.gpu is None and not pinned:
        return host_memory(name, reader, gpu)
    from .gpu_memory import choose

    return choose(name, reader, gpu, pinned)


def samples_of(arguments: Mapping[str, Any]) -> tuple[Find, list[bytes]]:
    """Return what finds the samples of `readers.file`, and the paths and URLs that name them.

    Raises:
        ValueError, TypeError: as `samples.finding.locations()`.
    """
    lists = arguments["file_root"], arguments["files"], arguments["file_list"]
    return partial(finding.find, **arguments), finding.locations(*lists)


def leaving_out(exclude: PathLike, find: Find) -> Find:
    """Return what finds the samples that are not in a list of bad ones."""
    from ..bad_samples.exclusion import without

    local_path("exclude", exclude)
    return lambda *known: without(find(*known), exclude)


def add_reader(
    name: str | None,
    opening: Opening,
    *,
    stream: BatchStream | None = None,
    takes_seed: bool = False,
    preserve: bool = False,
    lazy: bool = False,
    with_index: bool = False,
    with_source: bool = False,
) -> tuple[DataNode, ...]:
    """Put a reader into the current pipeline, or into the pipelines that use its outputs.

    A name of None is replaced by a generated one. Each pipeline has a stream of its own, the first
    one the given `stream`, if any. A `lazy` reader is opened when a pipeline needs samples.
    """
    require_same_order()
    pipeline = Pipeline.current()
    if getattr(pipeline, "_debug_on", False):
        # The definition runs once per batch, and every run would open the files again.
        what = f"dali_storage.readers.{opening.fmt.operator}"
        raise RuntimeError(f"{what} does not work in a pipeline with debug=True: leave debug out")
    if preserve and pipeline is None:
        Pipeline._raise_pipeline_required("Operators with side-effects ")
    if not isinstance(name, (str, type(None))):
        raise TypeError(f"name must be a string, not {name!r}")
    extend_pipelines()
    extend_iterators()
    extend_iterators_to_resume()
    if name is None:  # DALI would generate the same name here, and use up the same number
        number = f"detached_{OpCounter().id}" if pipeline is None else pipeline._next_op_id()
        name = f"__{opening.fmt.schema}_{number}"
    if not lazy:
        stream = BatchStream(name, opening)
        stream.open()
    group = ReaderGroup(name, opening, takes_seed, stream)
    if not lazy and pipeline is not None:
        group.claim(pipeline).choose_memory(pipeline.device_id)
    nodes = group.add_outputs(with_index=with_index, preserve=preserve, with_source=with_source)
    for node in nodes if preserve else ():
        pipeline.add_sink(node)
    return nodes


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
    reader = source(pipeline, name)
    saved = positions.state(reader, not_delivered(pipeline))
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
    return positions.receipt(stream, not_delivered(pipeline), epoch, source)


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
    from ..saving import weights as mixing

    return mixing.set_weights(source(pipeline, name), weights, at)


def progress(pipeline: Pipeline, name: str) -> dict[Any, tuple[int, int]]:
    """Return the numbers of samples and of whole passes that each source has given.

    The numbers are those of all ranks together, up to the latest batch that the user has taken from
    the reader `name`.

    Raises:
        ValueError: the reader has no weights, or the pipeline has no such reader.
    """
    from ..saving import weights as mixing

    return mixing.progress(source(pipeline, name), not_delivered(pipeline))
