"""The checks, one after another: names, labels and bytes here; the order in `orders`."""

import hashlib
import random
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..dali.comparing import VARIANTS, content, pipeline_of, rows
from ..dali.queries import catalog
from .orders import compare_order, compare_ranks
from .packages import Package, compare_values
from .result import Check, counted
from .subject import CannotCompareError, DiffersError, Subject

_AHEAD = 1024  # samples whose times are known before a reader may read them
_LISTING, _CONTENTS = 0.25, 0.25  # parts of the remaining time
_READS = 5  # of each sample by a check of the order, about
_LEAST = 6  # samples for the checks of the order
_WORLDS = (2, 3), (3, 2)  # ranks at the begin of an epoch, and at its end


def compare(
    subject: Subject, most: int, seed: int, package: Package | None = None
) -> Iterator[Check]:
    """Run all checks; checks of single samples use at most `most` random samples.

    With a `package`, compare with it instead of DALI.

    Raises:
        CannotCompareError: DALI's reader fails, or another process writes to the data set.
        Exception: our reader fails for a reason outside of the data.
    """
    try:
        yield from _with(subject, package) if package else _checks(subject, most, seed)
    except Exception:
        subject.require_at_rest()  # a change is the better reason
        raise
    subject.require_at_rest()


def _checks(subject: Subject, most: int, seed: int) -> Iterator[Check]:
    if subject.call != "file":
        with subject.their_errors():
            theirs = pipeline_of(subject.reader(ours=False), {}, batch_size=1)
            subject.total = int(theirs.epoch_size("theirs"))
        yield from _orders(subject, {}, subject.seconds / len(VARIANTS))
        return
    with _check(subject, "names, labels and bytes", _LISTING * subject.seconds) as check:
        _compare_listing(check, subject)
    yield check
    if subject.samples is None:
        return
    count = subject.samples.delivered
    chosen = random.Random(seed).sample(range(count), min(most, count))
    known = dict[str, int]()
    with _check(subject, "bytes on the storage", _CONTENTS * subject.seconds) as check:
        _compare_contents(check, subject, chosen, known)
    yield check
    if not known:
        return
    count = len(VARIANTS) + len(_WORLDS)
    each = subject.seconds / count
    affordable = max(subject.affordable(1 / (count * _READS)), _LEAST)
    some = dict([*known.items()][:affordable])
    yield from _orders(subject, some, each)
    yield from _ranks(subject, some, each)


def _with(subject: Subject, package: Package) -> Iterator[Check]:
    known = dict[str, int]()
    with _check(subject, "bytes, in the order of the list", subject.seconds / 2) as check:
        known = compare_values(check, subject, package)
    yield check
    if subject.total:
        yield from _ranks(subject, known, subject.seconds / 2 / len(_WORLDS))  # may take twice that


def _ranks(subject: Subject, known: Mapping[str, int], seconds: float) -> Iterator[Check]:
    for begin, end in _WORLDS:
        with _check(subject, f"{begin} ranks, resumed on {end}", seconds) as check:
            compare_ranks(check, subject, known, begin, end)
        yield check


def _orders(subject: Subject, known: Mapping[str, int], seconds: float) -> Iterator[Check]:
    for name, order in VARIANTS.items():
        with _check(subject, name, seconds) as check:
            compare_order(check, subject, known, order)
        yield check


@contextmanager
def _check(subject: Subject, name: str, seconds: float) -> Iterator[Check]:
    """Make a check with a limit of time."""
    check, began = Check(name), time.monotonic()
    subject.allow(seconds)
    try:
        yield check
    except DiffersError as error:
        check.differs(str(error))
    check.seconds = round(time.monotonic() - began, 3)
    if check.differences:
        subject.require_at_rest()


def _compare_listing(check: Check, subject: Subject) -> None:
    """Compare an epoch of all samples, in the order of the list, up to the first other name."""
    with subject.their_errors():  # first: a failure of DALI is not our fault
        theirs = pipeline_of(subject.reader(ours=False), {}, batch_size=subject.at_once)
        total = int(theirs.epoch_size("theirs"))
    with subject.our_errors(opening=True):
        ours = pipeline_of(subject.reader(ours=True), {}, batch_size=subject.at_once)
        subject.samples = catalog(ours, "ours")
    if (count := subject.samples.delivered) != total:
        check.differs(f"{counted(count)} instead of {total:,}")
    end, nbytes, is_same = min(total, count), 0, True
    names, began = list[str](), time.monotonic()
    while check.samples < end and is_same and not (check.samples and subject.is_late()):
        ahead = range(len(names), min(check.samples + _AHEAD, end))
        names += subject.names(ahead)
        with subject.their_errors():
            data, labels = theirs.run()
        wanted = [(data[slot].source_info(), *row) for slot, row in enumerate(rows(data, labels))]
        with subject.our_errors():
            *outputs, index = ours.run()
            numbers = np.asarray(index.as_tensor()).ravel().tolist()
            found = zip(numbers, rows(*outputs), strict=True)
            got = [(subject.name(number), *row) for number, row in found]
        for mine, its in zip(got[: end - check.samples], wanted, strict=False):
            check.same(f"sample {check.samples}", mine, its)
            check.samples += 1
            if not (is_same := mine[0] == its[0]):
                break
        nbytes += sum(content(data, slot).nbytes for slot in range(len(wanted)))
    read = max(check.samples, 1)
    subject.size, subject.pace = nbytes / read, (time.monotonic() - began) / read
    check.compared = f"{check.samples:,} of {counted(total)}"


def _compare_contents(
    check: Check, subject: Subject, chosen: Sequence[int], known: dict[str, int]
) -> None:
    """Compare the SHA-256 of samples and of their files; for objects, of DALI's samples.

    Adds the names and the CRC-32 of the right bytes to `known`.
    """
    size, names = subject.at_once, subject.names(chosen)
    theirs = None
    if subject.is_remote:
        with subject.their_errors():
            theirs = pipeline_of(subject.reader(names, ours=False), {}, batch_size=size)
    with subject.our_errors(), subject.batches(names, size) as ours:
        for batch in ours:
            its = names[check.samples : check.samples + len(batch)]
            rights = _right(subject, its, theirs)
            for name, mine, right in zip(its, batch.data, rights, strict=True):
                got, wanted = (hashlib.sha256(it).hexdigest() for it in (mine, right))
                if got != wanted:
                    check.differs(f"{name}: SHA-256 {got:.16} instead of {wanted:.16}")
                known[name] = zlib.crc32(right)
            check.samples += len(batch)
            if check.samples >= _LEAST and subject.is_late():
                break
    check.compared = f"{check.samples:,} of {counted(len(names))}, random"


def _right(subject: Subject, names: Sequence[str], theirs: Any) -> Iterator[Any]:
    """Yield the bytes of samples, by a plain read or from DALI."""
    if theirs is not None:
        with subject.their_errors():
            data, _ = theirs.run()
        yield from (content(data, slot) for slot in range(len(names)))
        return
    for name in names:
        try:
            yield Path(subject.path(name)).read_bytes()
        except OSError as error:
            what = f"cannot compare {name!r}: a plain read fails: {error}"
            raise CannotCompareError(what) from None
