"""The shuffled, endless stream of entries that `fn.readers.file` reads, without padding.

With `random_shuffle` the stream passes through a window of `initial_fill` entries, from which each
sample is drawn (DALI, dali/operators/reader/loader/loader.h, ReadOne), always among the entries of
the current epoch. This is a Fisher-Yates shuffle of limited reach: at position p, swap entry p with
entry p + draw(0 to min(initial_fill, end of the epoch - p) - 1). So an epoch depends on earlier
epochs only through the state of the random engine, and the stream can start at any epoch.
"""

from array import array
from bisect import bisect_right
from dataclasses import replace
from functools import cached_property, partial
from operator import itemgetter
from typing import TypeAlias

import numpy as np

from ..contract._types import IntArray
from .libstdcxx import Minstd, Mt19937_64, WordSource, mt19937, shuffled
from .options import OrderOptions
from .shards import CHUNK, Indices, Shards, Stream

_DEFAULT_SEED = 524287  # DALI's, for the shuffles of the whole list
_EPOCHS = 4  # in a chunk at most, if each of them costs a shuffle
_MARKS = 1024  # saved states of the random engine, at most
_STRIDE = 65536  # draws from one saved state to the next, at first

_List: TypeAlias = "_Listed | _ContainersReshuffled"


class Lists:
    """The whole shuffled list, common to all shards."""

    def __init__(self, size: int, options: OrderOptions) -> None:
        self._engine, self._bits = partial(_engine, options), options.shuffle_bits
        self._cumulative = not options.checkpointing
        self._size = size
        self._epoch, self._list = -1, self._original(0)  # the last epoch, and its list

    @cached_property
    def fixed(self) -> Indices:
        """The list in the one order of `random_shuffle`."""
        return shuffled(self._original(self._size), mt19937(_DEFAULT_SEED), 32)

    def of_epoch(self, epoch: int) -> Indices:
        """The list of `shuffle_after_epoch` (DALI, file_label_loader.h, Reset)."""
        if epoch != self._epoch:
            self._go_to(epoch)
        return self._list

    def _go_to(self, epoch: int) -> None:
        # Without checkpointing, DALI shuffles the shuffled list of the epoch before.
        first = 0 if self._cumulative else epoch
        if not first <= self._epoch < epoch:
            self._epoch, self._list = first - 1, self._original(self._size)
        while self._epoch < epoch:
            self._epoch += 1
            self._list = shuffled(self._list, self._engine(self._epoch), self._bits)

    def _original(self, count: int) -> Indices:
        """The first entries of the list; in half the memory if the size permits."""
        if self._size < 2**31:
            return np.arange(count, dtype=np.int32)
        return np.arange(count)


def make_stream(
    shards: Shards, options: OrderOptions, containers: IntArray | None, lists: Lists | None
) -> Stream:
    """The stream that is shuffled as `options` describe; `containers` and `lists` as in `Order`."""
    lists = lists or Lists(shards.size, options)
    listed: _List
    chunk = CHUNK
    if options.by_container and options.shuffle_after_epoch:
        if containers is None or containers.sum() != shards.size:
            raise ValueError(f"by_container: the containers must hold {shards.size} samples in all")
        listed = _ContainersReshuffled(shards, options, containers)
        chunk = min(chunk, _EPOCHS * shards.epoch_start(1))
    elif options.shuffle_after_epoch:
        return _Reshuffled(shards, lists)
    else:
        listed = _Listed(shards, None if options.by_container else lists)
    window = min(options.initial_fill, shards.largest) if options.random_shuffle else 1
    return _Windowed(shards, listed, window, chunk, options.seed) if window > 1 else listed


class _Listed:
    """The list itself or, with random_shuffle, the list in one fixed order."""

    def __init__(self, shards: Shards, lists: Lists | None) -> None:
        self._shards, self._lists = shards, lists

    def chunk(self, position: int) -> tuple[int, IntArray]:
        return position, self.entries(position, position + CHUNK)

    def entries(self, start: int, stop: int) -> IntArray:
        """The entries at the positions start to stop - 1: int64[stop - start]."""
        indices = self._shards.indices(start, stop)
        return indices if self._lists is None else self._lists.fixed[indices].astype(np.int64)


class _Reshuffled:
    """The list, reshuffled before each epoch."""

    def __init__(self, shards: Shards, lists: Lists) -> None:
        self._lists = lists
        self._first, self._count = shards.index(0), shards.epoch_start(1)

    def chunk(self, position: int) -> tuple[int, Indices]:
        epoch = position // self._count
        entries = self._lists.of_epoch(epoch)[self._first : self._first + self._count]
        return epoch * self._count, entries


