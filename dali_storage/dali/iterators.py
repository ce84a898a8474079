"""Errors of readers under DALI's iterators (nvidia/dali/plugin/base_iterator.py)."""

from __future__ import annotations

import sys
import weakref
from typing import Any, NoReturn

from nvidia.dali.pipeline import Pipeline


def raise_in_turn(pipeline: Pipeline, error: Exception) -> None:
    """Make the iterator over `pipeline` deliver the batches it has scheduled, then raise `error`.

    The caller raises StopIteration, so that DALI schedules no more batches until the pipeline is
    reset. An iterator over several pipelines has then taken a batch of another one, which is
    lost: it ends for good.
    """
    errors = [error]
    cause = f"{type(error).__name__}: {error}"
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
            each.share_outputs = each._get_checkpoint = refuse_several
        if errors:
            raise errors.pop()
        raise RuntimeError(
            f"this iterator has ended, because a reader failed ({cause}); reset the pipeline to "
            "try again, or make it anew from a checkpoint"
        )

    def refuse_several(*arguments: Any, **options: Any) -> NoReturn:
        raise RuntimeError(
            f"this iterator has ended, because a reader failed ({cause}), and lost a batch of "
            "another pipeline; make the pipelines anew, from an earlier checkpoint"
        )

    pipeline.share_outputs = share_outputs
