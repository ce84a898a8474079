"""The ledger of a stream: adds up what has reached the user, several batches at once."""

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Self, cast

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.format import Format
from ..order.ordering import Ordering
from ..order.shards import Shards, rounds
from ..ranks.run import before, run_of
from ..reading.loading import LoadedBatch
from ..reading.slots import Ledger
from ..reading.source import BatchStream
from .hashing import Hashed, Hashes, xxh3
from .values import COLUMNS, ROWS, Receipt, Words, receipt_of, table_of

_STEP = 16  # batches that are added at once
_HELD = 64  # batches that an iterator may hold; see `reading.position`


def receipts_of(mode: Any, device: str, padded: Any) -> Callable[[], Ledger]:
    """Return what makes the ledger of a reader with the argument receipt=`mode`.

    Raises:
        ValueError: an argument is wrong.
        BackendUnavailable: xxhash is not installed.
    """
    if mode not in ("samples", "bytes", "content"):
        raise ValueError(f"receipt must be 'samples', 'bytes' or 'content', not {mode!r}")
    if mode != "samples" and device == "gpu":
        raise ValueError(f"receipt={mode!r} needs batches in host memory; use device='cpu'")
    if not padded:
        why = "otherwise an epoch begins within a batch"
        raise ValueError(f"receipt needs pad_last_batch=True; {why}")
    xxh3()
    return partial(Receipts, mode)


