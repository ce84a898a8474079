"""How a reader takes part in DALI's pipelines; the only module that knows DALI's insides.

Written against DALI 2.4: `Pipeline._build_graph`, `_run_input_callbacks`, `_run_once`,
`_get_checkpoint`, and `_ExternalSourceGroup`.
"""

from __future__ import annotations

import functools
import json
import secrets
import sys
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from nvidia.dali import fn
from nvidia.dali.backend import Pipeline as Executor
from nvidia.dali.ops import _OpCounter
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.tensors import TensorCPU, TensorListCPU
from nvidia.dali.types import DALIDataType, PipelineAPIType

from .order.libstdcxx import seed_words
from .prefetch import LoadedBatch
from .source import PipelineSettings, Source

DataNode: TypeAlias = Any

_OUTPUTS = DALIDataType.UINT8, DALIDataType.INT32  # of readers.file: data, labels

_SEED_TABLE = 1024  # how many seeds a pipeline has before it begins again

_SEED_OF_CHECKPOINTS = 0
"""The seed of an unseeded shuffle in a pipeline with checkpoints. DALI takes a random one and saves
it in the checkpoint; ours is not saved, and the restored pipeline must find the same order."""

_CHECKPOINT_KEY = "dali_storage"


def add_reader(
    name: str | None,
    make: Callable[[str], Source],
    *,
    inherits_seed: bool,
    preserve: bool,
    lazy: bool,
) -> tuple[DataNode, DataNode]:
    """Put a reader into the current pipeline, or into the pipelines that use its outputs.

    Args:
        name: the reader's name; None for one that DALI would generate.
        make: makes the source for one pipeline, given the reader's name.
        inherits_seed: whether the reader takes a seed from the pipeline.
        preserve: keep the reader in the pipeline even if no output is used.
        lazy: do not open the source before a pipeline needs it.

    Raises:
        RuntimeError: the pipeline has debug=True, or preserve=True is used outside of a pipeline.
    """
    pipeline = Pipeline.current()
    if getattr(pipeline, "_debug_on", False):
        # Its definition runs once per batch, and every run would open the files again.
        raise RuntimeError("dali_storage.readers.file does not work in a pipeline with debug=True")
    if preserve and pipeline is None:
        Pipeline._raise_pipeline_required("Operators with side-effects ")
    _extend_pipelines()
    group = _ReaderGroup(_generated_name() if name is None else name, make, inherits_seed)
    if not lazy:
        group.open(pipeline)
    nodes = [group.add_output(index, dtype, preserve) for index, dtype in enumerate(_OUTPUTS)]
    for node in nodes if preserve else []:
        pipeline.add_sink(node)
    data, labels = nodes
    return data, labels


class _ReaderGroup:
    """What DALI sees of one `readers.file`: it stands in for the group of an external source.

    A group belongs to the nodes of the graph. Several pipelines may use these nodes; each of them
    has a source of its own, which ends with the pipeline. (A group lives on until the garbage
    collector runs, because DALI's nodes and operators refer to each other.)

    Attributes:
        name: of the reader.
        inherits_seed: whether the reader takes a seed from the pipeline.
    """

    parallel = False
    instances = ()  # DALI would compare operators by their ids, which are not unique, and then warn

    def __init__(self, name: str, make: Callable[[str], Source], inherits_seed: bool) -> None:
        self.name = name
        self.inherits_seed = inherits_seed
        self._make = make
        self._sources = weakref.WeakKeyDictionary[Pipeline, Source]()
        self._inputs = weakref.WeakKeyDictionary[Pipeline, dict[str, int]]()
        self._unclaimed: Source | None = None
        self._operators: list[Any] = []

    def open(self, pipeline: Pipeline | None) -> None:
        """Open the source for `pipeline`; without one, for the first that uses the nodes."""
        source = self._make(self.name)
        source.open()
        if pipeline is None:
            self._unclaimed = source
        else:
            self._sources[pipeline] = source

    def add_output(self, index: int, dtype: DALIDataType, preserve: bool) -> DataNode:
        """The node of output `index`, named as DALI's reader names it."""
        node = fn.external_source(
            self,
            name=f"{self.name}[{index}]",
            batch=True,
            no_copy=True,
            dtype=dtype,
            ndim=1,
            preserve=preserve,
        )
        operator = node.source
        self.source_desc = operator._group.source_desc
        operator._group = self
        self._operators.append(operator)
        return node

    def source(self, pipeline: Pipeline) -> Source:
        """The source for `pipeline`."""
        source = self._sources.get(pipeline)
        if source is None:
            source, self._unclaimed = self._unclaimed or self._make(self.name), None
            self._sources[pipeline] = source
        return source

    def get_batch(self, pipeline: Pipeline, batch_size: int, epoch: int) -> _Delivery:
        """Called by DALI for every batch, before it feeds any of the pipeline's sources."""
        inputs = self._inputs.get(pipeline) or self._start(pipeline)
        source = self._sources[pipeline]
        try:
            return _Delivery(pipeline, inputs, source, source.batch())
        except Exception as error:
            if pipeline._api_type is not PipelineAPIType.ITERATOR:
                raise
            # An iterator schedules the next batch before it returns the one that it has taken.
            _raise_in_turn(pipeline, error)
            raise StopIteration from None

    def reset_indices(self) -> None:
        """Called by `Pipeline.reset()` when another source has ended its epoch; ours goes on."""

    def __call__(self, info: object) -> Any:
        """Only here because an external source must have a callable."""
        raise RuntimeError(
            f"reader {self.name!r}: only a pipeline of DALI can take batches from "
            "dali_storage.readers.file"
        )

    def _start(self, pipeline: Pipeline) -> dict[str, int]:
        """Begin to read; returns the names of the pipeline's inputs and which output they take."""
        used = {id(operator) for operator in pipeline._ops}
        inputs = {
            operator.name: output
            for output, operator in enumerate(self._operators)
            if id(operator) in used
        }
        self.source(pipeline).start(_settings(pipeline, self))
        self._inputs[pipeline] = inputs
        return inputs


