"""The comparison of the receipt of a data set with that of an epoch."""

from collections.abc import Iterator

import numpy as np

from ..contract._types import IntArray
from .values import COLUMNS, Receipt, Words, table_of


def compare(dataset: Receipt, epoch: Receipt) -> tuple[bool, str]:
    """Return whether an epoch is its data set, each sample once, and the verdict.

    Raises:
        ValueError: a receipt is damaged, or they are of different modes.
    """
    here, its = (table_of(it).sum(axis=0) for it in (dataset, epoch))
    mode, size = epoch["mode"], dataset["count"]
    if dataset["mode"] != mode:
        make = "with --bytes" if mode == "bytes" else "without --bytes"
        what = f"the data set's is {dataset['mode']!r}, the epoch's {mode!r}"
        raise ValueError(f"modes differ: {what}; make the first one {make}")
    what = "the data set" if epoch["epoch"] is None else f"epoch {epoch['epoch']}"
    what += "" if epoch["source"] is None else f" of {epoch['source']!r}"
    content = "sizes and bytes" if mode == "bytes" else "sizes"
    once = f"{what} has each of {size:,} samples exactly once"
    if (here == its).all():
        return True, f"{once}, with the same {content}"
    if (here[[0, 2]] == its[[0, 2]]).all():
        bad = epoch["replaced"]
        but = f"{bad:,} bad ones were replaced" if bad else f"with other {content}"
        return False, f"{once}, but {but}"
    less = size - epoch["count"]
    how = f"{abs(less):,} {'missing' if less > 0 else 'too many'}" if less else "others than these"
    return False, f"{what} is not complete: {epoch['count']:,} of {size:,} samples, {how}"


def suspects(dataset: Receipt, epoch: Receipt, keys: Words) -> Iterator[tuple[str, IntArray]]:
    """Find what may be missing, too many, or changed: the word, and samples of the data set.

    `keys` are the halves of the samples' keys' hashes: uint64[n]. Where one sample of a row of the
    tables is missing or too many, it is found exactly; otherwise all samples of the row may be.
    """
    its, here = table_of(epoch), table_of(dataset)
    differs = its - here.reshape(-1, len(its), COLUMNS).sum(axis=0)  # a mixture has fewer rows
    rows = keys % np.uint64(len(its))
    for row in np.flatnonzero(differs.any(axis=1)).tolist():
        less, replaced, key = differs[row, :3].view(np.int64).tolist()
        members = np.flatnonzero(rows == row)
        kind = "missing" if less < 0 else "too many" if less else "missing and too many"
        if not less and not key:
            kind = "replaced" if replaced else "changed"
        exact = members[keys[members].view(np.int64) * np.int64(less or 1) == key]
        yield kind, exact if exact.size else members
