"""The seed of a reader in a pipeline."""

import contextlib
import functools
import secrets
import weakref
from typing import Any

from nvidia.dali.pipeline import Pipeline

from ..order.libstdcxx import seed_words

_TABLE = 1024  # seeds of a pipeline; then the table repeats

_WITH_CHECKPOINTS = 0
"""The seed of an unseeded shuffle in a pipeline with checkpoints. DALI saves a random seed in the
checkpoint; ours is not saved, and the restored pipeline must find the same order."""


# Ids, because a reference to a reader or operator would keep its pipeline alive.
_numbers = weakref.WeakKeyDictionary[Pipeline, dict[int, int]]()


def inherited_seed(pipeline: Pipeline, group: object) -> tuple[int, bool]:
    """The seed of DALI's own reader at this point of the graph, and True if all ranks share it.

    Ranks may differ, because the seeds of their pipelines may differ.

    A pipeline derives a table from its seed. In the order of the graph, every operator without an
    explicit seed gets the next entry (`Pipeline::AddOperatorImpl`).
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
    """The receiver of the seed for this operator: its reader, the operator itself, or None."""
    group: Any = getattr(operator, "_group", None)
    if hasattr(group, "inherits_seed"):  # one of our readers
        return group if group.inherits_seed else None
    if operator._op.schema.HasRandomSeedArg():
        with contextlib.suppress(RuntimeError):  # already seeded, in the constructor or the call
            operator.spec.copy().AddArg("seed", 0)
            return operator
    return None
