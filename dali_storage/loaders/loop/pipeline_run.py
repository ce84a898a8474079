"""The batches of a pipeline, from any position on; uses only public calls of the pipeline."""

import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from ...contract._types import IntArray
from ...contract.errors import RecordError
from ...contract.faces import explained
from ...dali import failure, has_other_sources, source
from ...observing.observer import observed
from ...observing.tally import Tally
from ...ranks import Shard
from ...reading.source import BatchStream
from ...saving import positions
from .epochs import Epochs, LastBatch
from .state import Identity
from .tensors import Convert, convert

_NAMED = 256  # most files listed in an error; DALI does not name the file of a failure


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
        self._sources = _sources(pipeline, reader_name)
        self._source = self._sources[reader_name]
        try:
            _check(pipeline, reader_name, shard)
            _refuse_replacing_one_of(self._sources)
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
            error.add_note(self._describe(self._ahead[0]))
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
            from ...saving import weights
        if at is None:  # the same on all ranks; one may skip a batch at the end of an epoch
            first = self._ahead[0] if self._ahead else self._source.position.next
            behind = self.epochs.after(first, self.pipeline.prefetch_queue_depth)
            at = weights.place_of(self._source, behind)
        for each in self._sources.values():
            at = weights.require_change(each, wanted, at)
        for each in self._sources.values():
            weights.set_weights(each, wanted, at)
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
        return positions.receipt(self._source, len(self._ahead), epoch, source)

    def _forget_ahead(self) -> None:
        """Forget the batches that DALI works on, which reach nobody."""
        for each in self._sources.values():
            if each.ledger is not None:
                each.ledger.drop(len(self._ahead))
        self._ahead.clear()

    @property
    def storage_seconds(self) -> float:
        """Seconds for which DALI has waited for the storage until now."""
        tallies = [observed(each.observer).tally for each in self._sources.values()]
        return sum([tally.waited for tally in tallies if tally is not None])

    @property
    def tally(self) -> Tally | None:
        """The counters of the reader; None before the first batch."""
        return observed(self._source.observer).tally

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
        """Find samples of the next batch that fail alone, and replace them; True if any did.

        DALI does not name failing samples. The search runs the pipeline itself on smaller batches:
        half of the remaining samples, then a quarter. So random operators advance.
        """
        substitute, position = self._source.substitute, self._ahead[0]
        if not substitute.replaces or has_other_sources(self.pipeline):  # others give whole batches
            return False
        samples = np.unique(self._samples(self._source, position))
        catalog = self._source.open().catalog
        found: dict[int, Exception] = {}
        while not self.pipeline.empty():
            with suppress(RuntimeError):  # of other samples; their batches are remade
                self.pipeline.share_outputs()
                self.pipeline.release_outputs()
        parts = np.array_split(samples, 2)
        try:
            while parts:
                part = parts.pop()
                substitute.only = part
                error = self._failure() if part.size else None
                if error and part.size > 1:
                    parts += np.array_split(part, 2)
                elif error:
                    path = catalog.path(int(part[0]) * catalog.pieces)
                    found[int(part[0])] = RecordError(path, failure(error))
        finally:
            substitute.only, self._failed_read = None, None
            self._source.position.seek(position)
            self._forget_ahead()
        substitute.add(found)
        return bool(found)

    def _failure(self) -> Exception | None:
        """The error of the next batch."""
        self.pipeline.schedule_run()
        try:
            self.pipeline.share_outputs()
        except RuntimeError as error:
            return error.with_traceback(None)
        self.pipeline.release_outputs()
        return None

    def _samples(self, source: BatchStream, position: int) -> IntArray:
        return source.substitute.chosen(source.samples(position))

    def _describe(self, position: int) -> str:
        names, places = [], []
        for each in self._sources.values():
            catalog = each.open().catalog
            rows = catalog.pieces_of(self._samples(each, position)).tolist()
            for row in dict.fromkeys(rows):  # padding repeats the last one
                names.append(os.path.abspath(os.fsdecode(catalog.path(row))))
                places.append(f" ({where})" if (where := catalog.where(row)) else "")
        folder = os.path.commonpath([os.path.dirname(name) for name in names])
        listed = list(zip(names, places, strict=True))[:_NAMED]
        shown = [os.path.relpath(name, folder) + place for name, place in listed]
        more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f"the files of the batch, in {folder}: {', '.join(shown)}{more}"


def _sources(pipeline: Any, reader_name: str) -> dict[str, BatchStream]:
    """The readers of a pipeline by name, `reader_name` first."""
    sources = {reader_name: source(pipeline, reader_name)}
    try:
        for name in pipeline.reader_meta():
            sources[name] = source(pipeline, name)
    except ValueError as error:
        for each in sources.values():
            each.close()
        error.add_note(
            "a Loader moves all readers of its pipeline to another epoch, and DALI's own readers "
            "cannot be moved: use dali_storage.readers"
        )
        raise
    return sources


def _refuse_replacing_one_of(sources: Mapping[str, BatchStream]) -> None:
    """Refuse on_error="replace" with several readers: an image would lose its mask."""
    wishes = {name: each.opening.on_error for name, each in sources.items()}
    replacing = [name for name, wish in wishes.items() if wish is not None and wish.replace]
    if replacing and len(sources) > 1:
        raise ValueError(
            f"reader {replacing[0]!r}: on_error='replace' works on one reader, but the samples of "
            f"{', '.join(map(repr, sources))} belong together: use one readers.columns, "
            "or one container (readers.webdataset)"
        )


def _check(pipeline: Any, reader_name: str, shard: Shard) -> None:
    """Refuse an unsuitable pipeline.

    Raises:
        ValueError: names the argument to change.
    """
    metas = pipeline.reader_meta()
    meta = metas[reader_name]
    for name, other in metas.items():
        if other != meta:
            raise ValueError(
                f"all readers in a Loader's pipeline must have the same size, shard and padding: "
                f"{reader_name!r} has {meta}, {name!r} has {other}"
            )
    here, asked = (meta["shard_id"], meta["number_of_shards"]), (shard.rank, shard.world)
    if here != asked:
        raise ValueError(
            f"reader {reader_name!r}: make() was called with shard_id={asked[0]}, num_shards="
            f"{asked[1]}, but the reader has shard_id={here[0]}, num_shards={here[1]}: pass both "
            "to the reader"
        )
    if not meta["pad_last_batch"]:
        raise ValueError(
            f"reader {reader_name!r} needs pad_last_batch=True; otherwise an epoch begins "
            "within a batch"
        )
    if not pipeline.exec_dynamic:
        raise ValueError(
            "the pipeline does not use DALI's dynamic executor, and others overwrite tensors still "
            "in use: remove exec_dynamic=False, exec_async=False, exec_pipelined=False, "
            "and separate sizes of prefetch_queue_depth"
        )
    try:
        pipeline.checkpoint()
    except RuntimeError as error:
        raise ValueError(f"make the pipeline with enable_checkpointing=True ({error})") from None
