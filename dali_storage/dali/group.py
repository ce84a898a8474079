"""A reader in the graph of a pipeline.

DALI requests the batches of a Python source from a *group*: `Pipeline._run_input_callbacks` calls
the `get_batch()` of every group and then the `feed()` of every batch. `ReaderGroup` replaces
`_ExternalSourceGroup` of nvidia/dali/external_source.py.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import fn
from nvidia.dali.backend import Pipeline as Executor
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.tensors import TensorCPU, TensorListCPU
from nvidia.dali.types import PipelineAPIType, to_dali_type

from ..contract._types import IntArray
from ..contract.format import Output
from ..contract.views import Contents
from ..order.ordering import Ordering
from ..reading.lanes import Gate, make_gate
from ..reading.loading import LoadedBatch
from ..reading.opening import Opening
from ..reading.slots import Memory
from ..reading.source import BatchStream
from .compat import REMEDY, SEPARATE, VERSION, has
from .iterators import drain
from .seeds import inherited_seed

if TYPE_CHECKING:
    from .source_info import Names

    _Started: TypeAlias = weakref.WeakKeyDictionary[
        Pipeline, tuple["_Inputs", Names | "Unnamed", "_Hold"]
    ]

DataNode: TypeAlias = Any
_Inputs: TypeAlias = dict[str, int | str]
"""The reader's output for each input of a pipeline, by the name of the input."""

_Hold: TypeAlias = Callable[[Sequence[Contents]], object] | None
"""Holds each page-locked batch until a GPU has read it."""

_NO_GPU = contextlib.nullcontext()

LABELS, INDEX, SOURCE = "labels", "index", "source"  # beside the outputs of the format, by number


