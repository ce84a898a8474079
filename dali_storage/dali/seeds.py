"""Which seed a pipeline gives to a reader."""

import contextlib
import functools
import secrets
import weakref
from typing import Any

from nvidia.dali.pipeline import Pipeline

from ..order.libstdcxx import seed_words

_TABLE = 1024  # how many seeds a pipeline has before it begins again

_WITH_CHECKPOINTS = 0
"""The seed of an unseeded shuffle in a pipeline with checkpoints. DALI takes a random one and saves
it in the checkpoint; ours is not saved, and the restored pipeline must find the same order."""


# Ids, because what takes a seed would keep its pipeline alive.
_numbers = weakref.WeakKeyDictionary[Pipeline, dict[int, int]]()


def inherited_seed(pipeline: Pipeline, group: object) -> tuple[int, bool]:
    """The seed that DALI would give to its own reader at this point of the graph.

    And whether all ranks have it: the seeds of their pipelines may differ.

    A pipeline with a seed derives a table from it. In the order of the graph, every operator that
    takes a seed and was given none gets the next entry (`Pipeline::AddOperatorImpl`).
    """
    if pipeline.seed is None:
        known = bool(pipeline._enable_checkpointing)
        return (_WITH_CHECKPOINTS if known else secrets.randbits(32)), known
    if (numbers := _numbers.get(pipeline)) is None:
        takers = dict.fromkeys(map(_takes_seed, pipeline._ops))
        takers.pop(None, None)
        numbers = _numbers[pipeline] = {id(taker): n for n, taker in enumerate(takers)}
    return _table(pipeline.seed)[numbers[id(group)] % _TABLE], False


@functools.lru_cache(8)
def _table(seed: int) -> list[int]:
    return seed_words(seed, _TABLE)


def _takes_seed(operator: Any) -> Any:
    """What the seed for this operator goes to: its reader, itself, or None."""
    group: Any = getattr(operator, "_group", None)
    if hasattr(group, "inherits_seed"):  # one of our readers
        return group if group.inherits_seed else None
    if operator._op.schema.HasRandomSeedArg():
        with contextlib.suppress(RuntimeError):  # it has one, of its constructor or its call
            operator.spec.copy().AddArg("seed", 0)
            return operator
    return None
