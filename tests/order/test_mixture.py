"""Which source is at a position: shares, integers of weights, the tree and its table.

The oracle is a plain walk with counters and fractions, tests/kit/stream_model.py.
"""

from fractions import Fraction
from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from dali_storage.order.sampling.mixture import Mixture, integer_weights
from tests.kit import stream_model as model
from tests.kit.streams import BOUND, SEEDS
from tests.kit.tiers import by_tier

MOST = 2**31
SOME_WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any)


def adversarial(family, count, random):
    """Integers whose tree is deep, flat or lopsided."""
    fibonacci = [1, 1]
    while len(fibonacci) < 42:
        fibonacci.append(sum(fibonacci[-2:]))
    weights = {
        "equal": [1] * count,
        "fibonacci": [fibonacci[i] if i < 42 else 1 for i in range(count)],
        "powers": [2 ** (i % 21) for i in range(count)],
        "one": [MOST // 2, *[1] * (count - 1)],
        "zipf": [10**6 // (i + 1) for i in range(count)],
        "sparse": [random.choice([0, 0, 1, 1000]) for _ in range(count - 1)] + [1],
        "random": [random.randrange(MOST // 1000) for _ in range(count - 1)] + [1],
    }[family]
    random.shuffle(weights)
    return weights


FAMILIES = ["equal", "fibonacci", "powers", "one", "zipf", "sparse", "random"]


@settings(max_examples=by_tier(40, 400))
@examples(
    st.sampled_from(FAMILIES),
    st.integers(1, 20) | st.integers(1, 1000),
    st.sampled_from([0, 10**9, 2**45]) | st.integers(0, 10**14),
    SEEDS,
)
def test_every_source_has_its_share_at_any_position(family, count, start, seed):
    weights = np.array(adversarial(family, count, Random(seed)))
    mixture, total, length = Mixture(weights), int(weights.sum()), 200
    sources, ordinals = mixture.at(np.arange(start, start + length))
    before = np.array(mixture.counts(start))
    periods, phase = divmod(start, total)
    seen = np.zeros((length + 1, count), np.int64)
    np.add.at(seen, (np.arange(length) + 1, sources), 1)
    seen = seen.cumsum(axis=0)
    # No gaps: the ordinal is the number of positions of the source before.
    assert (ordinals == (before + seen)[np.arange(length), sources]).all()
    assert mixture.counts(start + length) == (before + seen[-1]).tolist()
    counts = before - periods * weights + seen  # since the period began: products fit 64 bits
    shares = (phase + np.arange(length + 1))[:, None] * weights
    assert np.abs(counts * total - shares).max() / total <= BOUND


@examples(SOME_WEIGHTS, st.integers(0, 300), st.sampled_from([0, 10**9, 2**45]))
def test_the_mixture_is_the_walk_down_the_tree(weights, start, far):
    walked = [*islice(model.sources_of(weights, start + far), 100)]
    sources, _ = Mixture(weights).at(np.arange(start + far, start + far + 100))
    assert sources.tolist() == walked


@examples(st.lists(st.integers(0, 300), min_size=1, max_size=50).filter(any), st.integers(0, 2**40))
def test_the_table_is_the_tree(weights, start):
    positions = np.arange(start, start + 150)
    shown = Mixture(weights).at(positions)
    walked = Mixture([weight << 17 for weight in weights]).at(positions)  # has no short period
    assert [each.tolist() for each in shown] == [each.tolist() for each in walked]


@pytest.mark.parametrize(
    ("weights", "integers"),
    [
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([0.333, 0.667], [333, 667]),
        ([3, 3, 0], [1, 1, 0]),
        ([Fraction(1, 3), 0.5, np.float32(0.5)], [2, 3, 3]),
        ([np.int64(4), 6], [2, 3]),
        ([1e-300, 1], [1, MOST - 1]),
        ([1, 1e300], [1, MOST - 1]),
        ([2**0.5, 1], [1257966796, 889516852]),
    ],
)
def test_weights_are_what_was_written(weights, integers):
    assert integer_weights([("a", weight) for weight in weights]) == integers


@examples(st.lists(st.floats(0, 1e9, allow_subnormal=False), min_size=1, max_size=40).filter(any))
def test_the_integers_have_the_ratio_of_the_weights(weights):
    integers = integer_weights([("a", weight) for weight in weights])
    fractions = [Fraction(repr(weight)) for weight in weights]
    assert sum(integers) <= MOST + len(weights)
    for integer, fraction in zip(integers, fractions, strict=True):
        assert (integer > 0) == (fraction > 0)
        assert abs(Fraction(integer, sum(integers)) - fraction / sum(fractions)) < 1e-7
