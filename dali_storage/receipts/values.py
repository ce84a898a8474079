"""Receipts as plain types, for JSON; a receipt is of one source and of one epoch or pass.

version     of this format
mode        "samples", "bytes" or "content"
dataset     CRC-32 of the data set, as in states
source      its name or label in a mixture; None: there is one source
epoch       the epoch or, in a stream with passes, the pass; None: the data set's own receipt
shard       the rank that it is of, and the number of ranks; None: all ranks, or the data set
run         what tells its run from others, by source: see `ranks.run`; empty: nothing does
count       samples delivered, without padding
replaced    those of them that are bad, and others were delivered for
sum         the sums of both halves of the samples' hashes, modulo 2**64, in hexadecimal
table       base64 of deflated <u8[n, 6]; row i has the sums of `Hashes.rows()` of the samples
            whose keys' hashes are i modulo n; n is a power of two, at most 256
"""

import base64
import re
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..ranks.run import USER, different

Receipt: TypeAlias = dict[str, Any]
Words: TypeAlias = npt.NDArray[np.uint64]

VERSION = 2  # 1: other names of samples, no labels, no run
COLUMNS = 6
ROWS = 256  # of the receipt of a data set

_SHOWN = 5  # missing ranks
_PLACE = "epoch", "given", "num_shards"
_SAME = {"mode": "modes", "dataset": "data sets", "source": "sources", "epoch": "epochs"}
_KEYS = {"version", *_SAME, "shard", "run", "count", "replaced", "sum", "table"}


def receipt_of(table: Words, **others: Any) -> Receipt:
    """Make a receipt of its table; the `others` are the entries before `count`."""
    count, replaced, _, low, high, _ = table.sum(axis=0).tolist()
    named = {"count": count, "replaced": replaced, "sum": f"{high:016x}{low:016x}"}
    return {"version": VERSION, **others, **named, "table": packed(table)}


def table_of(receipt: Any, what: str = "not a receipt", remedy: str = "make it again") -> Words:
    """Check a receipt, and return its table: uint64[n, 6]; an error begins with `what`.

    Raises:
        ValueError: the receipt is damaged, or of another version.
    """
    if not isinstance(receipt, Mapping) or "version" not in receipt:
        raise ValueError(f"{what}, but {receipt!r:.80}")
    if receipt["version"] != VERSION:
        versions = f"version {receipt['version']!r}, but this release reads version {VERSION}"
        raise ValueError(f"{what}: {versions}: {remedy}")
    if odd := sorted(receipt.keys() ^ _KEYS):
        raise ValueError(f"{what}: missing or unexpected keys: {', '.join(odd)}")
    words = unpacked(receipt["table"], what)
    if words.size not in {COLUMNS << it for it in range(ROWS.bit_length())}:
        raise ValueError(f"{what}: it is damaged: its table has {words.size} numbers")
    same = receipt_of(table := words.reshape(-1, COLUMNS))
    if any(receipt[name] != same[name] for name in ("count", "replaced", "sum")):
        raise ValueError(f"{what}: it is damaged: its table has another count or sum")
    counts, replaced = table[:, 0], table[:, 1]
    if (counts >> 48).any() or (replaced > counts).any() or table[counts == 0].any():
        raise ValueError(f"{what}: it is damaged: its table has impossible counts")
    shard, epoch, run = receipt["shard"] or [0, 1], receipt["epoch"] or 0, receipt["run"]
    whole = isinstance(shard, (list, tuple)) and [*map(type, [*shard, epoch])] == [int] * 3
    if not whole or not 0 <= shard[0] < shard[1] or epoch < 0 or not isinstance(run, Mapping):
        its = f"shard is {shard!r:.80}, epoch is {epoch!r:.80}, run is {run!r:.80}"
        raise ValueError(f"{what}: it is damaged: {its}")
    return table


def packed(words: npt.NDArray[Any]) -> str:
    """Return integers as text: base64 of deflated <u8[n]."""
    return base64.b64encode(zlib.compress(words.astype("<u8").tobytes())).decode()


def unpacked(text: str, what: str) -> Words:
    """Return the integers of `packed()`: uint64[n]; a ValueError begins with `what`."""
    try:
        return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u8").astype(np.uint64)
    except (TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"{what}: it is damaged: {error}") from None


