"""Reading ahead: the threads and lifetimes, so that backends own none of these."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from ..contract._types import IntArray
from ..contract.stages import begin, leave
from ..order.sequence import Batches
from ..runtime.waiting import take
from .lanes import Gate, Lanes, copying_lanes
from .loading import HotPath, LoadedBatch, Loading, clear_frames
from .position import next_index
from .slots import Observer


@dataclass(slots=True, eq=False)
class _Job:
    """A batch to read, and what came of it.

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

    Attributes:
        loading: the read of each batch.
        observer: sees what is read, for how long, and for whom.
    """

    def __init__(
        self,
        loading: Loading,
        order: Batches,
        depth: int,
        *,
        gate: Gate | None = None,
        observer: Observer | None = None,
        name: str = "Reader",
    ) -> None:
        """Take over `loading`, which `close()` closes; read `depth` batches ahead, or one per lane.

        `gate` is for cooperative readers without `copying_lanes`. The threads have the `name`,
        numbered.
        """
        reader = loading.reader
        self.loading = loading
        self._order = order
        self._least, self._depth = depth, max(depth, reader.lanes)
        self._largest = 0  # bytes of a batch so far
        self._hot = HotPath(loading, order)
        self._ahead: dict[int, _Job] = {}
        self.observer = observer or Observer()
        self.observer.begin(reader, self._depth, loading.substitute.bad)
        self._lanes = Lanes(
            reader.lanes,
            turns=copying_lanes(reader),
            begin=self._begin,
            work=self._work,
            gate=gate if reader.cooperative and not reader.copying_lanes else None,
            name=name,
            be_lane=self.observer.be_lane,
        )

    def get(self, index: int, successor: Callable[[int], int] = next_index) -> LoadedBatch:
        """Return batch `index`; block until the batch is read. After an error, read again.

        The batches that follow by `successor` are read ahead.
        """
        if (only := self.loading.substitute.only) is not None:
            return self._read_only(only)
        hot = None if index in self._ahead else self._hot.samples(index)
        ready = self._submit_ahead(index, successor) if hot is None else self._depth
        batch = None
        try:
            self.observer.ask(index)
            batch = self._awaited(index) if hot is None else self._read_hot(*hot)
            self._largest = max(self._largest, batch.nbytes)
        finally:
            self.observer.answer(ready, None if batch is None else batch.nbytes)
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

    def _read_only(self, samples: IntArray) -> LoadedBatch:
        """Read these samples as a batch in a lane; batches read ahead are dropped."""
        self.forget()
        self._ahead[-1] = job = _Job(-1, samples=samples)
        self._lanes.submit(job)
        return self._awaited(-1)

    def _read_hot(self, samples: IntArray, chosen: IntArray) -> LoadedBatch:
        self.forget()  # they were passed
        batch = self._hot.read(chosen)
        # A sample that takes the place of a bad one may not be hot.
        return self._read_only(samples) if batch is None else batch

    def forget(self) -> None:
        """Drop the batches read ahead."""
        while self._ahead:
            self._ahead.popitem()[1].wanted = False

    def close(self) -> None:
        """Wait for running reads, end the threads, close the reader. Closing twice is fine.

        A Ctrl-C ends the waiting; close again.
        """
        if self._lanes.in_lane():
            # The garbage collector ran in a lane and collected the pipeline. A thread cannot join
            # itself. At the end of the program no thread can be started, and none is needed.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self.close).start()
            return
        self.observer.end()
        # Before the wait for the lanes, which end with their reads.
        self.loading.reader.cancel()
        self._lanes.close()
        self._ahead.clear()
        # Last: after a Ctrl-C during the wait, running reads still need the open reader.
        self.loading.close()

    def read_ahead(self, index: int, successor: Callable[[int], int]) -> None:
        """Start reading batch `index` and its successors, without waiting."""
        if self._hot.samples(index) is None:
            self._submit_ahead(index, successor)

    def change_order(self, order: Batches, stays: Callable[[int], bool]) -> None:
        """Use another order; drop the batches read ahead, except where `stays(index)`."""
        self._order = order
        self._hot = HotPath(self.loading, order)
        for index in [index for index in self._ahead if not stays(index)]:
            self._ahead.pop(index).wanted = False

    def _submit_ahead(self, index: int, successor: Callable[[int], int]) -> int:
        """Submit a batch and its successors; return how many of them were read already."""
        wanted, last = {index: None}, index  # in order
        for _ in range(self._room()):
            last = successor(last)
            wanted[last] = None
        for passed in self._ahead.keys() - wanted:
            self._ahead.pop(passed).wanted = False
        ready = sum([isinstance(job.outcome, LoadedBatch) for job in self._ahead.values()])
        for new in (new for new in wanted if new not in self._ahead):
            if new != index and self._hot.samples(new) is not None:
                break  # it needs no lane, and in most cases those after it
            job = _Job(new)
            self._lanes.submit(job)
            # Noted after `submit()`, which may raise: nobody would ever finish this job.
            self._ahead[new] = job
        return ready

    def _room(self) -> int:
        """Return how many batches to read ahead: fewer if so many may not fit into the memory."""
        if (most := self.loading.reader.read_ahead_bytes) is None:
            return self._depth
        # At first, while no size is known, few.
        return min(max(self._least, most // self._largest if self._largest else 3), self._depth)

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
            _finish(job, self.loading.load(job.samples, lane))
        except Exception as error:
            clear_frames(error)
            _finish(job, error)
        finally:
            del job


def _finish(job: _Job, outcome: LoadedBatch | Exception) -> None:
    # In this order: the caller looks at the outcome as soon as `done` has an item.
    job.outcome = outcome
    job.done.put(None)
