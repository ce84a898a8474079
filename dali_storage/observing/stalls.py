"""The warnings of a hanging reader."""

from __future__ import annotations

import math
from collections.abc import Callable

from .meter import Meter
from .reporting import paragraph

_TIMES = (1, 2, 4, 8)  # of stall_after, at which there is a warning


class Stall:
    """Warns of the threads of a reader that are in one stage for long, also when it goes on."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        """`warn` is given each warning."""
        self._warn = warn
        # For each thread, when its stage began, and how many of `_TIMES` it had lasted.
        self._crossed = dict[str, tuple[int, int]]()
        self._warned = -math.inf  # when, in nanoseconds

    def look(self, meter: Meter, now: int, resumed: int) -> float:
        """Return the seconds until the next stage has lasted too long, if all stages go on.

        A stage that began before the process `resumed` begins then.
        """
        stall_after = meter.stall_after or math.inf
        stages = {it.name: began for it in meter.threads for _, began in it.log[-1:]}
        ages = [(now - max(began, resumed)) / 1e9 for began in stages.values()]
        before, self._crossed = self._crossed, {}
        rising = list[float]()
        for (name, began), age in zip(stages.items(), ages, strict=True):
            crossed = sum(age >= times * stall_after for times in _TIMES)
            self._crossed[name] = began, crossed
            start, level = before.get(name, (began, 0))
            if crossed > (level if start == began else 0):
                rising.append(age)
        # Threads that stand still for one reason share a warning.
        if rising and now - self._warned >= 0.5e9 * stall_after:
            self._warned = now
            head = f"in one stage for {max(rising):.1f} s (stall_after={stall_after:g})"
            self._warn(paragraph(meter, head, now).rstrip("\n"))
        limits = [(times * stall_after, age) for times in _TIMES for age in ages]
        return min((limit - age for limit, age in limits if limit > age), default=stall_after)
