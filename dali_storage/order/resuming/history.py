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
        self._options, self._ordering = options, ordering
        self._orders = dict[tuple[int, int], Batches]()
        # First steps; and the places where the segments begin, as rests of epochs.
        self._steps, self._begun = list[int](), list[Rest]()
        self.step = 0
        now = [state[name] for name in ("epoch", "given", "num_shards")]
        for begin, end in pairwise([*state["history"], now]):
            here = self._place(begin[:3], *begin[3:])
            self._steps.append(self.step)
            self._begun.append(here)
            more = _position(self._place(end[:3], *begin[3:])) - _position(here)
            if more < 0:
                raise ValueError("the run went back to an earlier epoch; its steps are unknown")
            self.step, self.rounds = self.step + more, here.rounds

    def _place(self, place: list[int], world: int, batch_size: int) -> Rest:
        epoch, given, began = place
        return (StreamRest if self._ordering.dealt else Rest)(
            size=self._ordering.epoch_size,
            began=replace(self._options, num_shards=began),
            epoch=epoch,
            given=given,
            world=world,
            batch_size=batch_size,
        )

    def ranks(self, step: int) -> int:
        """Return the number of ranks in a step."""
        return self._begun[bisect_right(self._steps, step) - 1].world

    def batch(self, step: int, rank: int) -> IntArray:
        """Return the samples of a step and rank, with padding: int64[batch_size]."""
        number = bisect_right(self._steps, step) - 1
        begun = self._begun[number]
        if (number, rank) not in self._orders:
            options = replace(self._options, num_shards=begun.world, shard_id=rank)
            rest = begun if begun.same is None else None
            self._orders[number, rank] = self._ordering.make(options, begun.batch_size, rest)
        return self._orders[number, rank].batch(_position(begun) + step - self._steps[number])


def _position(begun: Rest) -> int:
    return begun.start if begun.same is None else begun.same
