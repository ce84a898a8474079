"""The ledger of a stream: adds up what has reached the user, several batches at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ..bad_samples.arguments import bad_sample_options
from ..contract._types import IntArray
from ..order.sampling.dealing import StreamOrder
from ..order.sampling.ordering import StreamOrdering
from ..order.shards import Shards, rounds
from ..reading.loading import LoadedBatch
from ..reading.source import BatchStream
from .hashing import Hashing, Words, above_all, hashed, shown, xxhash
from .values import Receipt, Sum, read

_STEP = 16  # batches that are added at once
_HELD = 64  # batches that an iterator may hold; see `reading.position`
_MOST = 16  # sources with buckets

Key: TypeAlias = tuple[int, int]
"""The number of a source (0 if there is one), and its *turn*: an epoch or, in a stream, a pass."""


class _Now(NamedTuple):
    """What is known; replaced as a whole, so that a Ctrl-C leaves no half.

    Attributes:
        given: position, samples and `hashing.marks()` of the last batches, not added yet.
        sums: of each turn; of each source at most the last two.
        place: the position of the last batch that was added.
    """

    given: deque[tuple[int, IntArray, Words]]
    sums: Mapping[Key, Sum]
    place: int


def receipt_plugs(mode: Any, about: Mapping[str, Any], device: str, padded: Any) -> dict[str, Any]:
    """Return the slots of an `Opening` with receipts; `about` are the options for bad samples.

    Raises:
        ValueError: an argument is wrong.
        BackendUnavailable: xxhash is not installed.
    """
    if mode not in ("samples", "bytes"):
        raise ValueError(f"receipt must be 'samples' or 'bytes', not {mode!r}")
    if mode == "bytes" and device == "gpu":
        raise ValueError("receipt='bytes' needs batches in host memory; use device='cpu'")
    if not padded:
        otherwise = "otherwise an epoch begins within a batch"
        raise ValueError(f"receipt needs pad_last_batch=True; {otherwise}")
    xxhash()
    hashing = Hashing(bad_sample_options(about, device), mode == "bytes")
    return {"on_error": hashing, "ledger": partial(Ledger, mode)}


class Ledger:
    """The receipts of one stream. Used by one thread."""

    def __init__(self, mode: str) -> None:
        """`mode`: "samples" or "bytes"."""
        self._mode = mode
        self._now = _Now(deque(), {}, -1)
        self._above: dict[int, int] = {}  # of each source, see `hashing.hashed()`

    def giving(self, stream: BatchStream, batch: LoadedBatch, pending: int) -> Callable[[], object]:
        """Return a function in C that notes the batch at the position of the stream.

        `pending` batches are not with the user yet.
        """
        if stream.substitute.only is not None:
            return int  # for a search of bad samples, not for the user
        if len(self._now.given) > pending + _HELD + _STEP:
            self._add(stream, pending + _HELD)
        given, position = self._now.given, stream.position.next
        while given and given[-1][0] >= position:  # given again
            given.pop()
        return partial(given.append, (position, batch.samples, cast("Words", batch.outputs[-1])))

    def drop(self, pending: int) -> None:
        """Forget the last batches, which never reach the user."""
        given, _, _ = self._now
        for _ in range(min(pending, len(given))):
            given.pop()

    def receipt(
        self, stream: BatchStream, pending: int, epoch: int | None = None, source: Any = None
    ) -> Receipt:
        """Return the receipt of a turn; see `readers.receipt()`, also for the errors."""
        self._add(stream, pending)
        names, latest = _names(stream), self._latest()
        if source not in names:
            raise ValueError(f"{stream}: source must be one of {names!r:.200}, not {source!r}")
        number = names.index(source)
        turn = latest.get(number, self._epoch(stream)) if epoch is None else epoch
        if turn < (least := max(0, latest.get(number, 0) - 1)):
            what = f"epoch must be at least {least}, not {epoch!r}"
            raise ValueError(f"{stream}: {what}: the receipts of earlier ones are forgotten")
        return self._of(stream, (number, turn))

    def saved(self, stream: BatchStream, pending: int) -> list[Receipt]:
        """Return the receipts for a state or a checkpoint."""
        self._add(stream, pending)
        return [self._of(stream, key) for key in sorted(self._now.sums)]

    def begin(self, stream: BatchStream, saved: Any) -> None:
        """Begin at the position of the stream, with the receipts of a state; None: it has none.

        Raises:
            ValueError: there are none within an epoch; one is damaged, or of another data set, mode
                or rank.
        """
        position, dealt = stream.position.next, stream.open().ordering.dealt
        rest = stream.rest is not None and position < stream.rest.stop
        if saved is None and (position if dealt else rest or position % _rounds(stream)):
            raise ValueError(
                f"{stream}: the state has no receipt of the samples before it, because receipt= "
                "was not given when it was saved: resume without receipt="
            )
        sums, names, rank = dict[Key, Sum](), _names(stream), _rank(stream)
        for each in saved or ():
            receipt, its = read(each, f"{stream}: the state has no receipt of this reader")
            here = {"mode": self._mode, "dataset": _dataset(stream)}
            here |= {"rank": rank, "source": receipt["source"]}
            if receipt["rank"] is None:
                here["rank"] = None
            if receipt["source"] not in names:
                here["source"] = names
            for name, value in here.items():
                if receipt[name] != value:
                    had = f"the receipt in the state has {name}={receipt[name]!r}"
                    joined = "; save receipts.join() of the states of all ranks" * (name == "rank")
                    raise ValueError(f"{stream}: {had}, but this reader has {value!r:.200}{joined}")
            if receipt["rank"] is not None or stream.options.shard_id == 0:
                sums[names.index(receipt["source"]), receipt["epoch"]] = its
        self._now = _Now(deque(), sums, position - 1)

    def _of(self, stream: BatchStream, key: Key) -> Receipt:
        names = _names(stream)
        return self._now.sums.get(key, _zero(names)).receipt(
            mode=self._mode,
            dataset=_dataset(stream),
            source=names[key[0]],
            epoch=key[1],
            rank=_rank(stream),
        )

    def _latest(self) -> dict[int, int]:
        return dict(sorted(self._now.sums))

    def _epoch(self, stream: BatchStream) -> int:
        dealt = stream.open().ordering.dealt
        return 0 if dealt else (self._now.place + 1) // _rounds(stream)

    def _add(self, stream: BatchStream, pending: int) -> None:
        """Add all batches but the last ones."""
        given, sums, place = self._now
        entries = [*islice(given, max(0, len(given) - pending))]
        if not entries:
            return
        catalog, _, ordering = stream.open()
        order = cast("StreamOrder", stream.batches()) if ordering.dealt else None
        sums, number = dict(sums), len(_names(stream))
        if (first := entries[0][0]) <= place:  # the user has gone back to the start of an epoch
            epoch = first // _rounds(stream)
            sums = {key: sums[key] for key in sums if order is None and key[1] < epoch}
        columns = list[tuple[IntArray, IntArray]]()
        for position, _, _ in entries:
            columns.append(_turns(stream, position) if order is None else order.turns(position))
        sources, turns = (np.concatenate(each) for each in zip(*columns, strict=True))
        real = [turns.size for _, turns in columns]
        samples = np.concatenate([it[1][:n] for it, n in zip(entries, real, strict=True)])
        its_marks = np.concatenate([it[2][:n] for it, n in zip(entries, real, strict=True)])
        instead = samples != its_marks[:, 0].view(np.int64)
        which, inverse = np.unique(turns * number + sources, return_inverse=True)
        for at, (turn, source) in enumerate(divmod(it, number) for it in which.tolist()):
            chosen = np.flatnonzero(inverse == at)
            above = self._length_above(stream, source)
            keys, hashes = hashed(catalog, its_marks[chosen], above)
            hashes = np.where(instead[chosen, None], np.uint64(0), hashes)
            bad = its_marks[chosen[instead[chosen]], 0].tolist()
            names = [shown(catalog, it, above) for it in bad]
            before = sums.get((source, turn), _zero(_names(stream)))
            after = before.plus(keys, hashes)
            sums[source, turn] = replace(after, replaced=(*before.replaced, *names))
        if order is None:  # also of an epoch that has no sample for this rank
            sums.setdefault((0, entries[-1][0] // _rounds(stream)), _zero([None]))
        latest = dict(sorted(sums))
        sums = {key: its for key, its in sums.items() if key[1] >= latest[key[0]] - 1}
        self._now = _Now(deque(islice(given, len(entries), None)), sums, entries[-1][0])

    def _length_above(self, stream: BatchStream, source: int) -> int:
        if source not in self._above:
            catalog, _, ordering = stream.open()
            samples = np.arange(catalog.delivered)
            if len(_names(stream)) > 1:
                samples = np.flatnonzero(ordering.sources_of(samples) == source)
            self._above[source] = above_all(catalog, samples)
        return self._above[source]


def _turns(stream: BatchStream, position: int) -> tuple[IntArray, IntArray]:
    """As `StreamOrder.turns()`, for DALI's order."""
    size, rest = stream.open().ordering.epoch_size, stream.rest
    epoch, batch = divmod(position, _rounds(stream))
    if rest is not None and rest.start <= position < rest.stop:
        share, batch = int(rest.shares()[stream.options.shard_id]), position - rest.start
    else:
        shards = Shards(size, stream.options)
        share = shards.epoch_start(epoch + 1) - shards.epoch_start(epoch)
    real = min(max(share - batch * stream.batch_size, 0), stream.batch_size)
    return np.zeros(real, np.int64), np.full(real, epoch)


def _rounds(stream: BatchStream) -> int:
    size = stream.open().ordering.epoch_size
    return rounds(size, stream.options.num_shards, stream.batch_size)


def _names(stream: BatchStream) -> list[Any]:
    """Return the names of the sources of a mixture; [None] for one source."""
    ordering = stream.open().ordering
    mixture = ordering.mixture if isinstance(ordering, StreamOrdering) else None
    return [None] if mixture is None else mixture.names


def _rank(stream: BatchStream) -> list[int] | None:
    world = stream.options.num_shards
    return None if world == 1 else [stream.options.shard_id, world]


def _dataset(stream: BatchStream) -> int:
    catalog = stream.open().catalog
    return catalog.knowing(catalog.checksum()).checksum()


def _zero(names: Sequence[Any]) -> Sum:
    return Sum.zero(256 if len(names) <= _MOST else 1)
