"""Compares the bytes and labels of every sample with those that are right."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from bmap_tools.console import Tick

from .legs import Leg
from .measure import Results, running
from .pipelines import Array, build, keep_bytes
from .progress import progress, say
from .workload import Workload, order_of, summarize_error

_MOST_SHOWN = 20

Sample: TypeAlias = tuple[Array, Array]
"""The bytes and the label of a sample."""


def verify(legs: Sequence[Leg], workload: Workload, results: Results) -> None:
    """Fail every leg that differs from its `truth()`, and print the first differences."""
    for leg in running(legs, results):
        result, step, count = results[leg.name], f"verifying {leg.name}", 0
        try:
            with progress(step, len(workload.catalog)) as tick:
                for count, difference in enumerate(differences(leg, workload, tick), 1):
                    if count <= _MOST_SHOWN:
                        say(f"{leg.name}: {difference}")
        except Exception as error:  # a reader may raise anything
            result.failed = summarize_error(error)
            continue
        if count > _MOST_SHOWN:
            say(f"{leg.name}: and {count - _MOST_SHOWN} more")
        if count:
            result.failed = f"{count} differences from {leg.expected}"
        say(f"{step}: {result.failed or f'the same as {leg.expected}'}")


def differences(leg: Leg, workload: Workload, tick: Tick) -> Iterator[str]:
    """A line for each difference between the leg and its `truth()` in one epoch."""
    settings = replace(workload.settings, batches=None)
    order = order_of(len(workload.catalog), settings)
    epoch = leg.ordered(replace(workload, settings=settings, order=order))
    candidate, reference = (build(read, epoch, keep_bytes) for read in (leg.read, leg.truth))
    batch_size = epoch.order.shape[1]
    for batch in range(len(epoch.order)):
        ours, theirs = _run(candidate), _run(reference)
        if len(ours) != len(theirs):
            yield f"batch {batch}: {len(ours)} samples instead of {len(theirs)}"
        for slot, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
            sample = f"sample {batch * batch_size + slot}, {epoch.name(batch, slot)}"
            yield from (f"{sample}: {what}" for what in _compare(mine, its))
        tick((batch + 1) * batch_size)


def _run(pipe: Any) -> list[Sample]:
    """The next batch as arrays in host memory. They are valid until the next run of `pipe`."""
    data, labels = (output.as_cpu() for output in pipe.run())
    return [(np.asarray(data.at(i)), np.asarray(labels.at(i))) for i in range(len(data))]


def _compare(mine: Sample, its: Sample) -> Iterator[str]:
    for what, got, expected in zip(("bytes", "label"), mine, its, strict=True):
        if got.dtype != expected.dtype or got.shape != expected.shape:
            yield f"{what}: {_kind(got)} instead of {_kind(expected)}"
        elif not np.array_equal(got, expected):
            first = int(np.flatnonzero(got != expected)[0])
            yield f"{what}: {got[first]} instead of {expected[first]} at {first}"


def _kind(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
