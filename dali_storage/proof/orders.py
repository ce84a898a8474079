"""The checks of the order: shuffles, shards, checkpoints, and several ranks."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, repeat, zip_longest
from typing import Any

from ..dali.comparing import Row, pairs, pipeline_of, rows, sums
from .result import Check, counted
from .subject import Subject


def compare_order(
    check: Check, subject: Subject, known: Mapping[str, int], order: Mapping[str, Any]
) -> None:
    """Compare two epochs and their metadata, also restored from a checkpoint in the first epoch.

    Stops at the first different batch. `known`: the samples, and the CRC-32 of their bytes; none
    for a reader of containers, whose outputs are compared as they are.
    """
    names, total = [*known], len(known) or subject.total
    shards = min(order.get("num_shards", 1), total)
    shard = min(order.get("shard_id", 0), shards - 1)
    share = total // shards
    given = {"initial_fill": 4 * subject.at_once} if "random_shuffle" in order else {}
    given |= {**order, "num_shards": shards, "shard_id": shard}
    ours, theirs = (subject.reader(names, ours=which) for which in (True, False))
    make = partial(pipeline_of, order=given, batch_size=subject.batch_size(share))
    with subject.their_errors():
        its = make(theirs)
    with subject.our_errors():
        mine = make(ours)
        got, meta = mine.reader_meta("ours"), its.reader_meta("theirs")
    if got != meta:
        check.differs(f"reader_meta() is {got} instead of {meta}")
    size = mine.max_batch_size
    batches = 2 * math.ceil(total / shards / size)
    cut = max(share // size // 2, 1)
    how: dict[str, Any] = {"guards": (subject.our_errors, subject.their_errors)}
    how |= {"batches": batches, "cut": cut, "rows": rows if known else sums}
    what, restored, right = f"2 epochs of {counted(total)}", 0, [*known.values()]
    for each in pairs(mine, its, partial(make, ours), **how):
        # Not DALI's bytes: it may pad batches of objects with memory that was never written.
        wanted = [(label, right[label]) for label, _ in each.wanted] if known else each.wanted
        if each.got != wanted:
            where = f"batch {each.batch}"
            where += ", restored from a checkpoint" if each.restored else ""
            for slot, (one, other) in enumerate(zip_longest(each.got, wanted)):
                if one != other:
                    text = f"{_shown(names, one)} instead of {_shown(names, other)}"
                    check.differs(f"{where}, slot {slot}: {text}")
            what = "up to the first different batch"
            break
        restored += each.restored
        check.samples += 0 if each.restored else len(each.got)
        if subject.is_late(1.0 if restored else 2.0):
            what = f"{counted(check.samples)} of 2 epochs of {total:,}"
            what += "" if restored else ", no checkpoint"
            break
    check.compared = what + (f", shard {shard} of {shards}" if shards > 1 else "")


def compare_ranks(
    check: Check, subject: Subject, known: Mapping[str, int], begin: int, end: int
) -> None:
    """Check that an epoch has each sample once, with its bytes; also when other ranks end it.

    `known`: the names and the CRC-32 of the samples; of containers, perhaps only of the first ones.
    """
    names, count = [*known], subject.total or len(known)
    share = count // begin
    if count < max(2 * begin, end):
        check.compared = f"nothing: there are only {counted(count)}"
        return
    size = subject.batch_size(share)
    before = share // 2 // size * size  # samples of each rank: whole batches, at least one

    def run(rank: int, world: int, least: int, **more: Any) -> tuple[list[Row], Any]:
        """Return the first samples of a rank, and the state after them."""
        order = {"random_shuffle": True, "seed": 1, **more}
        order |= {"num_shards": world, "shard_id": rank}
        found = list[Row]()
        with subject.our_errors(), subject.batches(names, size, **order) as ours:
            for batch in chain.from_iterable(repeat(ours)):
                found += subject.rows(batch)
                if len(found) >= least or subject.is_late(2.0):
                    break
            return found[:least], ours.state()

    shares = [(rank + 1) * count // begin - rank * count // begin for rank in range(begin)]
    whole = [row for rank in range(begin) for row in run(rank, begin, shares[rank])[0]]
    _require_each_once(check, f"{begin} ranks", known, whole, count)
    begun = [run(rank, begin, before) for rank in range(begin)]
    given = [row for found, _ in begun for row in found]
    left = count - len(given)
    if not check.differences and left == count - begin * before:
        _, saved = begun[0 if begin < end else -1]
        for rank in range(end):
            given += run(rank, end, len(range(rank, left, end)), resume=saved)[0]
        where = f"{begin} ranks and then {end}"
        _require_each_once(check, where, known, given, count)
    check.samples = len(whole) + len(given)
    late = check.samples < 2 * count and not check.differences
    check.compared = f"2 epochs of {counted(count)}"
    if late:
        check.compared = f"{counted(check.samples)} of 2 epochs of {count:,}"


def _require_each_once(
    check: Check, where: str, known: Mapping[str, int], given: Sequence[Row], count: int
) -> None:
    """Check that no sample is given twice and, if `count` are given, that none is missing."""
    found, right = defaultdict[int, list[int]](list), dict(enumerate(known.items()))
    for label, crc in given:
        found[label].append(crc)
    for label in sorted({*found, *range(count if len(given) == count else 0)}):
        name, wanted = right.get(label, (f"label {label}", None))
        times = len(found[label])
        if times != 1 or label not in range(count):
            check.differs(f"{where}: {name} is given {times} times in an epoch")
        elif wanted is not None and (crc := found[label][0]) != wanted:
            check.differs(f"{where}: {name} has the CRC-32 {crc:08x} instead of {wanted:08x}")


def _shown(names: Sequence[str], row: Row | None) -> str:
    if row is None:
        return "nothing"
    label, checksum = row
    name = names[label] if label in range(len(names)) else f"label {label}"
    name = name if names else f"{label} bytes"
    return f"{name} ({checksum:08x})"
