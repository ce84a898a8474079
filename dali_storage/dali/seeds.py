"""The seeds of readers in a pipeline, and of the random operators beside them.

A pipeline derives a table from its seed. In the order of the graph, every operator without an
explicit seed gets the next entry (`Pipeline::PrepareOpSpec`), DALI's readers among them. Ours are
external sources, which get none.
"""

import contextlib
import functools
import secrets
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nvidia.dali.backend import OpSpec
from nvidia.dali.pipeline import Pipeline

_TABLE = 1024  # seeds of a pipeline; then the table repeats

_WITH_CHECKPOINTS = 0
"""The seed of an unseeded shuffle in a pipeline with checkpoints. DALI saves a random seed in the
checkpoint; ours is not saved, and the restored pipeline must find the same order."""


# Ids, because a reference to a reader or operator would keep its pipeline alive.
_numbers = weakref.WeakKeyDictionary[Pipeline, dict[int, int]]()


def inherited_seed(pipeline: Pipeline, group: object) -> tuple[int, bool]:
    """The seed of DALI's own reader at this point of the graph, and True if all ranks share it.

    Ranks may differ, because the seeds of their pipelines may differ.
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
    from ..order.libstdcxx import seed_words

    return seed_words(seed, _TABLE)


def _takes_seed(operator: Any) -> Any:
    """The receiver of the seed for this operator: its reader, the operator itself, or None."""
    group: Any = getattr(operator, "_group", None)
    if hasattr(group, "takes_seed"):  # one of our readers
        return group if group.takes_seed else None
    if operator._op.schema.HasRandomSeedArg():
        with contextlib.suppress(RuntimeError):  # already seeded, in the constructor or the call
            operator.spec.copy().AddArg("seed", 0)
            return operator
    return None


class _Taker(NamedTuple):
    """A random operator without outputs in use, as `Pipeline._init_pipeline_backend` reads it.

    DALI gives it a seed, and then drops it, because no output of the pipeline needs it.
    """

    spec: OpSpec
    name: str
    relation_id: object


def with_takers(operators: Sequence[Any]) -> Iterator[Any]:
    """The operators, with one that takes DALI's seed before each of our readers without a seed."""
    seen = set[int]()
    for operator in operators:
        group: Any = getattr(operator, "_group", None)
        if getattr(group, "takes_seed", False) and id(group) not in seen:
            seen.add(id(group))
            name = f"__dali_storage_seed_{len(seen)}"
            spec = OpSpec("random__CoinFlip")
            spec.AddArg("device", "cpu")
            spec.AddOutput(name, "cpu")
            yield _Taker(spec, name, object())
        yield operator
