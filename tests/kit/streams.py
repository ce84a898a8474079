"""Streams of mixtures, made by hand, and random ones."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dali_storage.order.sampling.sources import Groups, Sources
from dali_storage.order.sampling.stream import MixedStream

BOUND = 1.68  # of the error of a share; by Fibonacci's numbers
SEEDS = st.integers(0, 2**63 - 1)


def mixed(
    names: Any, sources: Sources, schedule: Any, seed: int = 0, epoch_size: Any = None
) -> MixedStream:
    """A stream; which source a sample has is not asked for."""
    return MixedStream([*names], sources, np.zeros_like, schedule, seed=seed, epoch_size=epoch_size)


def stream(
    sizes: Sequence[int], schedule: Any, seed: int = 0, epoch_size: Any = None
) -> MixedStream:
    """Of sources with consecutive samples; weights are lists."""
    starts = np.cumsum(sizes) - sizes
    names = range(len(sizes))
    return mixed(
        names,
        Groups(starts, np.array(sizes)),
        [(at, dict(zip(names, weights, strict=True))) for at, weights in schedule],
        seed=seed,
        epoch_size=epoch_size,
    )


def entries(made: MixedStream, start: int, stop: int) -> list[int]:
    return made.entries(np.arange(start, stop)).tolist()


@st.composite
def cases(draw: Any) -> Any:
    """Sizes of sources, and a schedule with weights of 0."""
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    weights = st.lists(st.integers(0, 20), min_size=len(sizes), max_size=len(sizes)).filter(any)
    schedule, at = [(0, draw(weights))], 0
    for _ in range(draw(st.integers(0, 3))):
        at += draw(st.integers(1, 120))
        schedule.append((at, draw(weights)))
    return sizes, schedule
