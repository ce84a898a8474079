"""Readers in DALI's pipelines; only this package and `dynamic` know DALI's internals.

`compat` knows the version of DALI; `self_test` tries a newer one, by `comparing`. `group` is the
reader in a pipeline's graph, until that is gone, helped by `seeds`, `iterators` and `source_info`;
`gpu_memory` and `hold` are for batches that a GPU reads. `executor` adds metadata and checkpoints
to pipelines, `resume` positions to iterators, and `queries` asks readers. Imports reading/,
saving/, observing/, order/, runtime/ and contract/.
"""

from ..reading.opening import Opening
from ..reading.source import BatchStream
from .compat import TESTED, OpCounter, Pipeline  # first: refuses other DALIs
from .executor import extend_pipelines
from .group import DataNode, ReaderGroup
from .iterators import extend_iterators


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
    if opening.resume is not None:
        from .resume import extend_iterators_to_resume

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