class _Delivery:
    """A batch that DALI feeds to the pipeline when all of its sources have one."""

    def __init__(
        self, pipeline: Pipeline, inputs: dict[str, int], source: Source, batch: LoadedBatch
    ) -> None:
        self._pipeline = pipeline
        self._inputs = inputs
        self._source = source
        # A list of tensors costs 1.2 us per sample; DALI takes 2.4 us to make one from arrays.
        # It is made here and not in a lane: on a hot page cache the lane is the bottleneck.
        data = TensorListCPU([TensorCPU(content) for content in batch.contents], contiguous=False)
        self._outputs = data, TensorListCPU(source.labels(batch).reshape(-1, 1))

    def feed(self) -> None:
        for name, output in self._inputs.items():
            self._pipeline._feed_input(name, self._outputs[output])
        self._source.advance()


def _generated_name() -> str:
    """The name that DALI would give to an unnamed reader made here; uses up the same number."""
    pipeline = Pipeline.current()
    if pipeline is None:
        return f"__File_detached_{_OpCounter().id}"
    return f"__File_{pipeline._next_op_id()}"


def _readers(pipeline: Pipeline) -> dict[str, _ReaderGroup]:
    """Our readers in a built pipeline, by name.

    Raises:
        RuntimeError: two of them have one name. (DALI refuses this only if both use an output.)
    """
    readers: dict[str, _ReaderGroup] = {}
    for group in pipeline._input_callbacks or ():
        if isinstance(group, _ReaderGroup):
            if group.name in readers:
                raise RuntimeError(f"two readers of this pipeline have the name {group.name!r}")
            readers[group.name] = group
    return readers


def _raise_in_turn(pipeline: Pipeline, error: Exception) -> None:
    """Make the iterator over `pipeline` deliver the batches it has scheduled, then raise `error`.

    The caller raises StopIteration, so that DALI schedules no more batches until the pipeline is
    reset. An iterator over several pipelines has then taken a batch of the others and cannot give
    it back: it ends for good.
    """
    errors = [error]
    reference = weakref.ref(pipeline)

    def share_outputs(cuda_stream: Any = None) -> Any:
        pipeline: Any = reference()
        if not pipeline._last_iter:  # it has been reset
            del pipeline.share_outputs
            if pipeline.empty():
                pipeline.schedule_run()
            return pipeline.share_outputs(cuda_stream)
        if not pipeline.empty():
            return Pipeline.share_outputs(pipeline, cuda_stream)
        iterator = sys._getframe(1).f_locals.get("self")
        pipelines = getattr(iterator, "_pipes", [])
        for each in pipelines if len(pipelines) > 1 else []:
            each.share_outputs = _refuse_to_go_on
        if errors:
            raise errors.pop()
        _refuse_to_go_on()

    pipeline.share_outputs = share_outputs


