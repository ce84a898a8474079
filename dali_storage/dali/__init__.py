"""Readers in DALI's pipelines; only this package and `dynamic` know DALI's internals.

`compat` knows the version of DALI. `group` is the reader in a pipeline's graph, helped by `seeds`
and `iterators`; `gpu_memory` and `hold` are for batches that a GPU reads. `executor` adds metadata
and checkpoints to pipelines, `queries` asks readers for their samples, positions and figures. This
module is the composition root: it puts the plugs into the slots of a reader. Imports reading/,
saving/, observing/, bad_samples/, samples/, order/, runtime/ and contract/.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..contract._types import PathLike
from ..contract.faces import explained
from ..contract.options import dali_flag
from ..contract.reader import Reader
from ..observing.observer import Observed, stall_seconds
from ..reading.opening import Find, Opening, host_memory
from ..reading.slots import Memory
from ..reading.source import BatchStream
from ..samples import finding
from ..samples.locations import local_path
from .arguments import Common
from .compat import (  # first: refuses other DALIs
    AS_STORED,
    SHUFFLE_BITS,
    TESTED,
    OpCounter,
    Pipeline,
)
from .executor import extend_pipelines
from .group import DataNode, ReaderGroup, failure, has_other_sources, readers_of
from .iterators import extend_iterators

__all__ = [
    "AS_STORED",
    "SHUFFLE_BITS",
    "Common",
    "DataNode",
    "add_reader",
    "batch_memory",
    "failure",
    "has_other_sources",
    "leaving_out",
    "plugs",
    "samples_of",
    "source",
]


_OWN_ORDER = "weights", "order", "epoch_size"
_BAD_SAMPLES = "on_error", "check", "max_replaced", "bad_samples"


@explained()
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
        from ..saving import positions
        from .resume import extend_iterators_to_resume

        extend_iterators_to_resume()
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


@explained()
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
    if not TESTED:
        from .self_test import require_same_order

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
