"""Reading ahead: the threads, the memory and the lifetimes, so that no backend has to have any."""

from __future__ import annotations

import contextlib
import threading
import traceback
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ._types import IntArray
from .buffers import BufferPool
from .catalog import Catalog
from .errors import SampleChangedError, SampleSizeChanged
from .lanes import Lanes, spare_processors
from .order import Order
from .reader import Batch, Reader


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A batch that has been read.

    Attributes:
        samples: int64[n], catalog indices.
        contents: n pieces of one leased buffer, 1-D, of bytes. The buffer is used again when the
            last of them is gone, and whatever looks into it through them.
    """

    samples: IntArray
    contents: list[memoryview]


@dataclass(slots=True, eq=False)
class _Job:
    """A batch to be read. The future is what the caller waits for; a lane picks the job itself."""

    index: int
    future: Future[LoadedBatch] = field(default_factory=Future)
    samples: IntArray | None = None


class Prefetcher:
    """Reads batches ahead of the caller, in at most as many threads as the reader has lanes.

    The batches of a plain run through the order are read once each, in their order. A caller who
    asks for any other batch gets it: what was read ahead for nothing is dropped.
    """

    def __init__(
        self, catalog: Catalog, reader: Reader, order: Order, depth: int, *, dali_threads: int = 0
    ) -> None:
        """Take over `reader`: it is closed by `close()`.

        Args:
            catalog: what the reader was opened with; names samples in errors.
            reader: the backend.
            order: which samples make batch i.
            depth: how many batches to read beyond the one asked for; at least one a lane.
            dali_threads: threads that the pipeline runs beside the lanes.
        """
        self._catalog = catalog
        self._reader = reader
        self._order = order
        self._depth = max(depth, reader.lanes)
        self._pool = BufferPool(reader.allocate)
        self._ahead: dict[int, _Job] = {}
        self._lanes = Lanes(
            reader.lanes,
            turns=_turns(reader, dali_threads),
            begin=self._begin,
            work=self._work,
        )
        reader.yield_turn = self._lanes.yield_turn

    def get(self, index: int) -> LoadedBatch:
        """Batch `index`, when it has been read.

        Raises:
            OSError: a sample of this batch cannot be read; asking for the batch again reads it
                again.
        """
        self._read_ahead(index)
        try:
            batch = self._ahead[index].future.result()
        except Exception:
            # Not on KeyboardInterrupt: then the batch is still on its way, and will be asked for.
            self._ahead.pop(index, None)
            raise
        self._ahead.pop(index, None)
        return batch

    def close(self) -> None:
        """Wait for the reads under way, end the threads, close the reader; twice is fine."""
        if self._lanes.in_lane():
            # The garbage collector ran in a lane and found the pipeline dead. A thread cannot wait
            # for itself; when the program is ending, no other can be started, nor is needed.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self.close).start()
            return
        try:
            self._lanes.close()
        finally:
            self._reader.close()
            # These keep each other alive, and the buffers with them, until the garbage collector
            # comes.
            self._reader.yield_turn = Reader.yield_turn
            self._ahead.clear()
            self._pool.clear()

    def _read_ahead(self, index: int) -> None:
        wanted = range(index, index + self._depth + 1)
        for passed in [known for known in self._ahead if known not in wanted]:
            self._ahead.pop(passed).future.cancel()
        for new in (new for new in wanted if new not in self._ahead):
            job = _Job(new)
            self._lanes.submit(job)
            self._ahead[new] = job

    def _begin(self, job: _Job) -> None:
        """Find the samples of a batch: for one batch after the other, which is the cheap way."""
        if job.future.set_running_or_notify_cancel():
            try:
                job.samples = self._order.batch(job.index)
            except Exception as error:
                job.future.set_exception(error)
                del job  # this frame is one of the error's

    def _work(self, job: _Job, lane: int) -> None:
        if job.samples is None:
            return
        try:
            job.future.set_result(LoadedBatch(job.samples, self._read(job.samples, lane)))
        except Exception as error:
            # The error's frames hold the buffer of the batch, and this one the job that holds it.
            traceback.clear_frames(error.__traceback__)
            job.future.set_exception(error)
        finally:
            del job

    def _read(self, samples: IntArray, lane: int) -> list[memoryview]:
        try:
            return self._try_to_read(samples, lane)
        except SampleSizeChanged:
            pass
        try:
            return self._try_to_read(samples, lane)
        except SampleSizeChanged as changed:
            raise SampleChangedError(self._catalog.path(int(changed.samples[0]))) from None

    def _try_to_read(self, samples: IntArray, lane: int) -> list[memoryview]:
        sizes = self._reader.sizes(samples)
        offsets, nbytes = layout(sizes, self._reader.alignment)
        lease = self._pool.lease(nbytes)
        self._reader.read(Batch(samples, sizes, offsets, lease), lane)
        # A slice of a memoryview costs a sixth of one of an array, and keeps the lease as well.
        memory, ends = lease.data, offsets + sizes
        pieces = zip(offsets.tolist(), ends.tolist(), strict=True)
        return [memory[start:end] for start, end in pieces]


def _turns(reader: Reader, dali_threads: int) -> int:
    """How many lanes may be at work at once without having yielded."""
    if not reader.cooperative:
        return reader.lanes
    return min(reader.copying_lanes or spare_processors(dali_threads), reader.lanes)


def layout(sizes: IntArray, alignment: int) -> tuple[IntArray, int]:
    """Where samples of `sizes` bytes (int64[n]) go in one buffer, at multiples of `alignment`.

    Returns:
        The offsets (int64[n], bytes), and the length of the buffer in bytes.
    """
    ends = np.cumsum((sizes + (alignment - 1)) // alignment * alignment, dtype=np.int64)
    offsets = np.zeros_like(ends)
    offsets[1:] = ends[:-1]
    return offsets, int(ends[-1]) if ends.size else 0
