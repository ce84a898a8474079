"""The comparison of the receipt of a data set with that of an epoch."""

from collections.abc import Iterator

import numpy as np

from ..contract._types import IntArray
from .values import COLUMNS, Receipt, Words, table_of

NAMES, _HASHES, _LABELS = [0, 2], slice(3, 5), 5  # columns of a table


def compare(dataset: Receipt, epoch: Receipt, alike: int = 0) -> tuple[bool, str]:
    """Return whether an epoch is its data set, each sample once, and the verdict.

    `alike` samples of the data set share their names with others.

    Raises:
        ValueError: a receipt is damaged, or they are of different modes.
    """
    mode, size = epoch["mode"], dataset["count"]
    if dataset["mode"] != mode:
        make = "without --bytes and --content" if mode == "samples" else f"with --{mode}"
        what = f"the data set's is {dataset['mode']!r}, the epoch's {mode!r}"
        raise ValueError(f"modes differ: {what}; make the first one {make}")
    differs = _differences(dataset, epoch)
    what = "the data set" if epoch["epoch"] is None else f"epoch {epoch['epoch']}"
    what += "" if epoch["source"] is None else f" of {epoch['source']!r}"
    if differs[:, NAMES].any():
        less = size - epoch["count"]
        how = f"{abs(less):,} {'missing' if less > 0 else 'too many'}" if less else ""
        how = how or "others than these"
        return False, f"{what} is not complete: {epoch['count']:,} of {size:,} samples, {how}"
    once = f"{what} has each of {size:,} samples exactly once"
    if alike:  # not told apart
        once = f"{what} has all names of {size:,} samples, {alike:,} of which are not told apart"
    content = {"samples": "sizes", "bytes": "sizes and bytes", "content": "content"}[mode]
    bad, others = epoch["replaced"], differs[differs[:, 1] == 0]
    faults = [f"{bad:,} bad ones were replaced"] * bool(bad)
    faults += [f"with other {content}"] * bool(others[:, _HASHES].any())
    faults += ["with other labels"] * bool(differs[:, _LABELS].any())
    if faults:
        return False, f"{once}, but {', and '.join(faults)}"
    labels = all(table_of(it)[:, _LABELS].any() for it in (dataset, epoch))
    return True, f"{once}, with the same {content}{', and the same labels' * labels}"


def suspects(
    dataset: Receipt, epoch: Receipt, today: Words, keys: Words
) -> Iterator[tuple[str, IntArray | str]]:
    """Find what may be missing, too many, or changed: the word, and samples, or why none is named.

    `today` is the table of the data set as it is listed today, and `keys` are the halves of its
    samples' keys' hashes: uint64[n]. A single sample is proven. Of several samples, some are
    guilty, and no others can be: so there are none unless the names of their group are those of the
    data set's receipt.
    """
    its, differs = table_of(epoch), _differences(dataset, epoch)
    then, rows = its - differs, keys % np.uint64(len(its))
    changes = today.reshape(-1, len(its), COLUMNS).sum(axis=0) - then  # of the data set until now
    same, there = ~changes[:, NAMES].any(axis=1), then[:, 0] > 0
    known = dataset["dataset"] == epoch["dataset"]
    # If no group is equal, names may be those below another directory.
    if not (same & there).any() or not (known or (there & ~differs[:, NAMES].any(axis=1)).any()):
        yield "no names", "the files of today, or of the epoch, are not those of the data set"
        return
    for row in np.flatnonzero(differs.any(axis=1)).tolist():
        less, replaced, key = differs[row, :3].view(np.int64).tolist()
        members = np.flatnonzero(rows == row)
        if found := _proven(keys[members], less, key):
            for kind, at in found:  # more than these have the same names
                alone = at.size <= max(1, abs(less))
                yield from ((kind, members[it]) for it in (at[:, None] if alone else [at]))
            continue
        number = f"{abs(less):,} sample{'s' * (abs(less) > 1)}" if less else "some samples"
        unknown = f"{number}; which is not known, because names have changed since"
        if less > 0:
            kind, unknown = "too many", f"{number}, not in the data set, or given twice"
        elif less or key:
            kind = "missing" if less else "missing, and others in its place"
            if less and (changes[row, NAMES] == differs[row, NAMES]).all():
                unknown = f"{number}, no longer in the data set"
        else:
            label = "with another label" if not differs[row, _HASHES].any() else "changed"
            kind = "replaced" if replaced else label
        yield kind, members if same[row] and (known or less <= 0) else unknown


def _differences(dataset: Receipt, epoch: Receipt) -> Words:
    """Return the sums of the epoch less those of the data set, in the epoch's groups."""
    its, here = table_of(epoch), table_of(dataset)
    differs: Words = its - here.reshape(-1, len(its), COLUMNS).sum(axis=0)  # a mixture has fewer
    if not (here[:, _LABELS].any() and its[:, _LABELS].any()):
        differs[:, _LABELS] = 0  # one of them has no labels
    return differs


def _proven(keys: Words, less: int, key: int) -> list[tuple[str, IntArray]]:
    """Return the samples, one or two of a group, whose keys have this sum, or else nothing."""
    rest = np.uint64((-key if less < 0 else key) % 2**64)
    if abs(less) in (1, 2):
        pairs = np.isin(rest - keys, keys) if abs(less) == 2 else keys == rest
        found = [("missing" if less < 0 else "too many", pairs)]
    elif less or not key:
        return []
    else:
        found = [("missing", np.isin(keys + rest, keys)), ("too many", np.isin(keys - rest, keys))]
    return [(kind, np.flatnonzero(its)) for kind, its in found if its.any()]
