"""Receipts as plain types, for JSON; a receipt is of one source and of one epoch or pass.

version     of this format
mode        "samples" or "bytes"
dataset     CRC-32 of the data set, as in states
source      its name or label in a mixture; None: there is one source
epoch       the epoch or, in a stream with passes, the pass; None: the data set's own receipt
shard       the rank that it is of, and the number of ranks; None: all ranks, or the data set
count       samples delivered, without padding
replaced    those of them that are bad, and others were delivered for
sum         the sums of both halves of the samples' hashes, modulo 2**64, in hexadecimal
table       base64 of deflated <u8[n, 5]; row i has the sums of `rows_of()` of the samples whose
            keys' hashes are i modulo n; n is a power of two
"""

import base64
import zlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Receipt: TypeAlias = dict[str, Any]
Words: TypeAlias = npt.NDArray[np.uint64]

VERSION = 1
COLUMNS = 5
ROWS = 256  # of the receipt of a data set

_SAME = {"mode": "modes", "dataset": "data sets", "source": "sources", "epoch": "epochs"}
_KEYS = {"version", *_SAME, "shard", "count", "replaced", "sum", "table"}


def receipt_of(table: Words, **others: Any) -> Receipt:
    """Make a receipt of its table; the `others` are the entries before `count`."""
    count, replaced, _, low, high = table.sum(axis=0).tolist()
    named = {"count": count, "replaced": replaced, "sum": f"{high:016x}{low:016x}"}
    return {"version": VERSION, **others, **named, "table": packed(table)}


def table_of(receipt: Any, what: str = "not a receipt") -> Words:
    """Check a receipt, and return its table: uint64[n, 5]; an error begins with `what`.

    Raises:
        ValueError: the receipt is damaged, or of another version.
    """
    if not isinstance(receipt, Mapping) or "version" not in receipt:
        raise ValueError(f"{what}, but {receipt!r:.80}")
    if receipt["version"] != VERSION:
        versions = f"version {receipt['version']!r}, but this release reads version {VERSION}"
        raise ValueError(f"{what}: {versions}")
    if odd := sorted(receipt.keys() ^ _KEYS):
        raise ValueError(f"{what}: missing or unexpected keys: {', '.join(odd)}")
    words = unpacked(receipt["table"], what)
    table = words[: words.size // COLUMNS * COLUMNS].reshape(-1, COLUMNS)
    same = receipt_of(table)
    if table.size < words.size or any(
        receipt[name] != same[name] for name in ("count", "replaced", "sum")
    ):
        raise ValueError(f"{what}: it is damaged: its table has another count or sum")
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
    """Add the receipts of the ranks of one epoch, each rank once.

    Raises:
        ValueError: there are none; one is damaged; one rank is given twice; or they are of
            different data sets, modes, versions, sources or epochs.
    """
    tables = [table_of(it) for it in receipts]
    for other in receipts:
        for name, words in _SAME.items():
            if receipts[0][name] != other[name]:
                what = f"receipts of different {words} cannot be combined"
                raise ValueError(f"{what}: {name} is {receipts[0][name]!r} and {other[name]!r}")
    ranks = [str(it["shard"]) for it in receipts]
    if not ranks or len({*ranks}) < len(ranks):
        raise ValueError(f"the receipt of each rank must be given once, not of {ranks}")
    total: Words = np.sum(tables, axis=0, dtype=np.uint64)
    return receipt_of(total, **{name: receipts[0][name] for name in _SAME}, shard=None)


def join(*states: Mapping[str, Any]) -> dict[str, Any]:
    """Make one state of `readers.state()` of all ranks, each rank once: with all their receipts.

    Raises:
        ValueError: there are none; one has no receipt; they are of different positions; or as
            `combine()`.
    """
    parts = dict[tuple[Any, Any], list[Receipt]]()
    for state in states:
        if state.get("receipt") is None:
            raise ValueError("a state has no receipt: create the reader with receipt=")
        for name in state.keys() - {"receipt"}:
            if state[name] != states[0].get(name):
                what = f"{name} is {states[0].get(name)!r} and {state[name]!r}"
                raise ValueError(f"the states are not of one position: {what}")
        for each in state["receipt"]:
            parts.setdefault((each["source"], each["epoch"]), []).append(each)
    return {**states[0], "receipt": [combine(*each) for each in parts.values()]}
