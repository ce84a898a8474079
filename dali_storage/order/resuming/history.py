"""The history of a run in its states, and the batches of any of its steps.

A *step* is a batch of each rank, counted from 0 from the beginning of the run. A run has *segments*
with one number of ranks and one batch size. The history of a state has the segments until then:
lists of the state at the beginning (`epoch`, `given`, and `num_shards`, the ranks that began the
epoch), the number of ranks and the batch size. It is empty if an earlier state had none.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ...contract._types import IntArray
from ..options import OrderOptions
from ..ordering import Remainder
from ..sequence import Batches
from .resume import Rest, StreamRest


class Segment(NamedTuple):
    """A part of a run.

    Attributes:
        step: the first step.
        position: its position in the streams of the ranks.
        rest: the rest of an epoch that others have begun, or None.
        world: the number of ranks.
        batch_size: their batch size.
    """

    step: int
    position: int
    rest: Rest | None
    world: int
    batch_size: int


def resumed(saved: Mapping[str, Any], world: int, batch_size: int) -> list[list[int]]:
    """Return the history of a run that these ranks go on with from a state."""
    history: list[list[int]] = saved["history"]
    if not history or history[-1][3:] == [world, batch_size]:
        return history  # as if there had been no break
    return [*history, [saved["epoch"], saved["given"], saved["num_shards"], world, batch_size]]


def require_history(what: str, history: list[Any]) -> None:
    """Refuse a damaged history; an error begins with the first argument.

    Raises:
        ValueError: names the segment.
    """
    for each in history:
        known = isinstance(each, list) and [*map(type, each)] == [int] * 5
        if not known or min(each) < 0 or min(each[2:]) < 1:
            raise ValueError(f"{what}: the history has {each!r:.80}")


class Run:
    """The steps of a run, up to its state and beyond.

    Attributes:
        segments: the parts of the run.
        step: the step at the state.
        rounds: the steps of a whole epoch after it.
    """

    def __init__(
        self,
        state: Mapping[str, Any],
        options: OrderOptions,
        size: int,
        make: Callable[[OrderOptions, int, Remainder | None], Batches],
        dealt: bool = False,
    ) -> None:
        """Read the history of a checked `state`; `make` is `Ordering.make()`.

        `options` and `size` are those of the order and of an epoch; `dealt` as in `Ordering`.

        Raises:
            ValueError: the state has no history, or its run went back to an earlier epoch.
        """
        if not state["history"]:
            what = "was made by an older release, or goes on from such a state"
            raise ValueError(f"the state has no history: it {what}; its steps are unknown")
        self._options, self._make = options, make
        self._orders = dict[tuple[int, int], Batches]()
        self.segments, self.step = list[Segment](), 0
        now = [state[name] for name in ("epoch", "given", "num_shards")]
        ends = [*state["history"][1:], now]
        for begin, end in zip(state["history"], ends, strict=True):
            world, batch_size = begin[3:]
            first, last = (
                (StreamRest if dealt else Rest)(
                    size=size, began=replace(options, num_shards=began), epoch=epoch, given=given,
                    world=world, batch_size=batch_size,
                )
                for epoch, given, began in (begin[:3], end[:3])
            )  # fmt: skip
            rest = None if first.same is not None else first
            positions = [it.start if it.same is None else it.same for it in (first, last)]
            self.segments.append(Segment(self.step, positions[0], rest, world, batch_size))
            self.step += positions[1] - positions[0]
            if positions[1] < positions[0]:
                raise ValueError("the run went back to an earlier epoch; its steps are unknown")

        self.rounds = last.rounds

    def ranks(self, step: int) -> int:
        """Return the number of ranks in a step."""
        return self._segment(step)[1].world

    def batch(self, step: int, rank: int) -> IntArray:
        """Return the samples of a step and rank, with padding, and with bad ones: int64[n]."""
        number, segment = self._segment(step)
        if (number, rank) not in self._orders:
            options = replace(self._options, num_shards=segment.world, shard_id=rank)
            order = self._make(options, segment.batch_size, segment.rest)
            self._orders[number, rank] = order
        return self._orders[number, rank].batch(segment.position + step - segment.step)

    def _segment(self, step: int) -> tuple[int, Segment]:
        number = bisect_right([it.step for it in self.segments], step) - 1
        return number, self.segments[number]