class ReaderGroup:
    """DALI's view of one call of a reader.

    A group belongs to the nodes returned by the call. Several pipelines may use these nodes; each
    has a source of its own, which is closed when the pipeline is dropped.
    """

    parallel = False
    instances = ()  # DALI looks here for unused outputs, by ids that are not unique, to warn

    def __init__(
        self,
        name: str,
        opening: Opening,
        takes_seed: bool = False,
        stream: BatchStream | None = None,
    ) -> None:
        """Make a group; the first pipeline uses `stream`, and others make their own."""
        self.name = name
        self.operator = opening.fmt.operator
        self.takes_seed = takes_seed
        self._opening = opening
        # Weak: the group may live longer, because DALI's nodes and operators refer to each other.
        self._sources = weakref.WeakKeyDictionary[Pipeline, BatchStream]()
        self._started: _Started = weakref.WeakKeyDictionary()
        self._unclaimed = stream
        self._nodes: dict[int | str, DataNode] = {}

    def claim(self, pipeline: Pipeline) -> BatchStream:
        """Make the source for a new `pipeline`."""
        source, self._unclaimed = self._unclaimed or BatchStream(self.name, self._opening), None
        self._sources[pipeline] = source
        return source

    def add_outputs(
        self, *, with_index: bool, preserve: bool, with_source: bool = False
    ) -> tuple[DataNode, ...]:
        """The nodes of all outputs, with DALI's names.

        The outputs are the format's, the label, the index, and the source.
        """
        fmt = self._opening.fmt
        outputs = dict[int | str, Output](enumerate(fmt.outputs))
        outputs |= {LABELS: Output(np.dtype(np.int32))} if fmt.labels else {}
        outputs |= {INDEX: Output(np.dtype(np.int64))} if with_index else {}
        outputs |= {SOURCE: Output(np.dtype(np.int32))} if with_source else {}
        for number, (key, output) in enumerate(outputs.items()):
            device = self._opening.device if isinstance(key, int) else "cpu"
            node = fn.external_source(
                self,
                name=self.name if len(outputs) == 1 else f"{self.name}[{number}]",
                batch=True,
                device=device,
                # GPU memory is copied on our stream, so we know when the copy is done.
                no_copy=device == "cpu",
                dtype=None if output.dtype is None else to_dali_type(str(output.dtype)),
                ndim=output.ndim,
                layout=output.layout or None,
                preserve=preserve,
            )
            self.source_desc = node.source._group.source_desc
            node.source._group = self
            self._nodes[key] = node
        return tuple(self._nodes.values())

    def source(self, pipeline: Pipeline) -> BatchStream:
        """The configured source for a built `pipeline`."""
        source = self._sources.get(pipeline) or self.claim(pipeline)
        if not source.configured:
            # An order other than DALI's has a seed of its own, which all ranks share.
            inherits = self.takes_seed and self._opening.ordering is Ordering
            seed, shared = inherited_seed(pipeline, self) if inherits else (None, True)
            source.configure(
                batch_size=pipeline.max_batch_size,
                seed=seed,
                checkpointing=bool(pipeline._enable_checkpointing),
                shared_seed=shared,
            )
        return source

    def get_batch(self, pipeline: Pipeline, batch_size: int, epoch: int) -> Delivery:
        """Return the next batch; called by DALI before any source of the pipeline is fed."""
        started = self._started.get(pipeline)
        begin = [] if started else start_all(pipeline)
        inputs, names, hold = started or self._started[pipeline]
        source = self._sources[pipeline]
        try:
            # All of them before the first wait, or the readers would begin one after another.
            for each in begin:
                each.read_ahead()
            return Delivery(pipeline, inputs, names, source, source.batch(), hold)
        except Exception as error:
            # The user's sources cannot give the batches again that DALI drops now.
            if has_other_sources(pipeline):
                source.end(error)
            if pipeline._api_type is not PipelineAPIType.ITERATOR:
                raise
            # An iterator still has batches from before the error: they are delivered first.
            drain(pipeline, error)
            raise StopIteration from None

    def feed_count(self, pipeline: Pipeline) -> int:
        """Number of batches to feed before the first run; called by DALI before 2.3."""
        inputs = self._inputs(set(map(id, pipeline._ops)))
        return int(pipeline.input_feed_count(next(iter(inputs))))

    def reset_indices(self) -> None:
        """Do nothing; called by `Pipeline.reset()` when another source has ended its epoch."""

    def __call__(self, info: object) -> Any:
        """Raise RuntimeError; an external source must be callable, but is never called."""
        raise RuntimeError(
            f"reader {self.name!r}: only a pipeline of DALI can read batches from "
            f"dali_storage.readers.{self.operator}"
        )

    def start(
        self, pipeline: Pipeline, used: Container[int], views: Mapping[int, bool], gate: Gate | None
    ) -> BatchStream:
        """Open the source if it is not open, so that it can read.

        Also record the output for each of the pipeline's inputs, the names of samples and, for
        page-locked batches, what holds them until a GPU has read them. `used`: ids of the
        pipeline's operators; `views`: see `_unwritten()`.
        """
        if pipeline in self._started:
            return self._sources[pipeline]
        source = self.source(pipeline)
        _require_extended(pipeline, source)
        viewed = {it: views[id(self._nodes[it].source)] for it in self._outputs(views)}
        if not any(viewed.values()) and len(viewed) < len(self._outputs(used)):
            viewed = {}  # the others would be copied: it is faster to read them into a buffer
        depth = pipeline.prefetch_queue_depth
        held = 1 + (depth if isinstance(depth, int) else depth["cpu_size"])
        source.start(device_id=pipeline.device_id, gate=gate, views=viewed, held=held)
        names: Names | Unnamed = Unnamed()
        asked = self._outputs(_asked_for(pipeline))
        if asked or self._opening.source_info:
            from .source_info import Names

            names = Names(source, self._opening.source_info, asked)
        hold = source.memory.hold and source.memory.hold(pipeline._pipe, pipeline.device_id)
        self._started[pipeline] = self._inputs(used), names, hold
        return source

    def _outputs(self, among: Container[int]) -> list[int]:
        """The numbers of the format's outputs whose operators have one of these ids."""
        nodes = self._nodes.items()
        return [it for it, node in nodes if isinstance(it, int) and id(node.source) in among]

    def _inputs(self, used: Container[int]) -> _Inputs:
        operators = {key: node.source for key, node in self._nodes.items()}
        return {op.name: key for key, op in operators.items() if id(op) in used}


