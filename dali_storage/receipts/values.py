"""Receipts as plain types, for JSON; a receipt is of one source and of one epoch or pass.

version     of this format
mode        "samples" or "bytes"
dataset     CRC-32 of the data set, as in states
source      its name or label in a mixture; None: there is one source
epoch       the epoch or, in a stream with passes, the pass; None: the data set's own receipt
rank        the rank that it is of, and the number of ranks; None: all ranks, or the data set
count       samples delivered, without padding
sum         the sum of the samples' hashes modulo 2**128, in hexadecimal; 0 for replaced samples
buckets     base64 of <u4[buckets, 3], by the low byte of the key's hash: count, and the sums modulo
            2**32 of the keys' (bits 32 to 63) and of the samples' hashes (bits 0 to 31)
replaced    the names of the bad samples that others were delivered for
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..order.resuming.state import require_entries

Receipt: TypeAlias = dict[str, Any]

VERSION = 1

_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    "version": (int,), "mode": (str,), "dataset": (int,), "source": (str, int, _NONE),
    "epoch": (int, _NONE), "rank": (list, _NONE), "count": (int,), "sum": (str,),
    "buckets": (str,), "replaced": (list,),
}  # fmt: skip
_SAME = {"mode": "modes", "dataset": "data sets", "source": "sources", "epoch": "epochs"}


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """The sums of a receipt: `sum`, `buckets` and `replaced`. Never changed."""

    total: int
    table: npt.NDArray[np.uint32]
    replaced: tuple[str, ...] = ()

    @classmethod
    def zero(cls, buckets: int = 256) -> Sum:
        """Return the sums of no sample; `buckets` is 256 or 1."""
        return cls(0, np.zeros((buckets, 3), np.uint32))

    def plus(self, keys: npt.NDArray[np.uint64], hashes: npt.NDArray[np.uint64]) -> Sum:
        """Add samples: the low words of their keys' hashes, and their hashes: uint64[n, 2]."""
        limbs = hashes.astype("<u8").view("<u4").reshape(-1, 4)
        more = sum(it << 32 * at for at, it in enumerate(limbs.sum(0, np.uint64).tolist()))
        columns = np.ones(keys.size, np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
        table = self.table.copy()
        np.add.at(table, bucket(keys, len(table)), np.stack([*columns, limbs[:, 0]], 1))
        return replace(self, total=(self.total + more) % 2**128, table=table)

    def __add__(self, other: Sum) -> Sum:
        """Add the sums of other samples."""
        total = (self.total + other.total) % 2**128
        return Sum(total, self.table + other.table, self.replaced + other.replaced)

    @property
    def count(self) -> int:
        """The number of samples."""
        return int(self.table[:, 0].sum(dtype=np.int64))

    def receipt(self, **others: Any) -> Receipt:
        """Return the receipt; the `others` are the entries before `count`."""
        packed = base64.b64encode(self.table.astype("<u4").tobytes()).decode()
        named = {"count": self.count, "sum": f"{self.total:032x}", "buckets": packed}
        return {"version": VERSION, **others, **named, "replaced": [*self.replaced]}


def bucket(keys: npt.NDArray[np.uint64], buckets: int) -> npt.NDArray[np.intp]:
    """Return the bucket of each sample by the low word of the hash of its key: intp[n]."""
    return (keys % np.uint64(buckets)).astype(np.intp)


def read(receipt: Any, what: str = "not a receipt") -> tuple[Receipt, Sum]:
    """Check a receipt, and return its sums; an error begins with `what`.

    Raises:
        ValueError: the receipt is damaged, or of another version.
    """
    if not isinstance(receipt, Mapping) or "version" not in receipt:
        raise ValueError(f"{what}, but {receipt!r:.80}")
    if receipt["version"] != VERSION:
        versions = f"version {receipt['version']!r}, but this release reads version {VERSION}"
        raise ValueError(f"{what}: {versions}")
    require_entries(what, receipt, _KINDS)
    try:
        table = np.frombuffer(base64.b64decode(receipt["buckets"]), "<u4").reshape(-1, 3)
        found = Sum(int(receipt["sum"], 16), table, tuple(receipt["replaced"]))
    except ValueError as error:
        raise ValueError(f"{what}: it is damaged: {error}") from None
    low = int(table[:, 2].sum(dtype=np.int64))
    if (found.count, low % 2**32) != (receipt["count"], found.total % 2**32):
        raise ValueError(f"{what}: it is damaged: its buckets are not those of its count and sum")
    if receipt["mode"] not in ("samples", "bytes") or len(table) not in (1, 256):
        raise ValueError(f"{what}: it is damaged: its mode or buckets are unknown")
    return dict(receipt), found


def combine(*receipts: Mapping[str, Any]) -> Receipt:
    """Add the receipts of the ranks of one epoch, each rank once.

    Raises:
        ValueError: there are none; one is damaged; one rank is given twice; or they are of
            different data sets, modes, versions, sources or epochs.
    """
    if not receipts:
        raise ValueError("combine() needs the receipt of at least one rank")
    (first, total), *others = [read(it) for it in receipts]
    for other, its in others:
        for name, words in _SAME.items():
            if first[name] != other[name]:
                what = f"receipts of different {words} cannot be combined"
                raise ValueError(f"{what}: {name} is {first[name]!r} and {other[name]!r}")
        total += its
    ranks = [str(it["rank"]) for it in receipts]
    if len({*ranks}) < len(ranks):
        raise ValueError(f"each rank must be given once, not {', '.join(ranks)}")
    same = {name: first[name] for name in _SAME}
    return total.receipt(**same, rank=None)


def join(*states: Mapping[str, Any]) -> dict[str, Any]:
    """Make one state of `readers.state()` of all ranks, each rank once: with all their receipts.

    Raises:
        ValueError: there are none, one has no receipt, they are of different positions, or as
            `combine()`.
    """
    if not states:
        raise ValueError("join() needs the state of at least one rank")
    parts = dict[tuple[Any, Any], list[Receipt]]()
    for state in states:
        if state.get("receipt") is None:
            raise ValueError("a state has no receipt: create the reader with receipt=")
        if differs := [it for it in state if it != "receipt" and state[it] != states[0].get(it)]:
            what = f"{differs[0]} is {states[0].get(differs[0])!r} and {state[differs[0]]!r}"
            raise ValueError(f"the states are not of one position: {what}")
        for each in state["receipt"]:
            parts.setdefault((each["source"], each["epoch"]), []).append(each)
    return {**states[0], "receipt": [combine(*each) for each in parts.values()]}
