"""Reading ahead: the threads and lifetimes, so that backends own none of these.

A lane reads a *piece* at once: one batch, or several small ones in a row. To wake a lane, to lay
out a buffer and to submit reads costs 600 us, for one sample as for 64.
"""

import contextlib
import operator
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from queue import SimpleQueue

from ..contract._types import IntArray
from ..order.sequence import Batches
from ..runtime.waiting import take
from .lanes import Gate, Lanes, copying_lanes
from .loading import HotPath, LoadedBatch, Loading, outcome
from .position import next_index
from .slots import Observer

_SAMPLES, _NBYTES = 256, 1 << 20  # the most of several batches in a piece
_RECENT = 16  # batches; their mean size is the expected one
_outcomes = operator.attrgetter("outcomes")


@dataclass(slots=True, eq=False)
class _Piece:
    """Batches to read at once, and what came of them.

    Not a Future, which is written in Python: a Ctrl-C may leave a Future locked for good.

    Attributes:
        indices: the batches that are wanted.
        samples: of each batch; an error if there are none.
        outcomes: of the batches not taken yet; None until all are read.
        submitted: True if a lane reads it, or will; no batch is added any more.
        followed: True if the pieces after this one were submitted, too.
        done: has an item as soon as there are outcomes.
    """

    indices: list[int] = field(default_factory=list)
    samples: dict[int, IntArray | Exception] = field(default_factory=dict)
    outcomes: dict[int, LoadedBatch | Exception] | None = None
    submitted: bool = False
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
        *,
        gate: Gate | None = None,
        observer: Observer | None = None,
        name: str = "Reader",
        most: int = _SAMPLES,
    ) -> None:
        """Take over `loading`, which `close()` closes; read ahead what its pool has room for.

        `gate` is for cooperative readers without `copying_lanes`. The threads have the `name`,
        numbered. A piece of several batches has at most `most` samples.
        """
        reader = loading.reader
        self.loading = loading
        self.room = loading.pool.room
        self._order = order
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
            return self._read_alone(only)
        room, piece = self.room, self._ahead.get(index)
        size_is_known = room.largest > 0
        # An error from before the request may be out of date.
        stored = piece is not None and piece.outcomes is not None
        follows = next(iter(self._ahead), None) == index
        self._in_a_row = self._in_a_row + 1 if follows else 1
        hot = self._hot.samples(index) if piece is None else None
        if hot is not None:
            ready = room.depth
        elif follows and piece and piece.followed and successor is self._successor:
            ready = self._count_ready()
        else:
            ready = self._read_from(index, successor, 1 + room.now)
            self._ahead[index].followed, self._successor = True, successor
        with self.observer.waiting(index, ready) as given:
            batch = self._awaited(index, stored) if hot is None else self._read_hot(*hot)
            if batch.nbytes > room.largest or not size_is_known:
                room.note(max(batch.nbytes, 1))  # views have no buffer
            given.append(batch.nbytes)
        self._samples = batch.samples.size
        self._nbytes += (batch.nbytes - self._nbytes) / (_RECENT if self._nbytes else 1)
        if not size_is_known and room.now and (follower := successor(index)) != index:
            self._read_ahead(follower, successor, room.now)
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
            self._submit(_Piece([index], {index: piece.samples[index]}))
            return self._awaited(index)
        if isinstance(batch, Exception):
            try:
                raise batch
            finally:
                del batch  # the error keeps this frame
        return batch

    def _read_alone(self, samples: IntArray) -> LoadedBatch:
        """Read these samples as a batch in a lane; batches read ahead are dropped."""
        self.forget()
        self._submit(_Piece([-1], {-1: samples}))
        return self._awaited(-1)

    def _read_hot(self, samples: IntArray, chosen: IntArray) -> LoadedBatch:
        self.forget()  # they were passed
        batch = self._hot.read(samples, chosen)
        # A sample that takes the place of a bad one may not be hot.
        return self._read_alone(samples) if batch is None else batch

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
        for piece in [*self._ahead.values()]:  # a lane does not try those of a failed piece
            piece.indices.clear()
        # Before the wait for the lanes, which end with their reads.
        self.loading.reader.cancel()
        self._lanes.close()
        self._ahead.clear()
        # Last: after a Ctrl-C during the wait, running reads still need the open reader.
        self.loading.close()

    def read_ahead(self, index: int, successor: Callable[[int], int]) -> None:
        """Start reading batch `index`, which is asked for next, and those that follow."""
        self._read_ahead(index, successor, 1 + self.room.now)

    def change_order(self, order: Batches, stays: Callable[[int], bool]) -> None:
        """Use another order; drop the batches read ahead, except where `stays(index)`."""
        self._order = order
        self._hot = HotPath(self.loading, order)
        self._successor = None
        self.forget(stays)

    def _count_ready(self) -> int:
        """Count those of the next batches that were read already."""
        some = islice(self._ahead.values(), self.room.depth + 1)
        return sum(map(bool, map(_outcomes, some)))

    def _read_ahead(self, first: int, successor: Callable[[int], int], most: int) -> None:
        """See `_read_from()`; do nothing if the first batch needs no lane."""
        if self._hot.samples(first) is None:
            self._read_from(first, successor, most)

    def _read_from(self, first: int, successor: Callable[[int], int], most: int) -> int:
        """Submit a batch and its successors, in up to `most` pieces; drop all other batches.

        Returns how many of the batches had been read already.
        """
        plan = self._plan(first, successor, most)
        self.forget(plan.__contains__)
        ready = self._count_ready()
        for piece in dict.fromkeys(plan.values()):
            if not piece.submitted:
                self._submit(piece)
        return ready

    def _plan(self, first: int, successor: Callable[[int], int], most: int) -> dict[int, _Piece]:
        """Assign a batch and its successors to at most `most` pieces, submitted or new ones."""
        # Pieces begin short, or the first batch after a seek would take as long as a whole piece.
        fit = min(_NBYTES, self.room.limit.value // 8) // (int(self._nbytes) or 1)
        length = min(self._in_a_row, self._most // self._samples, fit)
        growing: _Piece | None = None  # the last piece, while batches can be added
        plan, pieces, index = dict[int, _Piece](), list[_Piece](), first
        while index not in plan:  # else it is the last batch, which follows itself
            piece = self._ahead.get(index)
            if piece is None:
                if plan and self._hot.samples(index) is not None:
                    break  # it needs no lane, and in most cases those after it
                piece = growing or _Piece()
            if piece not in pieces[-1:]:
                if len(pieces) == most:
                    break
                pieces.append(piece)
            if not piece.submitted:
                piece.indices.append(index)
            growing = None if piece.submitted or len(piece.indices) >= length else piece
            plan[index] = piece
            index = successor(index)
        return plan

    def _submit(self, piece: _Piece) -> None:
        self._lanes.submit(piece)
        # Noted after `submit()`, which may raise: nobody would ever finish this piece.
        piece.submitted = True
        self._ahead |= dict.fromkeys(piece.indices, piece)

    def _begin(self, piece: _Piece) -> None:
        """Look up the samples of batches. The order is cheap to compute in sequence only."""
        for index in [*piece.indices]:
            if index not in piece.samples:
                piece.samples[index] = outcome(partial(self._order.batch, index))

    def _work(self, piece: _Piece, lane: int) -> None:
        known = piece.samples
        with self.observer.reading(lane, next(iter(known), -1), len(known) or 1):
            outcomes = self.loading.load(known, lane, piece.indices)
        # After the block: nobody gets a batch and asks for the statistics before they have it. In
        # this order: the caller looks at the outcomes as soon as `done` has an item.
        piece.outcomes = outcomes
        piece.done.put(None)

    def _drop(self, piece: _Piece) -> None:
        """End a piece that no lane will read."""
        piece.outcomes = {}
        piece.done.put(None)
