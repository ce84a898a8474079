"""Compares the bytes and labels of every sample with those that are right."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from bmap_tools.console import Tick, bar

from .legs import Leg
from .measure import Results, running
from .pipelines import Array
from .workload import Workload, epoch_of, summarize_error

_MOST_SHOWN = 20

Sample: TypeAlias = tuple[Array, Array]
"""The bytes and the label of a sample."""


def verify(legs: Sequence[Leg], workload: Workload, results: Results) -> None:
    """Fail every leg that differs from the truth of its family, and print the first differences."""
    say = partial(print, file=sys.stderr)
    for leg in running(legs, results):
        result, step, count = results[leg.name], f"verifying {leg.name}", 0
        try:
            with bar(step, len(workload.catalog)) as tick:
                for count, difference in enumerate(differences(leg, workload, tick), 1):
                    if count <= _MOST_SHOWN:
                        say(f"{leg.name}: {difference}")
        except Exception as error:  # a reader may raise anything
            result.failed = summarize_error(error)
            continue
        if count > _MOST_SHOWN:
            say(f"{leg.name}: and {count - _MOST_SHOWN} more")
        if count:
            result.failed = f"{count} differences from {leg.family.expected}"
        say(f"{step}: {result.failed or f'the same as {leg.family.expected}'}")


def differences(leg: Leg, workload: Workload, tick: Tick) -> Iterator[str]:
    """A line for each difference between the leg and the truth of its family in one epoch."""
    epoch = leg.adapt(epoch_of(workload))
    batch_size = epoch.order.shape[1]
    with leg.build(epoch, True) as candidate, leg.family.truth(epoch, True) as reference:
        pairs = zip(range(len(epoch.order)), candidate.batches, reference.batches, strict=False)
        for batch, *pair in pairs:
            ours, theirs = map(_samples, pair)
            if len(ours) != len(theirs):
                yield f"batch {batch}: {len(ours)} samples instead of {len(theirs)}"
            for slot, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
                sample = f"sample {batch * batch_size + slot}, {epoch.name(batch, slot)}"
                yield from (f"{sample}: {what}" for what in _compare(mine, its))
            tick((batch + 1) * batch_size)


def _samples(outputs: Any) -> list[Sample]:
    """A batch as arrays in host memory. They are valid until the next run of its pipeline."""
    data, labels = (output.as_cpu() for output in outputs)
    return [(np.asarray(data.at(i)), np.asarray(labels.at(i))) for i in range(len(data))]


def _compare(mine: Sample, its: Sample) -> Iterator[str]:
    for what, got, expected in zip(("bytes", "label"), mine, its, strict=True):
        if got.dtype != expected.dtype or got.shape != expected.shape:
            kinds = [f"{one.dtype}{list(one.shape)}" for one in (got, expected)]
            yield f"{what}: {kinds[0]} instead of {kinds[1]}"
        elif not np.array_equal(got, expected):
            first = int(np.flatnonzero(got != expected)[0])
            yield f"{what}: {got[first]} instead of {expected[first]} at {first}"