def _asked_for(pipeline: Pipeline) -> set[int]:
    """The ids of the operators before any `fn.get_property(key="source_info")`."""
    found = set[int]()
    for each in reversed(pipeline._ops):  # each comes after its inputs
        reads = each._op.schema.Name() == "GetProperty" and "key: source_info\n" in str(each.spec)
        if reads or id(each) in found:
            found.update(id(it.source) for it in each.inputs)
    return found


def _require_extended(pipeline: Pipeline, source: BatchStream) -> None:
    """Refuse a pipeline with metadata and checkpoints outside of the control of `executor`."""
    what = f"{source}: DALI {VERSION}"
    if weakref.ref(pipeline) not in Pipeline._pipes or not isinstance(pipeline._pipe, Executor):
        raise RuntimeError(f"{what} does not register its pipelines as before; {REMEDY}")
    if pipeline._checkpoint is not None and not source.restored:
        raise RuntimeError(f"{what} restored a checkpoint without this reader's position; {REMEDY}")


class Unnamed:
    """Names no sample; `source_info.Names` does."""

    outputs: Sequence[int] = ()

    def put(self, tensors: TensorListCPU, samples: IntArray, output: int) -> None:
        """See `Names`."""


class Delivery:
    """A batch of one source; DALI feeds it when all sources of the pipeline have a batch."""

    def __init__(
        self,
        pipeline: Pipeline,
        inputs: _Inputs,
        names: Names | Unnamed,
        source: BatchStream,
        batch: LoadedBatch,
        hold: _Hold,
    ) -> None:
        # DALI assumes the current GPU for a stream and for page-locked memory.
        current = source.memory.current
        self._gpu = _NO_GPU if current is None else current(pipeline.device_id)
        with self._gpu:
            outputs = {key: self._output(source, batch, key) for key in inputs.values()}
        for key in names.outputs:
            if key in outputs:  # the pipeline uses it
                names.put(outputs[key][0], batch.samples, key)
        # Fed GPU memory is DALI's own copy, and so are lists with DALI 1.53.
        if source.memory.kind != "gpu" and SEPARATE:
            source.recent.append(outputs)
        feed = pipeline._pipe.SetExternalTLInput
        self._steps: list[Callable[[], object]] = [
            partial(feed, name, *outputs[output]) for name, output in inputs.items()
        ]
        for note in source.ledger.notes:
            self._steps.append(note(source, batch, pipeline._batches_to_consume))
        self._steps.append(source.position.advance(pipeline._batches_to_consume))
        if hold is not None:
            # First: kept before DALI can queue a copy.
            self._steps.insert(0, partial(hold, batch.outputs))

    def _output(self, source: BatchStream, batch: LoadedBatch, key: int | str) -> tuple[Any, ...]:
        """DALI's list of an output, the stream for copies, and True to copy by a kernel."""
        if key == LABELS:
            return number_list(source.labels(batch)), None, False
        if key == INDEX:
            return number_list(batch.samples), None, False
        if key == SOURCE:
            return number_list(source.open().ordering.sources_of(batch.samples)), None, False
        assert isinstance(key, int)
        return data_list(source.memory, batch.outputs[key])

    def feed(self) -> None:
        """Feed the batch to the pipeline; called by DALI."""
        with self._gpu:
            # One bytecode instruction: a KeyboardInterrupt in between would split data and labels.
            deque(map(operator.call, self._steps), 0)


