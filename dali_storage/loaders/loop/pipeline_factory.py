"""The pipeline of a Loader: made at the first use, and remade after a failure or for a state."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nvidia.dali import Pipeline

from ...observing.meter import Meter
from ...observing.statistics import StageTimes
from ...order.epochs import LastBatch
from ...ranks import Shard
from ...runtime.histogram import Histogram
from .pipeline_run import PipelineRun
from .state import Identity, State
from .tensors import Convert


class PipelineFactory:
    """The maker of a Loader's pipeline; keeps one pipeline open, and refuses to work in a fork."""

    def __init__(
        self,
        make: Callable[..., Any],
        reader_name: str,
        last_batch: LastBatch,
        to: Convert,
        shard: Shard | None,
    ) -> None:
        """Make no pipeline yet; for the arguments see Loader."""
        self._make = make
        self._reader_name = reader_name
        self._last_batch: LastBatch = last_batch
        self._to = to
        self._shard = shard
        self._process = os.getpid()
        self._closed = False
        self._batches: PipelineRun | None = None
        self._identity: Identity | None = None
        self._meter: Meter | None = None  # of the last pipeline
        self._checkpoint: bytes | None = None  # for the next pipeline
        self._resumed: State | None = None  # of the rest of an epoch that other ranks began
        self._left: dict[str, Any] = {}  # by the last pipeline, see `PipelineRun.leave()`

    @property
    def broken(self) -> bool:
        """True if the pipeline must be remade."""
        return self._batches is not None and not self._batches.sound

    def at(self, epoch: int, batch: int) -> PipelineRun:
        """The pipeline, moved to this batch."""
        batches = self.batches(epoch, batch)
        batches.move(epoch, batch)
        if not batches.sound:  # a dropped batch has failed
            batches = self.batches()
            batches.move(epoch, batch)
        return batches

    def restore(self, state: State) -> PipelineRun:
        """Make the pipeline from a state; after a failure, the next pipeline ignores the state.

        Raises:
            ValueError: the state does not fit this Loader.
        """
        shard = self.shard()
        if state.last_batch != self._last_batch:
            raise ValueError(
                f"the state was saved with last_batch={state.last_batch!r}, but this Loader has "
                f"last_batch={self._last_batch!r}: load the state with the same option"
            )
        checkpoint = state.checkpoint()
        before = self._checkpoint
        if self._batches and self._batches.sound:
            before = self._batches.pipeline.checkpoint()
        own = (state.rank, state.world) == (shard.rank, shard.world)
        try:
            batches = self._renew(checkpoint if own else None, state)
        except BaseException:
            self._drop()
            self._checkpoint = before
            raise
        # From now on, the state goes with checkpoints of this pipeline.
        self._resumed = replace(state, batch_size=batches.identity.batch_size)
        return batches

    def shard(self) -> Shard:
        """The shard of this process.

        Raises:
            RuntimeError: the pipeline was made for another shard.
        """
        self.refuse_unusable()
        shard = self._shard or Shard.here()
        made = self._identity
        if made and (made.rank, made.world) != (shard.rank, shard.world):
            raise RuntimeError(
                f"this Loader was first used in rank {made.rank} of {made.world}, but the process "
                f"is rank {shard.rank} of {shard.world} now: use the Loader only after the process "
                "group is initialised, or pass shard="
            )
        return shard

    def histograms(self) -> dict[str, Histogram]:
        """The durations of each stage of the reader; empty before the first read."""
        meter = self._batches.meter if self._batches else self._meter
        return {} if meter is None else meter.histograms()

    @property
    def generation(self) -> object:
        """Differs after a reset of the reader's counters, and for another reader."""
        meter = self._batches.meter if self._batches else self._meter
        return None if meter is None else meter.times.generation

    def times(self, before: tuple[object, Mapping[str, Histogram]]) -> dict[str, StageTimes]:
        """The durations since a `generation` and its `histograms()`; all, if they were reset."""
        earlier = before[1] if before[0] is self.generation else {}
        now = self.histograms().items()
        found = {name: StageTimes.of(it.since(earlier.get(name))) for name, it in sorted(now)}
        return {name: times for name, times in found.items() if times.count}

    def close(self) -> None:
        """Close the pipeline's reader for good; may be called twice."""
        if os.getpid() == self._process:
            self._closed = True
            self._drop()

    def batches(self, epoch: int | None = None, batch: int = 0) -> PipelineRun:
        """The pipeline at any position; made if there is no sound pipeline.

        Also remade if the pipeline has only the rest of an epoch, and this batch comes before.
        """
        self.refuse_unusable()
        batches = self._batches
        if batches is None or not batches.sound:
            batches = self._renew(self._checkpoint, self._resumed)
            batches.go_on(self._left)
        if epoch is not None and not batches.epochs.reaches(epoch, batch):
            self._resumed = None
            batches = self._renew(batches.pipeline.checkpoint(), None)
        return batches

    def refuse_unusable(self) -> None:
        """Raise RuntimeError in a fork, and after `close()`."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"this Loader belongs to process {self._process}, and its pipeline does not work "
                f"in the forked process {os.getpid()}: make the Loader in the process that uses it"
            )
        if self._closed:
            raise RuntimeError("this Loader is closed: make a new one")

    def _renew(self, checkpoint: bytes | None, state: State | None) -> PipelineRun:
        """Close any pipeline, and make a new one.

        The checkpoint is for this rank, and ignored if its batch size is not the pipeline's.
        """
        self._drop()
        shard, readers = self.shard(), state.readers if state else None
        try:
            pipeline = self._call_make(checkpoint, shard)
            if checkpoint and state and state.batch_size != pipeline.max_batch_size:
                del pipeline  # closes its readers
                pipeline = self._call_make(None, shard)
            pipeline.build()
        except RuntimeError as error:
            if checkpoint is None or "checkpoint" not in str(error):
                raise
            raise ValueError(
                "the state does not fit the pipeline that make() returns: it was saved with other "
                "operators or another version of DALI, or is damaged; use the pipeline and DALI "
                "that saved it"
            ) from error
        batches = PipelineRun(
            pipeline, self._reader_name, self._last_batch, shard, self._to, readers
        )
        if self._identity not in (None, batches.identity):
            batches.close()
            raise RuntimeError(
                "make() returned another pipeline when called again: "
                f"{batches.identity} instead of {self._identity}; make a new Loader"
            )
        self._identity = batches.identity
        self._batches, self._checkpoint = batches, None
        if self._closed:  # by another thread, meanwhile
            self._drop()
            self.refuse_unusable()
        return batches

    def _call_make(self, checkpoint: bytes | None, shard: Shard) -> Pipeline:
        arguments = {"shard_id": shard.rank, "num_shards": shard.world}
        try:
            pipeline = self._make(checkpoint=checkpoint, **arguments)
        except (AssertionError, TypeError) as error:  # DALI asserts that arguments are known
            error.add_note(
                f"Loader calls make(checkpoint=None or bytes, {arguments}): checkpoint is for the "
                "pipeline, the others are for readers.file"
            )
            raise
        if not isinstance(pipeline, Pipeline):
            raise TypeError(f"make() must return a pipeline of DALI, not {pipeline!r}")
        return pipeline

    def _drop(self) -> None:
        batches, self._batches = self._batches, None
        if batches:
            self._left, self._meter = batches.leave(), batches.meter
            batches.close()
