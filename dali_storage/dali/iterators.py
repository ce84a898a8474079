"""Failed reads under DALI's iterators (nvidia/dali/plugin/base_iterator.py), and held batches."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from nvidia.dali.pipeline import Pipeline
from nvidia.dali.plugin.base_iterator import _DaliBaseIterator
from nvidia.dali.types import PipelineAPIType

_HELD = "_first_batch", "_peek"  # attributes in which an iterator keeps a batch for the user

_iterators = weakref.WeakKeyDictionary[Pipeline, "weakref.ref[Any]"]()


@functools.cache
def extend_iterators() -> None:
    """Keep DALI's iterators from losing batches when a read fails; done once per process.

    An iterator schedules the next batches before returning the current ones, so an error in between
    would lose them. Therefore the error is raised later, when the pipeline has no batch left.
    """
    original = _DaliBaseIterator._get_outputs

    @functools.wraps(original)
    def get_outputs(iterator: Any) -> Any:
        if not iterator._ever_scheduled:
            iterator._schedule_runs(False)
        if not 0 < iterator._size <= iterator._counter:  # otherwise the epoch ends first
            # Before any pipeline returns a batch, which would be lost with the error of the next.
            for pipeline in iterator._pipes:
                if "_failed_read" in vars(pipeline) and pipeline.empty():
                    _raise_or_schedule(pipeline)
        return original(iterator)

    base = _DaliBaseIterator
    base._get_outputs = get_outputs
    base._extract_from_reader_and_validate = then(base._extract_from_reader_and_validate, _note)


def not_delivered(pipeline: Pipeline) -> int:
    """Number of batches between the pipeline's readers and the user."""
    reference = _iterators.get(pipeline)
    iterator = reference and reference()
    held = sum(getattr(iterator, name, None) is not None for name in _HELD)
    return int(pipeline._batches_to_consume + held)


def drain(pipeline: Pipeline, error: Exception) -> None:
    """Defer `error` until all earlier batches are delivered; the caller stops the pipeline."""
    # The frames of the traceback would keep the pipeline alive.
    pipeline._failed_read = error.with_traceback(None)
    # Called at the end of an epoch, at which other sources would begin again.
    pipeline.reset = lambda: None


def _raise_or_schedule(pipeline: Any) -> None:
    if pipeline._failed_read is None:  # already raised
        del pipeline._failed_read
        with pipeline._check_api_type_scope(PipelineAPIType.ITERATOR):
            pipeline.schedule_run()
    if pipeline.empty() and (error := getattr(pipeline, "_failed_read", None)):
        # None, and not deleted: the next call then schedules the pipeline again.
        pipeline._failed_read = None
        del pipeline.reset
        # As `reset()` does, but without a new epoch.
        pipeline._first_iter, pipeline._last_iter = True, False
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


def then(original: Callable[..., Any], more: Callable[[Any], None]) -> Callable[..., Any]:
    """A method of iterators, followed by `more`."""

    @functools.wraps(original)
    def method(iterator: Any) -> None:
        original(iterator)
        more(iterator)

    return method


def _note(iterator: Any) -> None:
    for pipeline in iterator._pipes:
        _iterators[pipeline] = weakref.ref(iterator)
