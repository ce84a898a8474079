"""Does a leg deliver what `fn.readers.file` delivers? Sample by sample, bytes and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .legs import REFERENCE, Leg, build, keep_bytes
from .measure import Results
from .progress import Display
from .work import Tick, Work, explain

_MOST_SHOWN = 20

Sample: TypeAlias = tuple[npt.NDArray[Any], npt.NDArray[Any]]
"""The bytes and the label of a sample."""


def verify(legs: Sequence[Leg], work: Work, results: Results, display: Display) -> None:
    """Fail every leg that differs from `fn.readers.file`, and list where."""
    for leg in legs:
        result = results[leg.name]
        if not result.runs:
            continue
        step = f"verifying {leg.name}"
        tick = display.start(step, len(work.catalog))
        count = 0
        try:
            for count, difference in enumerate(differences(leg, work, tick), 1):
                if count <= _MOST_SHOWN:
                    display.say(f"{leg.name}: {difference}")
        except Exception as error:  # whatever a reader may raise
            result.failed = explain(error)
            continue
        if count > _MOST_SHOWN:
            display.say(f"{leg.name}: and {count - _MOST_SHOWN} more")
        if count:
            result.failed = f"{count} differences from fn.readers.file"
        display.say(f"{step}: {result.failed or 'the same as fn.readers.file'}")


def differences(leg: Leg, work: Work, tick: Tick) -> Iterator[str]:
    """One line for each sample of one epoch in which the leg differs from `fn.readers.file`."""
    epoch = work.one_epoch()
    candidate, reference = (build(each, epoch, keep_bytes) for each in (leg, REFERENCE))
    batch_size = epoch.order.shape[1]
    for batch in range(len(epoch.order)):
        ours, theirs = _run(candidate), _run(reference)
        if len(ours) != len(theirs):
            yield f"batch {batch}: {len(ours)} samples instead of {len(theirs)}"
        for position, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
            sample = f"sample {batch * batch_size + position}, {epoch.name(batch, position)}"
            yield from (f"{sample}: {what}" for what in _compare(mine, its))
        tick((batch + 1) * batch_size)


def _run(pipe: Any) -> list[Sample]:
    """The next batch, as arrays in host memory that live until the pipeline's next run."""
    data, labels = (output.as_cpu() for output in pipe.run())
    return [(np.asarray(data.at(i)), np.asarray(labels.at(i))) for i in range(len(data))]


def _compare(mine: Sample, its: Sample) -> Iterator[str]:
    for what, got, expected in zip(("bytes", "label"), mine, its, strict=True):
        if got.dtype != expected.dtype or got.shape != expected.shape:
            yield f"{what}: {_kind(got)} instead of {_kind(expected)}"
        elif not np.array_equal(got, expected):
            first = int(np.flatnonzero(got != expected)[0])
            yield f"{what}: {got[first]} instead of {expected[first]} at {first}"


def _kind(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"