class Receipts(Ledger):
    """The receipts of one stream, of the last two *turns* of each source. Used by one thread.

    A turn is an epoch or, in a stream of samples, a pass.
    """

    def __init__(self, mode: str) -> None:
        """`mode`: "samples", "bytes" or "content"."""
        self._mode, self.notes = mode, [self._note]
        self._run = dict[str, str]()  # of the state that this run goes on with
        # Position and `Hashes.rows()` of the last batches.
        self._given = deque[tuple[int, Words]]()
        # Tables by source and by the lowest bit of the turn: uint64[k, 2, n, 6]; the latest turns:
        # int64[k]; and the position of the last batch in them. Replaced as a whole, so that a
        # Ctrl-C leaves no half.
        self._added: tuple[Words, IntArray, int] | None = None

    def counted(self, fmt: Format, catalog: Catalog, ordering: Ordering) -> Format:
        """See `Ledger`."""
        self._hashes = Hashes(catalog, ordering)
        return Hashed(fmt, self._hashes, self._mode)

    def _note(self, stream: BatchStream, batch: LoadedBatch, pending: int) -> Callable[[], object]:
        if stream.substitute.only is not None:
            return int  # for a search of bad samples, not for the user
        given, position = self._given, stream.position.next
        while given and given[-1][0] >= position:  # given again
            given.pop()
        tables, latest, place = self._known(stream)
        if position <= place:  # the user has gone back, in DALI's order to the start of an epoch
            epoch = 0 if (about := _About.of(stream)).dealt else position // about.rounds
            tables = tables * np.uint64(not about.dealt and epoch == latest[0])
            tables[:, epoch & 1] = 0
            self._added = tables, np.full_like(latest, epoch), position - 1
        elif len(given) > pending + _HELD + _STEP:
            self._add(stream, pending + _HELD)
        rows = cast("Words", batch.outputs[-1])
        if batch.asked is not None:
            instead = np.flatnonzero(batch.samples != batch.asked)
            rows[instead] = self._hashes.rows_of_replaced(batch.asked[instead])
            if self._mode == "content":
                rows[instead, 2:] = 0
        return partial(given.append, (position, rows))

    def drop(self, pending: int) -> None:
        """See `Ledger`."""
        self._given = deque(islice(self._given, max(0, len(self._given) - pending)))

    def receipt(
        self, stream: BatchStream, pending: int, epoch: int | None = None, source: Any = None
    ) -> Receipt:
        """See `Ledger`."""
        self._add(stream, pending)
        if source not in (names := _About.of(stream).names):
            raise ValueError(f"{stream}: source must be one of {names!r:.200}, not {source!r}")
        latest = int(self._known(stream)[1][names.index(source)])
        if epoch is not None and epoch < max(0, latest - 1):
            what = f"epoch must be {latest - 1} or {latest}, not {epoch!r}"
            raise ValueError(f"{stream}: {what}: the receipts of earlier ones are forgotten")
        return self._of(stream, names.index(source), latest if epoch is None else epoch)

    def saved(self, stream: BatchStream, pending: int) -> dict[str, Any]:
        """See `Ledger`."""
        self._add(stream, pending)
        latest = enumerate(self._known(stream)[1].tolist())
        turns = [(k, turn) for k, it in latest for turn in (it - 1, it) if turn >= 0]
        return {"receipt": [self._of(stream, *turn) for turn in turns]}

    def begin(self, stream: BatchStream, saved: Any) -> None:
        """See `Ledger`; the receipts of all ranks go on in rank 0.

        Raises:
            ValueError: there are none within an epoch; or one is damaged, or of another mode or
                rank.
        """
        position, rest, about = stream.position.next, stream.rest, _About.of(stream)
        within = position % about.rounds or (rest is not None and position < rest.stop)
        if saved is None and (position if about.dealt else within):
            why = "it was saved by a reader without receipt=; resume without"
            raise ValueError(f"{stream}: the state has no receipt of the samples before: {why}")
        self._added = None
        tables, latest, _ = self._known(stream)
        what = f"{stream}: the state has no receipt of such a reader"
        found = [(it, table_of(it, what, "resume without receipt=")) for it in saved or ()]
        self._run = before({name: it for each, _ in found for name, it in each["run"].items()})
        for each, table in sorted(found, key=lambda it: it[0]["epoch"], reverse=True):
            if each["mode"] != self._mode:
                what = f"receipt={each['mode']!r}, but this reader has {self._mode!r}"
                raise ValueError(f"{stream}: the state was made with {what}")
            if each["shard"] not in (None, about.shard):
                what = "the state has the receipt of rank {} of {}".format(*each["shard"])
                remedy = "save receipts.join() of the states of all ranks"
                raise ValueError(f"{stream}: {what}, not of this one: {remedy}")
            number, turn = about.names.index(each["source"]), each["epoch"]
            latest[number] = max(latest[number], turn)
            if turn >= latest[number] - 1 and (each["shard"] or stream.options.shard_id == 0):
                tables[number, turn & 1] = table

    def _known(self, stream: BatchStream) -> tuple[Words, IntArray, int]:
        if self._added is None:
            about, position = _About.of(stream), stream.position.next
            rows = max(1, ROWS >> (len(about.names) - 1).bit_length())  # of all as many as of one
            latest = np.full(len(about.names), 0 if about.dealt else position // about.rounds)
            self._added = np.zeros((latest.size, 2, rows, COLUMNS), np.uint64), latest, position - 1
        return self._added

    def _of(self, stream: BatchStream, number: int, turn: int) -> Receipt:
        (tables, latest, _), about = self._known(stream), _About.of(stream)
        catalog = stream.open().catalog
        catalog.knowing(catalog.checksum())  # slow
        named = {"mode": self._mode, "dataset": catalog.checksum(), "source": about.names[number]}
        table = tables[number, turn & 1] * np.uint64(turn <= latest[number])
        run = self._run | run_of(stream.options.num_shards)
        return receipt_of(table, **named, epoch=turn, shard=about.shard, run=run)

    def _add(self, stream: BatchStream, pending: int) -> None:
        """Add all batches but the last ones."""
        given = self._given
        tables, latest, place = self._known(stream)
        entries = [it for it in islice(given, max(0, len(given) - pending)) if it[0] > place]
        if entries:
            positions = [position for position, _ in entries]
            counts, sources, turns = _turns(stream, positions)
            rows = np.concatenate([it[:n] for (_, it), n in zip(entries, counts, strict=True)])
            newest, tables = latest.copy(), tables.copy()
            np.maximum.at(newest, sources, turns)
            if not (about := _About.of(stream)).dealt:  # a rank may have no sample in an epoch
                newest[0] = max(newest[0], positions[-1] // about.rounds)
            for each in (newest, newest - 1):
                new = np.flatnonzero(each > latest)
                tables[new, each[new] & 1] = 0
            kept = turns >= newest[sources] - 1
            where = sources, turns & 1, rows[:, 2] % np.uint64(tables.shape[2])
            np.add.at(tables, tuple(it[kept] for it in where), rows[kept])
            self._added = tables, newest, positions[-1]
        while given and given[0][0] <= self._known(stream)[2]:
            given.popleft()


def _turns(stream: BatchStream, positions: list[int]) -> tuple[list[int], IntArray, IntArray]:
    """Return the number of samples of each batch without padding, and their sources and turns."""
    about, rest, size = _About.of(stream), stream.rest, stream.batch_size
    if about.dealt:
        dealt: Any = stream.batches()  # `StreamOrder`
        found: tuple[list[int], IntArray, IntArray] = dealt.turns(positions)
        return found
    counts, turns = list[int](), list[int]()
    shards = Shards(stream.open().ordering.epoch_size, stream.options)
    for position in positions:
        epoch, batch = divmod(position, about.rounds)
        share = shards.epoch_start(epoch + 1) - shards.epoch_start(epoch)
        if rest is not None and rest.start <= position < rest.stop:
            share, batch = int(rest.shares()[stream.options.shard_id]), position - rest.start
        counts.append(min(max(share - batch * size, 0), size))
        turns.append(epoch)
    return counts, np.zeros(sum(counts), np.int64), np.repeat(turns, counts)


class _About(NamedTuple):
    """What a stream is: the names of the sources of a mixture, or [None]; batches of an epoch."""

    names: list[Any]
    rounds: int
    shard: list[int] | None  # the rank, and the number of ranks; None: one rank
    dealt: bool

    @classmethod
    def of(cls, stream: BatchStream) -> Self:
        ordering, world = stream.open().ordering, stream.options.num_shards
        batches = rounds(ordering.epoch_size, world, stream.batch_size)
        shard = None if world == 1 else [stream.options.shard_id, world]
        return cls([*ordering.sources], batches, shard, ordering.dealt)
