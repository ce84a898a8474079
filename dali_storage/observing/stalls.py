"""The warnings of a hanging reader."""

import math
from collections.abc import Callable, Sequence

from ..contract.stages import Activity
from .reporting import paragraph

_TIMES = (1, 2, 4, 8)  # of stall_after, at which there is a warning


class Stall:
    """Warns of the threads of a reader that are in one stage for long, also when it goes on."""

    def __init__(self, stall_after: float, warn: Callable[[str], object]) -> None:
        """`warn` is given each warning."""
        self._stall_after, self._warn = stall_after, warn
        # For each thread, when its stage began, and how many of `_TIMES` it had lasted.
        self._crossed = dict[str, tuple[int, int]]()
        self._warned = -math.inf  # when, in nanoseconds

    def look(self, title: str, threads: Sequence[Activity], now: int, resumed: int) -> float:
        """Return the seconds until the next stage has lasted too long, if all stages go on.

        A stage that began before the process `resumed` begins then. `title` is the reader's name.
        """
        stages = {it.name: began for it in threads for _, began in it.log[-1:]}
        ages = [(now - max(began, resumed)) / 1e9 for began in stages.values()]
        before, self._crossed = self._crossed, {}
        rising = list[float]()
        for (name, began), age in zip(stages.items(), ages, strict=True):
            crossed = sum(age >= times * self._stall_after for times in _TIMES)
            self._crossed[name] = began, crossed
            start, level = before.get(name, (began, 0))
            if crossed > (level if start == began else 0):
                rising.append(age)
        # Threads that stand still for one reason share a warning.
        if rising and now - self._warned >= 0.5e9 * self._stall_after:
            self._warned = now
            what = f"in one stage for {max(rising):.1f} s (stall_after={self._stall_after:g})"
            self._warn(paragraph(f"{title}: {what}", threads, now).rstrip("\n"))
        limits = [(times * self._stall_after, age) for times in _TIMES for age in ages]
        rest = (limit - age for limit, age in limits if limit > age)
        return min(rest, default=self._stall_after)