def combine(*receipts: Mapping[str, Any]) -> Receipt:
    """Add the receipts of all ranks of one epoch, each rank once.

    Raises:
        ValueError: there are none; one is damaged; one rank is missing, or given twice; or they are
            of different numbers of ranks, runs, data sets, modes, versions, sources or epochs.
    """
    tables = [table_of(it) for it in receipts]
    given, run = dict[int, Mapping[str, Any]](), dict[str, str]()
    for other in receipts:
        for name, words in _SAME.items():
            if receipts[0][name] != other[name]:
                what = f"receipts of different {words} cannot be combined"
                raise ValueError(f"{what}: {name} is {receipts[0][name]!r} and {other[name]!r}")
        (_, world), (rank, its) = (it["shard"] or (0, 1) for it in (receipts[0], other))
        if its != world:
            raise ValueError(f"receipts of {world} and of {its} ranks cannot be combined")
        if rank in given:
            raise ValueError(f"the receipt of rank {rank} of {world} is given twice")
        given[rank] = other
        for before, each in given.items():
            if each["run"] != other["run"] and (differs := different(each["run"], other["run"])):
                what = f"the receipts of ranks {before} and {rank} are of different runs: {differs}"
                remedy = f"if they are of one, give all ranks the same {USER} in the environment"
                raise ValueError(f"{what}; {remedy}")
        run |= other["run"]
    if not receipts:
        raise ValueError("the receipt of each rank must be given once, but there are none")
    if len(given) < world:
        missing = [it for it in range(min(world, len(given) + _SHOWN)) if it not in given]
        what = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))} of {world}"
        raise ValueError(f"{what} gave no receipt: give those of all {world} ranks")
    total: Words = np.sum(tables, axis=0, dtype=np.uint64)
    return receipt_of(total, **{name: receipts[0][name] for name in _SAME}, shard=None, run=run)


def join(*states: Mapping[str, Any]) -> dict[str, Any]:
    """Make one state of `readers.state()` of all ranks, each rank once: with all their receipts.

    At the end of an epoch, ranks with a smaller share may be in the next epoch already, as with
    `last_batch="partial"` of a `Loader`. The state is that of the ranks behind them.

    Raises:
        ValueError: there are none; one has no receipt; they are of different positions; or as
            `combine()`.
    """
    parts, newest = dict[tuple[Any, int], list[Receipt]](), dict[Any, int]()
    if not all(it.get("receipt") is not None and "given" in it for it in states) or not states:
        raise ValueError("a state has no receipt: create the reader with receipt=")
    behind = min(states, key=lambda it: (it["epoch"], it["given"]))
    found = re.search(r"(?:epoch_size|one of) (\d+)", behind.get("stream", ""))  # of a stream
    size = int(found[1]) if found else behind["samples"]
    for state in states:
        # Of no share is more than one sample left.
        is_last = 0 < size - behind["given"] < len(states)
        ahead = is_last and (state["epoch"], state["given"]) == (behind["epoch"] + 1, 0)
        for name in state.keys() - {"receipt", *(_PLACE if ahead else ())}:
            if state[name] != behind.get(name):
                what = f"{name} is {behind.get(name)!r} and {state[name]!r}"
                raise ValueError(f"the states are not of one position: {what}")
        for each in state["receipt"]:
            table_of(each)
            newest[each["source"]] = max(each["epoch"], newest.get(each["source"], 0))
    for state in states:
        own = {it["source"]: it for it in state["receipt"]}
        given = {(it["source"], it["epoch"]): it for it in state["receipt"]}
        for source in newest.keys() & own.keys():
            # A rank may not have begun a pass of others; what is older is forgotten anyway.
            none = {name: own[source][name] for name in (*_SAME, "shard", "run")}
            for epoch in range(max(0, newest[source] - 1), newest[source] + 1):
                blank = receipt_of(table_of(own[source]) * 0, **none | {"epoch": epoch})
                parts.setdefault((source, epoch), []).append(given.get((source, epoch), blank))
    return {**behind, "receipt": [combine(*each) for each in parts.values()]}