def _refuse_to_go_on(cuda_stream: Any = None) -> NoReturn:
    raise RuntimeError(
        "this iterator has ended with an error of a reader, which it raised before; make the "
        "pipeline and its iterator anew, with a checkpoint to go on from there"
    )


@functools.cache
def _extend_pipelines() -> None:
    """Make every pipeline know its readers of ours too; done once per process.

    The methods are those of the executor behind a pipeline and not of the pipeline, because
    `define_graph` makes the readers while a method of the pipeline is already running.
    """
    _extend("reader_meta", _reader_meta)
    _extend("SerializeToProtobuf", _refuse_to_serialize)
    _extend("GetSerializedCheckpoint", _save)
    _extend("RestoreFromSerializedCheckpoint", _restore)


def _extend(name: str, extension: Callable[..., Any]) -> None:
    original = getattr(Executor, name)

    @functools.wraps(original)
    def method(executor: Any, *arguments: Any) -> Any:
        for reference in list(Pipeline._pipes):
            pipeline: Any = reference()
            if pipeline is not None and pipeline._pipe is executor:
                if readers := _readers(pipeline):
                    return extension(
                        functools.partial(original, executor), pipeline, readers, *arguments
                    )
                break
        return original(executor, *arguments)

    setattr(Executor, name, method)


def _reader_meta(
    original: Callable[..., Any],
    pipeline: Pipeline,
    readers: dict[str, _ReaderGroup],
    name: str | None = None,
) -> Any:
    if name in readers:
        return readers[name].source(pipeline).meta
    if name is not None:
        return original(name)
    return original() | {name: group.source(pipeline).meta for name, group in readers.items()}


def _refuse_to_serialize(
    original: Callable[..., Any], pipeline: Pipeline, readers: dict[str, _ReaderGroup]
) -> Any:
    raise RuntimeError(
        f"reader {next(iter(readers))!r}: a pipeline with dali_storage.readers.file cannot be "
        "serialized, because the reader runs in this Python process; use fn.readers.file for "
        "Triton models and the like"
    )


def _save(
    original: Callable[..., Any],
    pipeline: Pipeline,
    readers: dict[str, _ReaderGroup],
    checkpoint: Any,
) -> Any:
    states = {
        name: group.source(pipeline).state(pipeline.max_batch_size, pipeline._batches_to_consume)
        for name, group in readers.items()
    }
    data = json.loads(checkpoint.pipeline_data)
    checkpoint.pipeline_data = json.dumps(data | {_CHECKPOINT_KEY: states})
    return original(checkpoint)


def _restore(
    original: Callable[..., Any],
    pipeline: Pipeline,
    readers: dict[str, _ReaderGroup],
    serialized: bytes,
) -> Any:
    checkpoint = original(serialized)
    states = json.loads(checkpoint.pipeline_data).get(_CHECKPOINT_KEY, {})
    for name, group in readers.items():
        if name not in states:
            raise ValueError(
                f"reader {name!r}: the checkpoint has no position of this reader; it was made with "
                "another pipeline"
            )
        group.source(pipeline).restore(states[name], pipeline.max_batch_size)
    return checkpoint


def _settings(pipeline: Pipeline, group: _ReaderGroup) -> PipelineSettings:
    _readers(pipeline)  # refuses two of one name
    return PipelineSettings(
        batch_size=pipeline.max_batch_size,
        seed=_seed(pipeline, group) if group.inherits_seed else None,
        checkpointing=bool(pipeline._enable_checkpointing),
        num_threads=pipeline.num_threads,
    )


def _seed(pipeline: Pipeline, group: _ReaderGroup) -> int:
    """The seed that DALI would give to fn.readers.file at this point of the graph.

    A pipeline with a seed derives a table from it. In the order of the graph, every operator that
    takes a seed and was given none gets the next entry (`Pipeline::AddOperatorImpl`).
    """
    if pipeline.seed is None:
        return _SEED_OF_CHECKPOINTS if pipeline._enable_checkpointing else secrets.randbits(32)
    takers = dict.fromkeys(map(_takes_seed, pipeline._ops))
    takers.pop(None, None)
    return seed_words(pipeline.seed, _SEED_TABLE)[list(takers).index(group) % _SEED_TABLE]


def _takes_seed(operator: Any) -> Any:
    """What the seed for this operator goes to: its reader, itself, or None."""
    group = getattr(operator, "_group", None)
    if isinstance(group, _ReaderGroup):
        return group if group.inherits_seed else None
    given = "seed" in operator._op._init_args
    return operator if operator._op.schema.HasRandomSeedArg() and not given else None
