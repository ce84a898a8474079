"""The batches of a pipeline, from any position on; uses only public calls of the pipeline."""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ...contract.faces import explained
from ...dali.group import has_other_sources
from ...observing.meter import Meter, meter_of
from ...order.epochs import Epochs, LastBatch
from ...ranks import Shard
from ...saving import positions
from . import culprits
from .state import Identity
from .suitable import readers_of
from .tensors import Convert, convert


class PipelineRun:
    """The batches of one built pipeline.

    Attributes:
        pipeline: the pipeline.
        epochs: the epochs of its batches.
        identity: description of the delivered batches.
        sound: False while a method works, and for good after an interruption or a failed operator.
            Then batches may be lost: close this object, and make a new pipeline.
    """

    def __init__(
        self,
        pipeline: Any,
        reader_name: str,
        last_batch: LastBatch,
        shard: Shard,
        to: Convert,
        states: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Take over a built pipeline; close its readers on an error.

        The readers resume from `states`, which may be of other ranks.

        Raises:
            ValueError: the pipeline cannot be used, or the states do not fit its readers.
        """
        self.pipeline = pipeline
        self.sound = True
        self._to = to
        self._sources = readers_of(pipeline, reader_name, shard)
        self._source = self._sources[reader_name]
        try:
            meta, batch_size = self._source.meta, pipeline.max_batch_size
            catalog = self._source.open().catalog
            self._resume(states)
            self.epochs = Epochs(meta, batch_size, last_batch, self._source.rest)
        except BaseException:
            self.close()
            raise
        self.identity = Identity(
            samples=meta["epoch_size"],
            names=catalog.checksum(),
            batch_size=batch_size,
            world=shard.world,
            rank=shard.rank,
            last_batch=last_batch,
        )
        for each in self._sources.values():
            each.position.successor = self.epochs.successor
        self._ahead = deque[int]()  # positions of the batches that DALI works on
        self._failed_read: Exception | None = None

    def move(self, epoch: int, batch: int) -> None:
        """Make this batch the next one; drop other batches that DALI works on.

        If a dropped batch has failed, the pipeline is not sound.
        """
        position = self.epochs.position(epoch, batch)
        if position == (self._ahead[0] if self._ahead else self._source.position.next):
            return
        self.sound = False
        self._failed_read = None
        for each in self._sources.values():
            each.position.seek(position)
        try:
            while not self.pipeline.empty():
                self.pipeline.share_outputs()
                self.pipeline.release_outputs()
        except Exception:  # an operator's; nobody has requested its batch
            return
        self._forget_ahead()
        self.sound = self._in_step()

    def take(self) -> tuple[Any, ...]:
        """Return the next batch, with padding, and have DALI begin another one.

        If an operator fails, and the reader has on_error="replace", the failing samples are found
        and replaced, and the batch is remade.

        Raises:
            OSError: a sample of the next batch cannot be read. The next call tries again, unless
                the pipeline has other sources, which have then lost a batch.
            Exception: an operator has failed; a note names the files of the batch.
        """
        self.sound = False
        self._fill()
        if not self._ahead:
            self.sound = self._in_step()
            error, self._failed_read = self._failed_read, None
            assert error is not None
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        try:
            outputs = self.pipeline.share_outputs()
        except Exception as error:
            error.add_note(culprits.describe(self._sources.values(), self._ahead[0]))
            if not isinstance(error, RuntimeError) or not self._replace_culprits():
                raise
            outputs = None
        if outputs is None:
            return self.take()
        self.pipeline.release_outputs()  # the dynamic executor leaves outputs intact
        self._ahead.popleft()
        self._fill()
        self.sound = True
        return convert(outputs, self._to)

    @property
    def place(self) -> tuple[int, int]:
        """The epoch of the next batch for DALI, and the number of the batch in the epoch."""
        return divmod(self._source.position.next, self.epochs.rounds)

    def states(self) -> dict[str, dict[str, Any]]:
        """The states of the readers at the next batch."""
        return {
            name: positions.state(each, len(self._ahead)) for name, each in self._sources.items()
        }

    def set_weights(self, wanted: Mapping[Any, Any], at: int | None) -> int:
        """See `Loader.set_weights()`; sets the weights of all readers."""
        with explained():
            from ...saving.weights import place_of, require_change, set_weights
        if at is None:  # the same on all ranks; one may skip a batch at the end of an epoch
            first = self._ahead[0] if self._ahead else self._source.position.next
            behind = self.epochs.after(first, self.pipeline.prefetch_queue_depth)
            at = place_of(self._source, behind)
        for each in self._sources.values():
            at = require_change(each, wanted, at)
        for each in self._sources.values():
            set_weights(each, wanted, at)
        return at

    def leave(self) -> dict[str, Any]:
        """Return weights set while running, and ledgers without undelivered batches, by reader."""
        self._forget_ahead()
        sources = self._sources.items()
        return {name: (each.open().ordering.changes, each.ledger) for name, each in sources}

    def go_on(self, left: Mapping[str, Any]) -> None:
        """Go on with what another run of the pipeline has left."""
        for name in self._sources.keys() & left.keys():
            changes, self._sources[name].ledger = left[name]
            positions.replay(self._sources[name], changes)

    def receipt(self, epoch: int | None, source: Any) -> dict[str, Any]:
        """See `Loader.receipt()`."""
        return self._source.ledger.receipt(self._source, len(self._ahead), epoch, source)

    def _forget_ahead(self) -> None:
        """Forget the batches that DALI works on, which reach nobody."""
        for each in self._sources.values():
            each.ledger.drop(len(self._ahead))
        self._ahead.clear()

    @property
    def storage_seconds(self) -> float:
        """Seconds for which DALI has waited for the storage until now."""
        return sum(meter_of(each.observer).waited for each in self._sources.values()) / 1e9

    @property
    def meter(self) -> Meter:
        """Counts and times the reader."""
        return meter_of(self._source.observer)

    def close(self) -> None:
        """Close the readers. The rest of the pipeline ends with its last reference."""
        for each in self._sources.values():
            each.close()

    def _resume(self, states: Mapping[str, Mapping[str, Any]] | None) -> None:
        """Resume the readers from states, or else start with whole epochs."""
        if states is not None and states.keys() != self._sources.keys():
            raise ValueError(
                f"the state is of readers named {', '.join(sorted(states))}, but the pipeline has "
                f"{', '.join(sorted(self._sources))}: load it into a Loader of the same pipeline"
            )
        for name, each in self._sources.items():
            each.rest = None  # possibly set by the checkpoint of the pipeline
            if states is not None:
                positions.resume(each, states[name])

    def _in_step(self) -> bool:
        """Return False if a failed read has put the readers and other sources out of step."""
        return not any(each.ended for each in self._sources.values())

    def _fill(self) -> None:
        """Have DALI work on as many batches as its queue holds.

        The first `schedule_run()` of a pipeline fills the queue, every later one adds a batch. The
        error of a failed read is raised after the batches before.
        """
        while not self._failed_read and len(self._ahead) < self.pipeline.prefetch_queue_depth:
            position = begin = self._source.position.next
            try:
                self.pipeline.schedule_run()
                if self._source.position.next == begin:
                    raise RuntimeError(
                        "another source of this pipeline has ended (StopIteration); a Loader needs "
                        "endless sources"
                    )
            except Exception as error:
                # Without its traceback, whose frames would keep the pipeline alive.
                self._failed_read = error.with_traceback(None)
            while position != self._source.position.next:
                self._ahead.append(position)
                position = self.epochs.successor(position)

    def _replace_culprits(self) -> bool:
        """Find samples of the next batch that fail alone, and replace them; True if any did."""
        substitute, position = self._source.substitute, self._ahead[0]
        if not substitute.replaces or has_other_sources(self.pipeline):  # others give whole batches
            return False
        samples = np.unique(culprits.samples_of(self._source, position))
        while not self.pipeline.empty():
            with suppress(RuntimeError):  # of other samples; their batches are remade
                self.pipeline.share_outputs()
                self.pipeline.release_outputs()
        try:
            found = culprits.find(self.pipeline, self._source, samples)
        finally:
            self._failed_read = None
            self._source.position.seek(position)
            self._forget_ahead()
        substitute.add(found)
        return bool(found)
