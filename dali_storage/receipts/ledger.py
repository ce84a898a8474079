"""The ledger of a stream: adds up what has reached the user, several batches at once."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from ..bad_samples.arguments import bad_sample_options
from ..contract._types import IntArray
from ..order.sampling.dealing import StreamOrder
from ..order.sampling.ordering import StreamOrdering
from ..order.shards import Shards, rounds
from ..reading.loading import LoadedBatch
from ..reading.source import BatchStream
from .hashing import HashedLoading, above_all, hashed, xxhash
from .values import COLUMNS, Receipt, Words, receipt_of, table_of

_STEP = 16  # batches that are added at once
_HELD = 64  # batches that an iterator may hold; see `reading.position`
_MOST = 16  # sources with a table of 256 rows


class _Now(NamedTuple):
    """What is known; replaced as a whole, so that a Ctrl-C leaves no half.

    Attributes:
        given: position, samples and `hashing.marks()` of the last batches, not added yet.
        tables: see `receipt_of()`; by the number of the source (0 if there is one), and its *turn*,
            an epoch or, in a stream, a pass. Of each source the last two.
        place: the position of the last batch that was added.
    """

    given: deque[tuple[int, IntArray, Words]]
    tables: Mapping[tuple[int, int], Words]
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
        why = "otherwise an epoch begins within a batch"
        raise ValueError(f"receipt needs pad_last_batch=True; {why}")
    xxhash()
    loading = partial(HashedLoading, mode == "bytes")
    on_error = replace(bad_sample_options(about, device), kind=loading)
    return {"on_error": on_error, "ledger": partial(Ledger, mode)}


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
        for _ in range(min(pending, len(self._now.given))):
            self._now.given.pop()

    def receipt(
        self, stream: BatchStream, pending: int, epoch: int | None = None, source: Any = None
    ) -> Receipt:
        """Return the receipt of a turn; see `readers.receipt()`, also for the errors."""
        self._add(stream, pending)
        names = _names(stream)
        if source not in names:
            raise ValueError(f"{stream}: source must be one of {names!r:.200}, not {source!r}")
        number = names.index(source)
        latest = max([turn for its, turn in self._now.tables if its == number], default=0)
        turn = latest if epoch is None else epoch
        if turn < max(0, latest - 1):
            what = f"epoch must be {latest - 1} or {latest}, not {epoch!r}"
            raise ValueError(f"{stream}: {what}: the receipts of earlier ones are forgotten")
        return self._of(stream, number, turn)

    def saved(self, stream: BatchStream, pending: int) -> list[Receipt]:
        """Return the receipts for a state or a checkpoint."""
        self._add(stream, pending)
        return [self._of(stream, *key) for key in sorted(self._now.tables)]

    def begin(self, stream: BatchStream, saved: Any) -> None:
        """Begin at the position of the stream, with the receipts of a state; None: it has none.

        Those of all ranks go on in rank 0.

        Raises:
            ValueError: there are none within an epoch; or one is damaged, or of another mode or
                rank.
        """
        position, rest, shard = stream.position.next, stream.rest, _shard(stream)
        within = position % _rounds(stream) or (rest is not None and position < rest.stop)
        if saved is None and (position if stream.open().ordering.dealt else within):
            why = "it was saved by a reader without receipt=; resume without"
            raise ValueError(f"{stream}: the state has no receipt of the samples before: {why}")
        tables, names = dict[tuple[int, int], Words](), _names(stream)
        for each in saved or ():
            table = table_of(each, f"{stream}: the state has no receipt of such a reader")
            if each["mode"] != self._mode:
                what = f"receipt={each['mode']!r}, but this reader has {self._mode!r}"
                raise ValueError(f"{stream}: the state was made with {what}")
            if each["shard"] not in (None, shard):
                what = "the state has the receipt of rank {} of {}".format(*each["shard"])
                remedy = "save receipts.join() of the states of all ranks"
                raise ValueError(f"{stream}: {what}, not of this one: {remedy}")
            if each["shard"] or stream.options.shard_id == 0:
                tables[names.index(each["source"]), each["epoch"]] = table
        if not stream.open().ordering.dealt:
            tables.setdefault((0, position // _rounds(stream)), _empty(names))
        self._now = _Now(deque(), tables, position - 1)

    def _of(self, stream: BatchStream, number: int, turn: int) -> Receipt:
        names, catalog = _names(stream), stream.open().catalog
        return receipt_of(
            self._now.tables.get((number, turn), _empty(names)),
            mode=self._mode,
            dataset=catalog.knowing(catalog.checksum()).checksum(),
            source=names[number],
            epoch=turn,
            shard=_shard(stream),
        )

    def _add(self, stream: BatchStream, pending: int) -> None:
        """Add all batches but the last ones."""
        given, tables, place = self._now
        entries = [*islice(given, max(0, len(given) - pending))]
        if not entries:
            return
        catalog, _, ordering = stream.open()
        order = cast("StreamOrder", stream.batches()) if ordering.dealt else None
        if (first := entries[0][0]) <= place:  # the user has gone back to the start of an epoch
            epoch = first // _rounds(stream)
            tables = {key: tables[key] for key in tables if order is None and key[1] < epoch}
        found = [
            _turns(stream, position) if order is None else order.turns(position)
            for position, _, _ in entries
        ]
        sources, turns = (np.concatenate(each) for each in zip(*found, strict=True))
        real = [each.size for _, each in found]
        samples = np.concatenate([it[:n] for (_, it, _), n in zip(entries, real, strict=True)])
        its_marks = np.concatenate([it[:n] for (_, _, it), n in zip(entries, real, strict=True)])
        names = _names(stream)
        above = [self._length_above(stream, it) for it in sources.tolist()]
        hashes = hashed(catalog, its_marks, above)
        instead = its_marks[:, 0].view(np.int64) != samples
        hashes[instead, 1:] = 0
        which, inverse = np.unique(turns * len(names) + sources, return_inverse=True)
        keys = [divmod(it, len(names))[::-1] for it in which.tolist()]
        if order is None:  # also an epoch that has no sample for this rank
            keys += {(0, it // _rounds(stream)) for it, _, _ in entries} - {*keys}
        more = np.stack([tables.get(key, _empty(names)) for key in keys])
        columns = np.column_stack([np.ones(turns.size, np.uint64), instead, hashes])
        np.add.at(more, (inverse, hashes[:, 0] % np.uint64(more.shape[1])), columns)
        tables = {**tables, **dict(zip(keys, more, strict=True))}
        latest = dict(sorted(tables))
        tables = {key: tables[key] for key in tables if key[1] >= latest[key[0]] - 1}
        self._now = _Now(deque(islice(given, len(entries), None)), tables, entries[-1][0])

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


def _shard(stream: BatchStream) -> list[int] | None:
    world = stream.options.num_shards
    return None if world == 1 else [stream.options.shard_id, world]


def _empty(names: list[Any]) -> Words:
    return np.zeros((256 if len(names) <= _MOST else 1, COLUMNS), np.uint64)
