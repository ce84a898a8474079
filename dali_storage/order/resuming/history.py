"""The history of a run in its states, and the batches of any of its steps.

A *step* is a batch of each rank, counted from 0 from the beginning of the run. A run has *segments*
with one number of ranks and one batch size. The history of a state has the segments until then:
lists of the state at the beginning (`epoch`, `given`, and `num_shards`, the ranks that began the
epoch), the number of ranks and the batch size. It is empty if an earlier state had none.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from ...contract._types import IntArray
from ..options import OrderOptions
from ..ordering import Ordering
from ..sequence import Batches
from .resume import Rest, StreamRest


def resumed(saved: Mapping[str, Any], world: int, batch_size: int) -> list[list[int]]:
    """Return the history of a run that these ranks go on with from a state."""
    history: list[list[int]] = saved["history"]
    if not history or history[-1][3:] == [world, batch_size]:
        return history  # as if there had been no break
    return [*history, [saved["epoch"], saved["given"], saved["num_shards"], world, batch_size]]


def require_history(what: str, history: list[Any]) -> None:
    """Refuse a damaged history by ValueError, which begins with the first argument."""
    for each in history:
        known = isinstance(each, list) and [*map(type, each)] == [int] * 5
        if not known or min(each) < 0 or min(each[2:]) < 1:
            raise ValueError(f"{what}: the history has {each!r:.80}")


class Run:
    """The steps of a run, up to its state and beyond.

    Attributes:
        step: the step at the state.
        rounds: the steps of a whole epoch after it.
    """

    def __init__(self, state: Mapping[str, Any], options: OrderOptions, ordering: Ordering) -> None:
        """Read the history of a checked `state`; `options` are those of DALI's order.

        Raises:
            ValueError: the state has no history, or its run went back to an earlier epoch.
        """
        if not state["history"]:
            what = "was made by an older release, or goes on from such a state"
            raise ValueError(f"the state has no history: it {what}; its steps are unknown")
        self._options, self._ordering, self.step = options, ordering, 0
        self._orders = dict[tuple[int, int], Batches]()
        # Of each segment the first step, its position, and the rest of its epoch.
        self._segments = list[tuple[int, int, Rest]]()
        now = [state[name] for name in ("epoch", "given", "num_shards")]
        for begin, end in pairwise([*state["history"], now]):
            start, rest = self._place(*begin)
            self._segments.append((self.step, start, rest))
            if (more := self._place(*end[:3], *begin[3:])[0] - start) < 0:
                raise ValueError("the run went back to an earlier epoch; its steps are unknown")
            self.step += more
        self.rounds = rest.rounds

    def _place(
        self, epoch: int, given: int, began: int, world: int, batch_size: int
    ) -> tuple[int, Rest]:
        """The position for so many ranks, and the rest of the epoch."""
        rest = (StreamRest if self._ordering.dealt else Rest)(
            size=self._ordering.epoch_size,
            began=replace(self._options, num_shards=began),
            epoch=epoch,
            given=given,
            world=world,
            batch_size=batch_size,
        )
        return rest.start if rest.same is None else rest.same, rest

    def ranks(self, step: int) -> int:
        """Return the number of ranks in a step."""
        return self._segments[self._segment(step)][2].world

    def batch(self, step: int, rank: int) -> IntArray:
        """Return the samples of a step and rank, with padding: int64[batch_size]."""
        first, start, rest = self._segments[number := self._segment(step)]
        if (number, rank) not in self._orders:
            options = replace(self._options, num_shards=rest.world, shard_id=rank)
            order = options, rest.batch_size, rest if rest.same is None else None
            self._orders[number, rank] = self._ordering.make(*order)
        return self._orders[number, rank].batch(start + step - first)

    def _segment(self, step: int) -> int:
        return bisect_right(self._segments, step, key=lambda it: it[0]) - 1
