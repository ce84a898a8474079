"""Seeds, metadata and checkpoints of the readers in a pipeline; it cannot be serialized."""

import functools
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from nvidia.dali.backend import Pipeline as Executor
from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.base_iterator import _DaliBaseIterator

from ..contract.faces import explained
from . import compat
from .group import ReaderGroup, readers_of
from .seeds import with_takers

_CHECKPOINT_KEY = "dali_storage"
_Method: TypeAlias = Callable[..., Any]
_Readers: TypeAlias = dict[str, ReaderGroup]

_saved = weakref.WeakSet[Pipeline]()  # pipelines whose checkpoints have our readers


@functools.cache
def extend_pipelines() -> None:
    """Add our readers to the seeds, metadata and checkpoints of all pipelines; once per process."""
    # Methods of the executor, not of the pipeline: `define_graph` makes the readers while a method
    # of the pipeline is already running.
    _extend("reader_meta", _reader_meta)
    _extend("SerializeToProtobuf", _refuse_to_serialize)
    _extend("GetSerializedCheckpoint", _save)
    _extend("RestoreFromSerializedCheckpoint", _restore)
    Pipeline._init_pipeline_backend = _seeding(Pipeline._init_pipeline_backend)
    Pipeline.checkpoint = _saved_in(Pipeline.checkpoint, lambda pipeline: [pipeline])
    iterators = _DaliBaseIterator
    iterators.checkpoints = _saved_in(iterators.checkpoints, lambda it: it._pipes)


def _seeding(original: _Method) -> _Method:
    """A method that adds the pipeline's operators to its executor, and those of our seeds."""

    @functools.wraps(original)
    def method(pipeline: Any) -> None:
        operators = pipeline._ops
        pipeline._ops = [*with_takers(operators)]
        try:
            original(pipeline)
        finally:
            pipeline._ops = operators

    return method


def _saved_in(original: _Method, pipelines: Callable[[Any], list[Pipeline]]) -> _Method:
    """A method that returns checkpoints, and refuses any without our readers' positions."""

    @functools.wraps(original)
    def method(it: Any, *arguments: Any, **named: Any) -> Any:
        result = original(it, *arguments, **named)
        for pipeline in pipelines(it):
            if readers_of(pipeline) and pipeline not in _saved:
                what = f"DALI {compat.VERSION} made a checkpoint without dali_storage's readers"
                raise RuntimeError(f"{what}; {compat.REMEDY}")
        return result

    return method


def _extend(name: str, extension: Callable[..., Any]) -> None:
    """Replace a method by `extension`, which gets the original, in pipelines with our readers."""
    original = getattr(Executor, name)

    @functools.wraps(original)
    def method(executor: Any, *arguments: Any) -> Any:
        bound = functools.partial(original, executor)
        for reference in list(Pipeline._pipes):
            pipeline: Any = reference()
            if pipeline and pipeline._pipe is executor and (readers := readers_of(pipeline)):
                return extension(bound, pipeline, readers, *arguments)
        return bound(*arguments)

    setattr(Executor, name, method)


def _reader_meta(original: _Method, pipeline: Any, readers: _Readers, name: Any = None) -> Any:
    if name in readers:
        return readers[name].source(pipeline).meta
    if name is not None:
        return original(name)
    return original() | {name: group.source(pipeline).meta for name, group in readers.items()}


def _refuse_to_serialize(original: _Method, pipeline: Any, readers: _Readers) -> Any:
    name, group = next(iter(readers.items()))
    raise RuntimeError(
        f"reader {name!r}: a pipeline with dali_storage.readers.{group.operator} cannot be "
        "serialized, because the reader runs in this Python process; use DALI's own reader for "
        "Triton models and the like"
    )


@explained()
def _save(original: _Method, pipeline: Any, readers: _Readers, checkpoint: Any) -> Any:
    from ..saving.positions import checkpoint as checkpoint_of

    states = {
        name: checkpoint_of(group.source(pipeline), pipeline._batches_to_consume)
        for name, group in readers.items()
    }
    data = compat.load(checkpoint.pipeline_data)
    checkpoint.pipeline_data = compat.dump(data | {_CHECKPOINT_KEY: states})
    _saved.add(pipeline)
    return original(checkpoint)


@explained()
def _restore(original: _Method, pipeline: Any, readers: _Readers, serialized: bytes) -> Any:
    from ..saving.positions import restore
    from .resume import extend_iterators_to_resume

    extend_iterators_to_resume()
    checkpoint = original(serialized)
    states = compat.load(checkpoint.pipeline_data).get(_CHECKPOINT_KEY, {})
    for name, group in readers.items():
        if name not in states:
            raise ValueError(
                f"reader {name!r}: the checkpoint has no position of this reader, because another "
                "pipeline made it; use a checkpoint of this pipeline"
            )
        restore(group.source(pipeline), states[name])
    return checkpoint
