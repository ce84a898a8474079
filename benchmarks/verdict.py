"""The verdict: what a user gets who only swaps the call, and whether the machine was quiet."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .environment import busy_share, cpu_of_others
from .legs import UNTUNED, Leg
from .measure import DRIFT, Figures, Results, drifts, summarize
from .workload import Workload

X = "x: the median of the ratios to DALI's own reader, in its faster mode, in neighbouring turns"
_LOOK = 0.3  # seconds
_BUSY = 0.1
"""The share of the processors from which on there is a warning."""
_FILL = 1024
"""Samples in DALI's `initial_fill`; it reads them for the first batch, if it shuffles."""


@dataclass(slots=True)
class Comparison:
    """Legs that are timed side by side.

    Attributes:
        title: the situation, for the verdict.
    """

    title: str
    legs: Sequence[Leg]
    workload: Workload
    results: Results


class Watch:
    """What other programs take of the processors: at the start, and since then."""

    def __init__(self) -> None:
        before = cpu_of_others()
        time.sleep(_LOOK)
        self._at_start, self._since = busy_share(before), cpu_of_others()

    def busy(self) -> dict[str, float]:
        """The shares of all processors."""
        return {"at the start": self._at_start, "during the run": busy_share(self._since)}


def warnings_of(busy: Mapping[str, float], compared: Sequence[Comparison]) -> list[str]:
    """Why the figures may not be those of a quiet machine."""
    found = [
        f"busy machine: others took {share:.0%} of its processors {when}"
        for when, share in busy.items()
        if share > _BUSY
    ]
    halves = [
        f"{part.title} {name} by {drift:.0%}"
        for part in compared
        for name, drift in drifts(part.results).items()
        if drift > DRIFT
    ]
    if halves:
        found.append(f"the two halves of the run differ: {', '.join(halves)}")
    found = [f"warning: {warning}: repeat when the machine is quiet" for warning in found]
    return found + [
        f"warning: {part.title}: the filling of DALI's shuffle buffer decides: an epoch has "
        f"{samples:,} samples; at least {4 * _FILL:,} are needed"
        for part in compared
        if part.workload.settings.cold and part.workload.settings.seed is not None
        if (samples := len(part.workload.catalog)) < 4 * _FILL
    ]


def untuned(compared: Iterable[Comparison]) -> dict[str, Figures]:
    """The figures of the legs without an option, by the names of the verdict."""
    return {
        f"{part.title} {UNTUNED[name]}".strip(): row
        for part in compared
        for name, row in summarize(part.results).items()
        if name in UNTUNED and "ratio" in row and not _is_tuned(part.workload)
    }


def _is_tuned(workload: Workload) -> bool:
    """Whether the command line has options of the readers."""
    its = workload.settings
    return its.copying_lanes is not None or its.pinned != "auto"


def verdict(ratios: Mapping[str, float | None]) -> str:
    """What a user gets who only swaps the call; of the `x` of the legs without an option."""
    said = ", ".join(f"{times(x)} {what}" for what, x in ratios.items() if x is not None)
    return f"no options: {said or 'not measured'}"


def times(ratio: float) -> str:
    """An x of two digits."""
    shown = np.format_float_positional(ratio, 2, unique=False, fractional=False)
    return f"{shown.rstrip('.')}x"
