"""Which samples a source gives: passes, permutations, draws by weights, classes, mixtures within.

The oracle is a plain walk with counters and fractions, tests/kit/stream_model.py.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from dali_storage.order.permutation import hashed, permuted
from dali_storage.order.sampling.datasets import DataSet, mixture_of, stream_of
from dali_storage.order.sampling.draws import Draws
from dali_storage.order.sampling.mixture import Mixture, integer_weights
from dali_storage.order.sampling.sources import (
    Drawn,
    Groups,
    Joined,
    Mixed,
    by_label,
    class_weights,
)
from tests.kit import stream_model as model
from tests.kit.streams import BOUND, SEEDS, entries, mixed


@examples(st.integers(1, 5000), SEEDS)
def test_a_permutation_has_each_index_once(size, key):
    keys, sizes = np.full(size, key, np.uint64), np.full(size, size)
    assert sorted(permuted(keys, sizes, np.arange(size)).tolist()) == [*range(size)]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_all_permutations_of_few_are_equally_likely(size):
    count = int(np.prod(range(1, size + 1)))
    trials = 200 * count
    keys = np.array([hashed(7, number) for number in range(trials)], np.uint64).repeat(size)
    indices = np.tile(np.arange(size), trials)
    found = permuted(keys, np.full(indices.size, size), indices).reshape(-1, size)
    seen = np.array([*Counter(map(tuple, found.tolist())).values()])
    # 4 standard deviations of chi-squared, which has count - 1 degrees of freedom.
    assert len(seen) == count
    assert ((seen - 200) ** 2).sum() / 200 < count - 1 + 4 * (2 * (count - 1)) ** 0.5


@pytest.mark.parametrize("size", [130, 1000, 2**20])
def test_a_permutation_of_many_looks_random(size):
    count = min(size, 50_000)
    keys, sizes = np.full(count, hashed(5, size), np.uint64), np.full(count, size)
    found = permuted(keys, sizes, np.arange(count))
    # The mean distance of two random places is a third of the size, with a deviation of 0.236.
    assert abs(np.abs(np.diff(found)).mean() / size - 1 / 3) < 5 * 0.236 / count**0.5
    assert (found == np.arange(count)).sum() < 10


DRAWN = st.lists(st.integers(0, 50), min_size=1, max_size=60).filter(any)


@examples(DRAWN, st.integers(1, 150), SEEDS, st.sampled_from([1, 2**40, 0.1, 1e-300, 1e300]))
def test_draws_round_the_share_of_a_sample_up_or_down(weights, length, seed, unit):
    draws = Draws(np.array(weights) * unit, len(weights), length)
    made = mixed(["a"], Drawn(0, draws), [(0, {"a": 1})], seed=seed)
    for turn in range(2):
        counts = Counter(entries(made, turn * length, (turn + 1) * length))
        for sample, weight in enumerate(weights):
            share = length * weight / sum(weights)
            assert abs(counts[sample] - share) < 1 + 1e-9
            assert weight or not counts[sample]
    if isinstance(unit, int):
        drawn = model.Weighted([weight * unit for weight in weights], length)
        walked = model.walk(seed, [drawn], [(0, [1])], 2 * length)
        assert entries(made, 0, 2 * length) == [sample for _, sample in walked]


def test_the_mean_of_draws_over_passes_is_exact():
    weights, passes = [1, 2.5, 0.125, 9, 3], 600
    made = mixed(["a"], Drawn(10, Draws(weights, 5, 7)), [(0, {"a": 1})], seed=1)
    counts = np.bincount(np.array(entries(made, 0, 7 * passes)) - 10)
    # u is uniform: a count has a deviation of at most 1/2.
    assert np.abs(counts / passes - 7 * np.array(weights) / sum(weights)).max() < 4 * 0.5 / 600**0.5


def test_a_weight_that_is_not_0_stays_so():
    assert Draws([0.0, 1e-300, 5], 3, 1).ends.tolist()[:2] == [0, 1]


def test_listed_sources_keep_their_order_in_each_pass():
    groups = Groups(np.array([0, 4]), np.array([4, 3]), np.array([6, 5, 4, 3, 2, 1, 0]), True)
    made = mixed([0, 1], groups, [(0, {0: 1, 1: 1})], seed=0)
    found = entries(made, 0, 16)
    assert [each for each in found if each > 2] == [6, 5, 4, 3] * 2
    assert [each for each in found if each < 3] == [2, 1, 0, 2, 1, 0, 2, 1]


@pytest.mark.parametrize("ascend", [True, False])
@pytest.mark.parametrize(
    ("weights", "shares"),
    [
        ("balanced", [1, 1, 1]),
        ("sqrt", [5, 2, 1]),
        ({-3: 0, 4: 2, 90: 0.5}, [0, 2, 0.5]),
    ],
    ids=str,
)
def test_classes_are_the_sources_of_a_mixture(weights, shares, ascend):
    labels = np.array([-3] * 25 + [4] * 4 + [90])
    if not ascend:
        np.random.default_rng(0).shuffle(labels)
    names, groups = by_label(labels, start=100)
    sizes = dict(zip(names, groups.lengths.tolist(), strict=True))
    assert sizes == {-3: 25, 4: 4, 90: 1}
    pairs = integer_weights(class_weights(sizes, weights))
    made = mixed(names, groups, [(0, dict(zip(names, pairs, strict=True)))], seed=5)
    found = Counter(entries(made, 0, 1000))
    counts = Counter(labels[each - 100] for each in found.elements())
    for label, share in zip(names, shares, strict=True):
        assert abs(counts[label] - 1000 * share / sum(shares)) <= BOUND
        each = [found[100 + at] for at in np.flatnonzero(labels == label).tolist()]
        assert max(each) - min(each) <= 1


def test_mixtures_may_be_sources_of_mixtures():
    """A plain source, one with balanced classes and one of draws; 40, 30 and 10 samples."""
    labels = np.array([0] * 29 + [1])
    _, classes = by_label(labels, start=40)
    inner = Mixed(Mixture([1, 1]), classes)
    drawn = Drawn(70, Draws([1] * 9 + [9], 10, 36))
    joined = Joined([Groups(np.array([0]), np.array([40])), inner, drawn])
    assert joined.lengths.tolist() == [40, 30, 36]
    weights = {"plain": 2, "classes": 1, "draws": 1}
    made = mixed(weights, joined, [(0, weights)], seed=2)
    found = np.array(entries(made, 0, 720))
    counts = np.bincount(found, minlength=80)
    assert counts[:40].tolist() == [9] * 40
    assert counts[40:69].sum() == counts[69] == 90
    assert counts[70:].tolist() == [10] * 9 + [90]
    assert found[:12].tolist() == [39, 61, 7, 70, 19, 69, 21, 73, 17, 59, 30, 79]  # in all versions


@pytest.mark.parametrize("mixture", [True, False])
def test_the_source_of_a_sample_is_known(mixture):
    labels = np.array([7, 3, 7, 5, 3, 7], np.int32)
    settings = {"seed": 4, "epoch_size": None}
    made = stream_of(DataSet(6, labels, {3: 1, 5: 2, 7: 1}), **settings)
    if mixture:
        parts = {"a": DataSet(9), "b": DataSet(6, labels, "sqrt"), "c": DataSet(5)}
        made = mixture_of(parts, {"a": 1, "b": 2, "c": 1}, None, **settings)
    positions = np.arange(200)
    found = made.sources_of(made.entries(positions))
    assert (found.dtype, found.tolist()) == (np.int32, made.sources_at(positions)[0].tolist())
    assert np.bincount(found).tolist() == [50, 100, 50]
