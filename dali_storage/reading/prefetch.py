"""Reading ahead: the threads, memory and lifetimes, so that backends own none of these."""

import contextlib
import copy
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import RecordError
from ..contract.format import Format
from ..contract.reader import Reader
from ..contract.stages import begin, enter, leave, note
from ..contract.views import Contents, Views, copied
from ..observing.activity import Activities
from ..observing.statistics import ReaderStatistics, Tally
from ..order.sequence import Batches
from ..runtime.waiting import take
from .batches import read_batch
from .buffers import BufferPool
from .lanes import Gate, Lanes, spare_processors
from .position import next_index
from .replacement import Members, OnError, Replacement, is_of_sample, require_whole


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A batch after reading. Its buffer is reused when the last reference dies.

    Attributes:
        samples: int64[n], indices of delivered samples, see `Catalog`.
        nbytes: the sum of the pieces' sizes.
        outputs: the outputs of the format, each with n samples: slices of one leased buffer, or
            copies.
    """

    samples: IntArray
    nbytes: int
    outputs: Sequence[Contents]


@dataclass(slots=True, eq=False)
class _Job:
    """A batch to read: a lane sets the outcome, then signals the caller by `done`.

    Not a Future, which is written in Python: a Ctrl-C may leave a Future locked for good.
    """

    index: int
    wanted: bool = True
    samples: IntArray | None = None
    outcome: LoadedBatch | Exception | None = None
    done: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Prefetcher:
    """Reads batches ahead of the caller, in up to as many threads as the reader has lanes.

    If the caller gets batch after batch, each is read once, in order. Any other batch is available
    too; then batches read ahead are dropped unless they follow the new one.
    """

    def __init__(
        self,
        catalog: Catalog,
        reader: Reader,
        order: Batches,
        depth: int,
        *,
        pool: BufferPool | None = None,
        dali_threads: int = 0,
        fmt: Format | None = None,
        gate: Gate | None = None,
        views: Collection[int] = (),
        on_error: OnError | None = None,
        members: Members | None = None,
        activities: Activities | None = None,
    ) -> None:
        """Take over `reader`, which `close()` closes; read `depth` batches ahead, or one per lane.

        `pool` has the memory, by default from `reader.allocate()`. `dali_threads` is the number of
        the pipeline's threads, which need processors too. `fmt` makes the outputs; by default they
        are the samples' bytes. `gate` is for cooperative readers without `copying_lanes`. `views`:
        the numbers of the outputs that may be the reader's own memory, because nobody writes to
        them. `on_error`: the handling of bad samples; by default they are errors. `members`: of
        `Replacement`. `activities`: of the lanes, for observers.
        """
        self._broken = on_error.broken if on_error else None
        replace = on_error if on_error and on_error.replace else None
        self.replacement = None if replace is None else Replacement(catalog, replace, members)
        self._catalog = catalog
        self._format = fmt or Format()
        self._reader = reader
        self._order = order
        self._depth = max(depth, reader.lanes)
        self._pool = pool or BufferPool(reader.allocate)
        self._views = views if reader.has_views else ()
        # For batches without a lane. The lanes' own goes ahead of it.
        self._first_order = copy.deepcopy(order) if self._views else None
        self._own_order: Batches | None = None
        self._ahead: dict[int, _Job] = {}
        self.activities = activities or Activities("Reader", reader.lanes)
        bad = () if self.replacement is None else self.replacement.bad
        self.tally = Tally(self.activities, self._depth, bad, reader.times)
        self.on_close: Callable[[], object] = lambda: None
        self._lanes = Lanes(
            reader.lanes,
            turns=copying_lanes(reader, dali_threads),
            begin=self._begin,
            work=self._work,
            gate=gate if reader.cooperative and not reader.copying_lanes else None,
            activities=self.activities.lanes,
        )
        reader.yield_turn = self._lanes.yield_turn

    def get(self, index: int, successor: Callable[[int], int] = next_index) -> LoadedBatch:
        """Return batch `index`; block until the batch is read. After an error, read again.

        The batches that follow by `successor` are read ahead.
        """
        if self.replacement is not None and self.replacement.only is not None:
            return self._read_only(self.replacement.only)
        samples = None if index in self._ahead else self._hot_samples(index)
        ready = self._submit_ahead(index, successor) if samples is None else self._depth
        asker = self.activities.asker
        asker.adopt()
        asked = time.perf_counter()
        try:
            asker.begin(index)
            enter("waiting")
            batch = self._awaited(index) if samples is None else self._read_hot(*samples)
        finally:
            waited = time.perf_counter() - asked
            self.tally.waited += waited
            asker.release()
            asker.leave(waited)
        self.tally.count(ready, batch.nbytes)
        return batch

    def _awaited(self, index: int) -> LoadedBatch:
        job = self._ahead[index]
        if job.outcome is None:
            take(job.done)
        # Not after a Ctrl-C: the batch is still being read, and will be needed.
        self._ahead.pop(index, None)  # a lane that closes clears it
        if isinstance(job.outcome, Exception):
            try:
                raise job.outcome
            finally:
                del job  # the error keeps this frame, and the job the error
        assert job.outcome is not None
        return job.outcome

    @property
    def statistics(self) -> ReaderStatistics:
        """The statistics of the batches until now; also after `close()`."""
        return self.tally.statistics

    def _read_only(self, samples: IntArray) -> LoadedBatch:
        """Read these samples as a batch in a lane; batches read ahead are dropped."""
        self.forget()
        self._ahead[-1] = job = _Job(-1, samples=samples)
        self._lanes.submit(job)
        return self._awaited(-1)

    def forget(self) -> None:
        """Drop the batches read ahead."""
        while self._ahead:
            self._ahead.popitem()[1].wanted = False

    def close(self) -> None:
        """Wait for running reads, end the threads, close the reader. Closing twice is fine.

        A Ctrl-C ends the waiting, and the reader stays open for the reads; close again.
        """
        if self._lanes.in_lane():
            # The garbage collector ran in a lane and collected the pipeline. A thread cannot join
            # itself. At the end of the program no thread can be started, and none is needed.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self.close).start()
            return
        on_close, self.on_close = self.on_close, lambda: None  # its name may soon be another's
        on_close()
        self._reader.cancel()
        self._lanes.close()
        self._reader.close()
        # Break the reference cycle of reader and lanes: it would keep the buffers alive.
        self._reader.yield_turn = Reader.yield_turn
        self._ahead.clear()
        self._pool.clear()

    def read_ahead(self, index: int, successor: Callable[[int], int]) -> None:
        """Start reading batch `index` and its successors, without waiting."""
        if self._hot_samples(index) is None:
            self._submit_ahead(index, successor)

    def change_order(self, order: Batches, stays: Callable[[int], bool]) -> None:
        """Use another order; drop the batches read ahead, except where `stays(index)`."""
        self._order = order
        self._first_order = copy.deepcopy(order) if self._first_order is not None else None
        self._own_order = None
        for index in [index for index in self._ahead if not stays(index)]:
            self._ahead.pop(index).wanted = False

    def _submit_ahead(self, index: int, successor: Callable[[int], int]) -> int:
        """Submit a batch and its successors; return how many of them were read already."""
        wanted, last = {index: None}, index  # in order
        for _ in range(self._depth):
            last = successor(last)
            wanted[last] = None
        for passed in self._ahead.keys() - wanted:
            self._ahead.pop(passed).wanted = False
        ready = sum([isinstance(job.outcome, LoadedBatch) for job in self._ahead.values()])
        for new in (new for new in wanted if new not in self._ahead):
            if new != index and self._hot_samples(new) is not None:
                break  # it needs no lane, and in most cases those after it
            job = _Job(new)
            self._lanes.submit(job)
            self._ahead[new] = job
        return ready

    def _hot_samples(self, index: int) -> tuple[IntArray, IntArray] | None:
        """Return a batch's samples, and the samples to read; None if the batch needs a lane."""
        if self._first_order is None:
            return None
        # Put back when it is done: after a Ctrl-C it may be in the midst of a shuffle.
        order, self._own_order = self._own_order, None
        order = order or copy.deepcopy(self._first_order)
        samples = order.batch(index)
        self._own_order = order
        chosen = samples
        if self.replacement is not None:
            with contextlib.suppress(OSError, RecordError):  # a lane finds them, too
                chosen = self.replacement.chosen(samples)
        return (samples, chosen) if self._reader.hot(self._catalog.pieces_of(chosen)) else None

    def _begin(self, job: _Job) -> None:
        """Look up the samples of a batch. The order is cheap to compute in sequence only."""
        if job.wanted:
            begin(job.index)
        if job.wanted and job.samples is None:
            try:
                job.samples = self._order.batch(job.index)
            except Exception as error:
                _finish(job, error)
                del job  # the error keeps this frame, and the job the error

    def _work(self, job: _Job, lane: int) -> None:
        if job.samples is None:
            leave()
            return
        try:
            _finish(job, self._work_on(job.samples, lane))
        except Exception as error:
            _clear_frames(error)
            _finish(job, error)
        finally:
            del job

    def _work_on(self, samples: IntArray, lane: int) -> LoadedBatch:
        read = partial(self._read, lane=lane)
        try:
            return self.replacement.read(samples, read) if self.replacement else read(samples)
        finally:
            leave()  # before anybody gets the batch and asks for the statistics

    def _read_hot(self, samples: IntArray, chosen: IntArray) -> LoadedBatch:
        self.forget()  # they were passed
        handled = sys.exception()
        try:
            return self._read(chosen, self._reader.lanes)
        except Exception as error:
            _clear_frames(error, handled)
            if self.replacement is None or not is_of_sample(error, self._catalog):
                raise
        return self._read_only(samples)  # what takes the place of one may not be hot

    def _read(self, samples: IntArray, lane: int) -> LoadedBatch:
        pieces = self._catalog.pieces_of(samples)
        note(partial(_names, self._catalog, pieces))
        if self._views:
            enter("reading")
        own = views = self._reader.views(pieces, lane) if self._views else None
        wanted = None
        if views is None:
            if not self._reader.schemes:  # a cache of objects has whole samples
                wanted = self._format.wanted(self._catalog, samples)
            lease = self._pool.lease
            batch = read_batch(self._reader, self._catalog, pieces, lease, lane, wanted)
            views = Views(batch.buffer, batch.offsets, batch.sizes)
        enter("decoding")
        if wanted is not None and views.sizes is wanted.sizes:
            outputs = wanted.decode(views)
        else:
            outputs = self._format.decode(self._catalog, samples, views)
        if self._broken is not None:
            enter("checking")
            require_whole(self._catalog, self._format, samples, outputs, self._broken)
        if own is not None:
            enter("copying")
            numbered = enumerate(outputs)
            outputs = [it if n in self._views else copied(it) for n, it in numbered]
        return LoadedBatch(samples, int(np.add.reduce(views.sizes)), outputs)


def _names(catalog: Catalog, samples: IntArray) -> str:
    """Name the first of some samples, and count the others."""
    if not samples.size:
        return "no samples"
    path, more = os.fsdecode(catalog.path(int(samples[0]))), samples.size - 1
    return f"{path} and {more} more" if more else path


def _clear_frames(error: BaseException | None, handled: BaseException | None = None) -> None:
    """Clear the frames of an error and of its causes: locals keep the buffer alive.

    Frames of an error that the caller has `handled`, and of earlier errors, are left alone.
    """
    while error is not handled and error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__


def _finish(job: _Job, outcome: LoadedBatch | Exception) -> None:
    job.outcome = outcome
    job.done.put(None)


def copying_lanes(reader: Reader, dali_threads: int) -> int:
    """Return how many lanes may work at once without yielding, beside DALI's threads."""
    if not reader.cooperative:
        return reader.lanes
    return min(reader.copying_lanes or spare_processors(dali_threads), reader.lanes)