def data_list(memory: Memory, contents: Contents) -> tuple[Any, Any, bool]:
    """DALI's list of the samples, the stream for copies, and True to copy by a kernel."""
    if memory.copied is not None:
        return memory.copied(contents)
    if len(contents) == 1 and not isinstance(contents, np.ndarray):
        contents = np.asarray(memoryview(contents[0]))[None]  # type: ignore[arg-type]
    page_locked = memory.page_locked is not None and memory.page_locked(contents)
    if isinstance(contents, np.ndarray):
        return TensorListCPU(contents, is_pinned=page_locked), None, False
    # A list of tensors costs 1.2 us per sample; DALI needs 2.4 us to make a list from arrays.
    # The list is made here and not in a lane: on a hot page cache the lane is the bottleneck.
    options = ("", True) if page_locked else ()
    items: Sequence[Any] = contents
    *others, content = items
    tensors = list(map(TensorCPU, others, *map(repeat, options)))
    last = np.asarray(memoryview(content)).view(_Owner)  # of bytes, numpy makes a scalar
    # DALI drops samples one by one, in a thread of its own. With one owner of all, it waits for the
    # interpreter lock once per batch, not once per sample.
    last.owned = tuple(tensors)
    tensors.append(TensorCPU(last.data, *options))
    return TensorListCPU(tensors, **SEPARATE), None, False


class _Owner(np.ndarray[Any, Any]):
    """The last sample of a batch, which keeps the tensors of the others alive."""

    owned: tuple[Any, ...]


def number_list(values: NDArray[Any]) -> TensorListCPU:
    """DALI's list of n samples of shape (1,), sharing the memory of `values`."""
    return TensorListCPU(values.reshape(-1, 1))


def start_all(pipeline: Pipeline) -> list[BatchStream]:
    """Open the sources of all readers of a pipeline, so that no reader waits for another."""
    used, groups = frozenset(map(id, pipeline._ops)), readers_of(pipeline).values()
    gate = make_gate() if len(groups) > 1 else None
    views = _unwritten(pipeline)
    return [group.start(pipeline, used, views, gate) for group in groups]


def _unwritten(pipeline: Pipeline) -> dict[int, bool]:
    """The ids of operators to whose outputs nobody can write; False if only in form of a list.

    Decoders never write. Of outputs that leave a pipeline, DALI makes one contiguous copy if they
    are a list of two tensors or more; but DALI 2.0 to 2.2, by its dynamic executor, only of tensors
    that do not lie one after another. Other operators may pass an output on unchanged, to a user's
    function or out of the pipeline.
    """
    decoded, others = set[int](), set[int]()
    left = {id(it.source) for it in pipeline._graph_outputs}
    copied = pipeline.device_id is None and pipeline.max_batch_size > 1
    if not copied or (has((2, 0)) and not has((2, 3)) and pipeline.exec_dynamic):
        others, left = left, set[int]()
    for each in pipeline._ops:
        known = type(each._op)
        decodes = f"{known.__module__}.{known.__name__}" in _DECODERS
        (decoded if decodes else others).update(id(it.source) for it in each.inputs)
    return {it: it not in left for it in (decoded | left) - others}


_DECODERS = {
    f"nvidia.dali.ops.{room}.{name}"
    for room in ("decoders", "experimental.decoders")
    for name in ["Audio", "Image", "ImageCrop", "ImageRandomCrop", "ImageSlice", "Numpy", "Video"]
} | {"nvidia.dali.ops.PeekImageShape"}
"""Not the whole modules, which may also contain operators of plugins."""


def has_other_sources(pipeline: Pipeline) -> bool:
    """Return whether a built pipeline also has sources of the user."""
    return len(readers_of(pipeline)) < len(pipeline._input_callbacks or ())


def readers_of(pipeline: Pipeline) -> dict[str, ReaderGroup]:
    """Our readers in a built pipeline, by name.

    Two readers with the same name are refused, which DALI does only if both use the same output.
    """
    readers: dict[str, ReaderGroup] = {}
    for group in pipeline._input_callbacks or ():
        if isinstance(group, ReaderGroup):
            if group.name in readers:
                raise RuntimeError(f"two readers of this pipeline have the name {group.name!r}")
            readers[group.name] = group
    return readers