class _ContainersReshuffled:
    """The containers, reshuffled before each epoch; samples keep their order within each.

    DALI's readers of containers do the same since 2.2 (pull request 6288).
    """

    def __init__(self, shards: Shards, options: OrderOptions, counts: IntArray) -> None:
        """Shuffle containers with these `counts` of samples: int64[k]."""
        self._shards, self._counts = shards, counts
        self._engine = partial(_engine, replace(options, shuffle_bits=64))
        self._length = shards.epoch_start(1)
        self._epoch, self._ends, self._shifts = -1, counts, counts  # of the last epoch seen

    def chunk(self, position: int) -> tuple[int, IntArray]:
        epoch = position // self._length
        return position, self._of_epoch(epoch, position, position + CHUNK)

    def entries(self, start: int, stop: int) -> IntArray:
        epochs = range(start // self._length, -(-stop // self._length))
        return np.concatenate([self._of_epoch(epoch, start, stop) for epoch in epochs])

    def _of_epoch(self, epoch: int, start: int, stop: int) -> IntArray:
        """The entries of one epoch at the positions start to stop - 1."""
        if epoch != self._epoch:
            self._shuffle(epoch)
        first = epoch * self._length
        start, stop = max(start, first), min(stop, first + self._length)
        indices = self._shards.indices(start, stop)
        return indices + self._shifts[np.searchsorted(self._ends, indices, "right")]

    def _shuffle(self, epoch: int) -> None:
        counts = self._counts
        # As in DALI, the original order, so an epoch depends on no other. Empty ones count, too.
        order: Indices = np.arange(counts.size)
        if order.size > 1:
            order = shuffled(order, self._engine(epoch), 64)
        ends = np.cumsum(counts[order])
        # Distance from the index in the shuffled list to the entry, for each container.
        self._shifts = np.cumsum(counts)[order] - ends
        self._epoch, self._ends = epoch, ends


def _engine(options: OrderOptions, epoch: int) -> WordSource:
    """The random engine of the shuffle before an epoch; DALI counts epochs from 1."""
    seed = options.shuffle_after_epoch_seed
    seed = _DEFAULT_SEED if seed is None else seed
    if options.shuffle_bits == 32:  # in DALI before 2.2
        return mt19937(seed + epoch + 1 & 0xFFFF_FFFF)
    return Mt19937_64(seed + (epoch + 1 << 32))


class _Windowed:
    """The entries of `listed`, drawn from a moving window; see the module's docstring."""

    def __init__(self, shards: Shards, listed: _List, window: int, chunk: int, seed: int) -> None:
        """Draw from `listed`; `window`, at most the largest shard, and `chunk` are in entries."""
        self._shards, self._listed = shards, listed
        self._window, self._chunk = window, chunk
        self._engine = Minstd(seed)
        self._marks, self._stride = [(0, self._engine.state)], _STRIDE
        self._begin(0)

    def chunk(self, position: int) -> tuple[int, IntArray]:
        start = position - self._shards.since_start(self._shards.index(position))
        # A draw stays within its epoch, so the stream can begin at the start of any epoch.
        if not start <= self._position <= position:
            self._wind(start)
            self._begin(start)
        while self._position + self._chunk <= position:
            self._advance()
        return self._position, self._advance()

    def _begin(self, position: int) -> None:
        """Go to the start of an epoch, where no draw has touched the window's entries yet."""
        # _pending[_head:] are the entries from _position on.
        self._position, self._pending, self._head = position, array("q"), 0

    def _advance(self) -> IntArray:
        """The next chunk: int64[chunk]."""
        indices = self._shards.indices(self._position, self._position + self._chunk)
        # An end of an epoch inside the chunk shows in the bounds only.
        bounds = np.minimum(self._shards.until_end(indices), self._window)
        self._load()
        head, pending = self._head, self._pending
        drawn = np.arange(head, head + self._chunk) + self._engine.draw(bounds)
        # One by one: a swap may move an entry that an earlier one has moved.
        for here, there in enumerate(drawn.tolist(), head):
            pending[here], pending[there] = pending[there], pending[here]
        self._head += self._chunk
        self._position += self._chunk
        self._remember(self._position)
        return np.array(pending[head : self._head], np.int64)

    def _load(self) -> None:
        """Load every entry that the next chunk may swap."""
        # Only once per length of the window, because as many entries move to the front.
        if self._head >= self._window:
            del self._pending[: self._head]
            self._head = 0
        loaded = self._position + len(self._pending) - self._head
        wanted = self._position + self._chunk + self._window
        self._pending.frombytes(self._listed.entries(loaded, wanted).tobytes())

    def _wind(self, goal: int) -> None:
        """Bring the engine to its state at position `goal`, from the nearest saved state."""
        found = bisect_right(self._marks, goal, key=itemgetter(0)) - 1
        position, self._engine.state = self._marks[found]

        def bound(index: int) -> int:
            return min(self._window, self._shards.until_end(self._shards.index(position + index)))

        while position < goal:
            count = min(self._stride, goal - position)
            self._engine.skip(count, self._window, bound)
            position += count
            self._remember(position)

    def _remember(self, position: int) -> None:
        """Save the engine's state, if the last one is far away; halve the states if too many."""
        if position >= self._marks[-1][0] + self._stride:
            self._marks.append((position, self._engine.state))
        if len(self._marks) > _MARKS:
            self._marks = self._marks[::2]
            self._stride *= 2
