"""Reading ahead: the threads and lifetimes, so that backends own none of these.

A lane reads a *piece* at once: one batch, or several small ones in a row. To wake a lane, to lay
out a buffer and to submit reads costs 600 us, for one sample as for 64.
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from queue import SimpleQueue

from ..contract._types import IntArray
from ..contract.options import Choice
from ..contract.stages import begin, leave
from ..order.sequence import Batches
from ..runtime import machine
from ..runtime.waiting import take
from .buffers import Room
from .lanes import Gate, Lanes, copying_lanes
from .loading import HotPath, LoadedBatch, Loading, outcome
from .position import next_index
from .slots import Observer

_SAMPLES, _NBYTES = 256, 1 << 20  # the most of several batches in a piece
_RECENT = 16  # batches; their mean size is the expected one


@dataclass(slots=True, eq=False)
class _Piece:
    """Batches to read at once, and what came of them.

    Not a Future, which is written in Python: a Ctrl-C may leave a Future locked for good.

    Attributes:
        indices: the batches that are wanted.
        samples: of each batch; an error if there are none.
        outcomes: of the batches not taken yet; None until all are read.
        followed: True if the pieces after this one were submitted.
        done: has an item as soon as there are outcomes.
    """

    indices: list[int] = field(default_factory=list)
    samples: dict[int, IntArray | Exception] = field(default_factory=dict)
    outcomes: dict[int, LoadedBatch | Exception] | None = None
    followed: bool = False
    done: SimpleQueue[None] = field(default_factory=SimpleQueue)


class Prefetcher:
    """Reads batches ahead of the caller, in up to as many threads as the reader has lanes.

    If the caller gets batch after batch, each is read once, in order. Any other batch is available
    too; then batches read ahead are dropped unless they follow the new one.

    Attributes:
        loading: the read of each batch.
        observer: sees what is read, for how long, and for whom.
        room: how many batches fit into the bytes that the reader may use.
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
        most: int = _SAMPLES,
        nbytes: int | None = None,
        held: int = 0,
    ) -> None:
        """Take over `loading`, which `close()` closes; read `depth` pieces ahead, or one per lane.

        No more are read ahead than fit into `nbytes`; None: into `machine.buffer_bytes()`, and
        none where the memory has no room beside those `held` by others. `gate` is for cooperative
        readers without `copying_lanes`. The threads have the `name`, numbered. A piece of several
        batches has at most `most` samples.
        """
        reader = loading.reader
        self.loading = loading
        self._order = order
        self._depth = max(depth, reader.lanes)
        memory = machine.cache_memory() if nbytes is None else None
        limit = machine.buffer_bytes(memory) if nbytes is None else Choice(nbytes, "as given")
        self.room = Room(limit, self._depth, memory, held)
        loading.pool.room = self.room
        self._hot = HotPath(loading, order)
        self._ahead: dict[int, _Piece] = {}  # by batch
        self._successor: object = None  # of the batches ahead
        self._most = most
        self._in_a_row = 0  # batches
        self._nbytes, self._samples = 0.0, most  # expected of a batch
        self.observer = observer or Observer()
        self.observer.begin(reader, self.room, loading.substitute.bad)
        self._lanes = Lanes(
            reader.lanes,
            turns=copying_lanes(reader),
            begin=self._begin,
            work=self._work,
            drop=self._drop,
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
        known, ahead = self.room.largest, self._ahead.get(index)
        # An error from before the request may be out of date.
        stored = ahead is not None and ahead.outcomes is not None
        follows = next(iter(self._ahead), None) == index
        self._in_a_row = self._in_a_row + 1 if follows else 1
        if follows and self._ahead[index].followed and successor is self._successor:
            read = self._ahead[index].outcomes or ()
            hot, ready = None, self._depth if len(read) > self._depth else self._count_ready()
        else:
            hot = None if ahead is not None else self._hot.samples(index)
            ready = self._submit_ahead(index, successor) if hot is None else self._depth
        batch = None
        try:
            self.observer.ask(index)
            batch = self._awaited(index, stored) if hot is None else self._read_hot(*hot)
            self.room.largest = max(self.room.largest, batch.nbytes, 1)  # views have no buffer
        finally:
            self.observer.answer(ready, None if batch is None else batch.nbytes)
        self._samples = batch.samples.size
        follower = index if known or not self.room.ahead else successor(index)
        if follower != index:  # else it is the last one
            self.read_ahead(follower, successor, asked=False)
        self._nbytes += (batch.nbytes - self._nbytes) / (_RECENT if self._nbytes else 1)
        return batch

    def _awaited(self, index: int, stored: bool = False) -> LoadedBatch:
        """Wait for a batch; `stored`: it was read, or failed, before it was asked for."""
        piece = self._ahead[index]
        if piece.outcomes is None:
            take(piece.done)
        # Not after a Ctrl-C: the batch is still being read, and will be needed.
        self._ahead.pop(index, None)  # a lane that closes clears it
        assert piece.outcomes is not None
        batch = piece.outcomes.pop(index, None)
        if batch is None or (stored and isinstance(batch, OSError)):
            # Read again, alone and now: a file may be back. After an OSError the rest was not read.
            # After `close()`, this raises.
            self._lanes.submit(again := _Piece([index], {index: piece.samples[index]}))
            self._ahead[index] = again
            return self._awaited(index)
        if isinstance(batch, Exception):
            try:
                raise batch
            finally:
                del batch  # the error keeps this frame
        return batch

    def _read_only(self, samples: IntArray) -> LoadedBatch:
        """Read these samples as a batch in a lane; batches read ahead are dropped."""
        self.forget()
        self._ahead[-1] = piece = _Piece([-1], {-1: samples})
        self._lanes.submit(piece)
        return self._awaited(-1)

    def _read_hot(self, samples: IntArray, chosen: IntArray) -> LoadedBatch:
        self.forget()  # they were passed
        batch = self._hot.read(samples, chosen)
        # A sample that takes the place of a bad one may not be hot.
        return self._read_only(samples) if batch is None else batch

    def forget(self, stays: Callable[[int], bool] = lambda index: False) -> None:
        """Drop the batches read ahead, except where `stays(index)`."""
        for index in [index for index in self._ahead if not stays(index)]:
            self._ahead.pop(index).indices.remove(index)

    def close(self) -> None:
        """Wait for running reads, end the threads, close the reader. Closing twice is fine.

        A thread in `get()` returns, or has an error. A Ctrl-C ends the waiting; close again.
        """
        if self._lanes.in_lane():
            # The garbage collector ran in a lane and collected the pipeline. A thread cannot join
            # itself. At the end of the program no thread can be started, and none is needed.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self.close).start()
            return
        self.observer.end()
        for piece in [*self._ahead.values()]:  # a lane does not try those of a failed piece
            piece.indices.clear()
        # Before the wait for the lanes, which end with their reads.
        self.loading.reader.cancel()
        self._lanes.close()
        self._ahead.clear()
        # Last: after a Ctrl-C during the wait, running reads still need the open reader.
        self.loading.close()

    def read_ahead(self, index: int, successor: Callable[[int], int], asked: bool = True) -> None:
        """Start reading batch `index`, which is `asked` for or follows, and those after it."""
        if self._hot.samples(index) is None:
            self._submit_ahead(index, successor, asked)

    def change_order(self, order: Batches, stays: Callable[[int], bool]) -> None:
        """Use another order; drop the batches read ahead, except where `stays(index)`."""
        self._order = order
        self._hot = HotPath(self.loading, order)
        self._successor = None
        self.forget(stays)

    def _count_ready(self) -> int:
        """Count those of the next batches that were read already."""
        some = islice(self._ahead.values(), self._depth + 1)
        return sum([piece.outcomes is not None for piece in some])

    def _submit_ahead(self, index: int, successor: Callable[[int], int], asked: bool = True) -> int:
        """Submit a batch and its successors; return how many of them were read already.

        The batch itself is one of those read ahead unless `asked` for.
        """
        # Pieces begin short, or the first batch after a seek would take as long as a whole piece.
        nbytes = min(_NBYTES, self.room.limit.value // 8) // (int(self._nbytes) or 1)
        most = min(self._in_a_row, self._most // self._samples, nbytes)
        planned, new, at = dict[int, _Piece](), list[_Piece](), index
        known, last, pieces = self.room.largest > 0, None, 0
        # At least the batch itself: memory may have become short since the caller looked.
        room = max((self.room.ahead if known else self.room.first) - (not asked), 0)
        while at not in planned:
            piece = self._ahead.get(at)
            if piece is None:
                if at != index and self._hot.samples(at) is not None:
                    break  # it needs no lane, and in most cases those after it
                grows = new and last is new[-1] and len(new[-1].indices) < most
                piece = new[-1] if grows else _Piece()
            if piece is not last:
                if pieces > room:
                    break
                last, pieces = piece, pieces + 1
                new += [piece] if not piece.indices else []
            if at not in self._ahead:
                piece.indices.append(at)
            planned[at] = piece
            at = successor(at)
        self.forget(planned.__contains__)
        ready = self._count_ready()
        for piece in new:
            self._lanes.submit(piece)
            # Noted after `submit()`, which may raise: nobody would ever finish this piece.
            self._ahead |= dict.fromkeys(piece.indices, piece)
        self._ahead[index].followed, self._successor = known and asked, successor
        return ready

    def _begin(self, piece: _Piece) -> None:
        """Look up the samples of batches. The order is cheap to compute in sequence only."""
        if indices := [*piece.indices]:
            begin(indices[0], len(indices))
        for index in indices:
            if index not in piece.samples:
                piece.samples[index] = outcome(partial(self._order.batch, index))

    def _work(self, piece: _Piece, lane: int) -> None:
        outcomes = self.loading.load(piece.samples, lane, piece.indices)
        # In this order: nobody gets a batch and asks for the statistics before they have it, and
        # the caller looks at the outcomes as soon as `done` has an item.
        leave()
        piece.outcomes = outcomes
        piece.done.put(None)

    def _drop(self, piece: _Piece) -> None:
        """End a piece that no lane will read."""
        piece.outcomes = {}
        piece.done.put(None)
