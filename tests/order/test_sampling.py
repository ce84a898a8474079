"""Streams of mixtures: what is at each position. How they are dealt out is in test_dealing.py.

The oracle is a plain walk with counters and fractions, tests/kit/stream_model.py.
"""

import json
from collections import Counter
from fractions import Fraction
from itertools import islice, product
from random import Random

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from dali_storage.order.sampling.draws import Draws
from dali_storage.order.sampling.mixture import Mixture, integer_weights
from dali_storage.order.sampling.permutation import hashed, permuted
from dali_storage.order.sampling.sources import (
    Drawn,
    Groups,
    Joined,
    Mixed,
    by_label,
    class_weights,
)
from dali_storage.order.sampling.stream import MixedStream
from tests.kit import stream_model as model
from tests.kit.tiers import by_tier

BOUND = 1.68  # of Fibonacci
MOST = 2**31

SEEDS = st.integers(0, 2**63 - 1)
SOME_WEIGHTS = st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any)


def stream(sizes, schedule, seed=0, epoch_size=None):
    """Of sources with consecutive samples; weights are lists."""
    starts = np.cumsum(sizes) - sizes
    names = range(len(sizes))
    return MixedStream(
        names,
        Groups(starts, np.array(sizes)),
        [(at, dict(zip(names, weights, strict=True))) for at, weights in schedule],
        seed=seed,
        epoch_size=epoch_size,
    )


def entries(made, start, stop):
    return made.entries(np.arange(start, stop)).tolist()


def expected(sizes, schedule, seed, stop):
    """The sources and the samples of the first positions."""
    starts = np.cumsum(sizes) - sizes
    shuffled = [model.Shuffled(*each) for each in zip(starts.tolist(), sizes, strict=True)]
    return zip(*model.walk(seed, shuffled, schedule, stop), strict=True)


@st.composite
def cases(draw):
    """Sizes of sources, and a schedule with weights of 0."""
    sizes = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    weights = st.lists(st.integers(0, 20), min_size=len(sizes), max_size=len(sizes)).filter(any)
    schedule, at = [(0, draw(weights))], 0
    for _ in range(draw(st.integers(0, 3))):
        at += draw(st.integers(1, 120))
        schedule.append((at, draw(weights)))
    return sizes, schedule


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


# --- the mixture ---


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


# --- the stream ---


@examples(cases(), SEEDS)
def test_the_stream_is_the_plain_walk(case, seed):
    sources, samples = expected(*case, seed, 400)
    made = stream(*case, seed)
    assert made.sources_at(np.arange(400))[0].tolist() == [*sources]
    assert entries(made, 0, 400) == [*samples]


@examples(cases(), SEEDS, st.integers(1, 600))
def test_every_pass_of_a_source_has_each_sample_once(case, seed, cut):
    sizes, schedule = case
    made = stream(sizes, schedule, seed)
    found = np.array(entries(made, 0, cut) + entries(made, cut, 700))
    first = 0
    for number, size in enumerate(sizes):
        own = found[(found >= first) & (found < first + size)]
        for start in range(0, len(own), size):
            one_pass = own[start : start + size]
            assert len(set(one_pass.tolist())) == len(one_pass)
        assert made.progress(700)[number] == (len(own), len(own) // size)
        first += size


@examples(cases(), SEEDS, st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_each_piece_of_a_schedule_gives_the_shares_of_its_weights(case, seed, positions):
    sizes, schedule = case
    made = stream(sizes, schedule, seed)
    for position in positions:
        shares, pieces = [Fraction(0)] * len(sizes), 0
        ends = [at for at, _ in schedule[1:]] + [position]
        for (start, weights), end in zip(schedule, ends, strict=True):
            span = max(0, min(end, position) - start)
            pieces += span > 0
            shares = [
                share + Fraction(weight * span, sum(weights))
                for share, weight in zip(shares, weights, strict=True)
            ]
        for (count, _), share in zip(made.progress(position).values(), shares, strict=True):
            assert abs(count - share) <= BOUND * max(pieces, 1)


@examples(cases(), st.integers(1, 500), st.data())
def test_new_weights_keep_the_past(case, position, data):
    sizes, schedule = case
    made = stream(sizes, schedule, seed=3)
    weights = st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)).filter(any)
    new, newer = data.draw(weights), data.draw(weights)
    changed = made.with_weights(dict(enumerate(new)), position)
    planned = [piece for piece in schedule if piece[0] < position]
    _, samples = expected(sizes, [*planned, (position, new)], 3, position + 60)
    assert entries(changed, 0, position + 60) == [*samples]
    # A later change forgets those after it, and all of them go through JSON.
    twice = changed.with_weights(dict(enumerate(newer)), position + 30)
    again = made.changed(json.loads(json.dumps(twice.changes)))
    assert entries(again, 0, position + 70) == entries(twice, 0, position + 70)
    back = twice.with_weights(dict(enumerate(new)), position)
    assert entries(back, 0, position + 70) == entries(changed, 0, position + 70)
    assert (made.changes, made.describe(0)) == ([], twice.describe(0))


@pytest.mark.parametrize("start", [10**9, 2**45])
def test_a_jump_reaches_what_a_walk_would_give(start):
    weights, sizes = [5, 3, 1], [10**6, 1000, 7]
    found = entries(stream(sizes, [(0, weights)], seed=9), start, start + 60)
    starts = [0, 10**6, 10**6 + 1000]
    # After whole periods, each source has given exactly its share.
    begin = start // 9 * 9
    counts = [begin // 9 * weight for weight in weights]
    walked = []
    for source in islice(model.sources_of(weights), start - begin + 60):
        turn, index = divmod(counts[source], sizes[source])
        counts[source] += 1
        key = model.split_mix((model.key_of(9) + source) % model.WORD)
        key = model.split_mix((key + turn * model.STEP) % model.WORD)
        walked.append(starts[source] + model.place(key, sizes[source], index))
    assert found == walked[start - begin :]


GOLDEN = [
    (0, [1000], [1], 0, [118, 582, 842, 781, 930, 199, 265, 770, 454, 129]),
    (0, [1000, 50, 10], [7, 2, 1], 0, [118, 1048, 582, 842, 1056, 781, 930, 199, 1000, 265]),
    (7, [1000, 50, 10], [7, 2, 1], 10**9, [106, 1020, 852, 641, 1052, 262, 183, 394, 1038, 438]),
    (2**40, [130, 128], [0.3, 2**0.5], 10**6, [125, 139, 252, 231, 157, 208, 108, 133, 177, 202]),
]


@pytest.mark.parametrize(("seed", "sizes", "weights", "start", "samples"), GOLDEN)
def test_the_stream_is_the_same_in_all_versions(seed, sizes, weights, start, samples):
    assert entries(stream(sizes, [(0, weights)], seed), start, start + 10) == samples


# --- within a source ---


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
    made = MixedStream(["a"], Drawn(0, draws), [(0, {"a": 1})], seed=seed, epoch_size=None)
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
    made = MixedStream(
        ["a"], Drawn(10, Draws(weights, 5, 7)), [(0, {"a": 1})], seed=1, epoch_size=None
    )
    counts = np.bincount(np.array(entries(made, 0, 7 * passes)) - 10)
    # u is uniform: a count has a deviation of at most 1/2.
    assert np.abs(counts / passes - 7 * np.array(weights) / sum(weights)).max() < 4 * 0.5 / 600**0.5


def test_a_weight_that_is_not_0_stays_so():
    assert Draws([0.0, 1e-300, 5], 3, 1).ends.tolist()[:2] == [0, 1]


def test_listed_sources_keep_their_order_in_each_pass():
    groups = Groups(np.array([0, 4]), np.array([4, 3]), np.array([6, 5, 4, 3, 2, 1, 0]), True)
    made = MixedStream([0, 1], groups, [(0, {0: 1, 1: 1})], seed=0, epoch_size=None)
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
    made = MixedStream(
        names, groups, [(0, dict(zip(names, pairs, strict=True)))], seed=5, epoch_size=None
    )
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
    made = MixedStream(weights, joined, [(0, weights)], seed=2, epoch_size=None)
    found = np.array(entries(made, 0, 720))
    counts = np.bincount(found, minlength=80)
    assert counts[:40].tolist() == [9] * 40
    assert counts[40:69].sum() == counts[69] == 90
    assert counts[70:].tolist() == [10] * 9 + [90]
    assert found[:12].tolist() == [39, 61, 7, 70, 19, 69, 21, 73, 17, 59, 30, 79]  # in all versions


@pytest.mark.parametrize(
    ("epoch_size", "size"), [(None, 1060), ("largest", 1429), ("smallest", 100), (np.int64(5), 5)]
)
def test_an_epoch_is_a_number_of_positions(epoch_size, size):
    made = stream([1000, 50, 10], [(0, [7, 2, 1])], epoch_size=epoch_size)
    assert made.epoch_size == size
    if epoch_size == "largest":
        assert made.progress(size)[0][1] >= 1 > made.progress(size - 2)[0][1]


def test_a_description_names_what_the_stream_depends_on():
    base = {"sizes": [5, 6], "schedule": [(0, [1, 2])], "seed": 1, "epoch_size": 7}
    others = [
        {"sizes": [5, 7]},
        {"schedule": [(0, [1, 3])]},
        {"schedule": [(0, [1, 2]), (9, [1, 1])]},
        {"seed": 2},
        {"epoch_size": 8},
    ]
    same = stream(**base | {"schedule": [(0, [0.5, 1])]}).describe(3)
    assert stream(**base).describe(0) == same
    assert "seed 1, epoch_size 7, weights {0: 1, 1: 2}" in same
    assert len({same, *(stream(**base | other).describe(0) for other in others)}) == 6


# --- bad input ---

NAMED = {"a": 2, "b": 1}


def named(schedule, epoch_size=None):
    groups = Groups(np.array([0, 2]), np.array([2, 3]))
    return MixedStream(["a", "b"], groups, schedule, seed=0, epoch_size=epoch_size)


NOT_A_WEIGHT = [
    (kind, value)
    for kind, value in product(["source", "label", "sample"], [-1, float("nan"), float("inf")])
] + [("source", value) for value in ("1", None, [1], True, 1j)]


@pytest.mark.parametrize(("kind", "value"), NOT_A_WEIGHT, ids=str)
def test_a_wrong_weight_is_named(kind, value):
    with pytest.raises((ValueError, TypeError), match="weight must be a finite number") as error:
        if kind == "source":
            named([(0, NAMED | {"b": value})])
        elif kind == "label":
            integer_weights(class_weights({3: 9, 4: 9}, {3: 1, 4: value}))
        else:
            Draws([1, value], 2, 2)
    named_as = {"source": "'b'", "label": "label 4", "sample": "sample 1"}[kind]
    assert f"not {value!r} of {named_as}" in str(error.value)


REFUSED = {
    "all 0": (lambda: named([(0, {"a": 0, "b": 0})]), "all weights are 0"),
    "all samples 0": (lambda: Draws([0, 0.0], 2, 2), "all weights are 0"),
    "no such source": (lambda: named([(0, NAMED | {"c": 1})]), "they are 'a', 'b', and.*'c'"),
    "a source is missing": (lambda: named([(0, {"a": 1})]), "they are 'a', 'b', and.*has 'a'"),
    "no such label": (lambda: class_weights({3: 9}, {3: 1, 5: 1}), "they are 3, and.*has 3, 5"),
    "a list": (lambda: named([(0, [2, 1])]), "weights must be a mapping"),
    "other words": (lambda: class_weights({3: 9}, "even"), "'balanced', 'sqrt'.*not 'even'"),
    "another length": (lambda: Draws([1, 2, 3], 4, 4), "3 numbers for 4 samples"),
    "a table": (lambda: Draws([[1], [2]], 2, 2), "one number a sample"),
    "text": (lambda: Draws(["1", "2"], 2, 2), "one number a sample"),
    "no schedule": (lambda: named([]), "must begin at position 0"),
    "late": (lambda: named([(5, NAMED)]), "must begin at position 0, not .*5"),
    "no order": (lambda: named([(0, NAMED), (9, NAMED), (9, NAMED)]), "must ascend"),
    "no pairs": (lambda: named([(0, NAMED), 7]), r"pairs \(position, weights\), not 7"),
    "no list": (lambda: named(7), r"pairs \(position, weights\), not 7"),
    "a fraction": (lambda: named([(0, NAMED), (1.5, NAMED)]), "pairs.*1.5"),
    "no positions": (lambda: named([(0, NAMED)], 0), "epoch_size must be at least 1, not 0"),
    "a word": (lambda: named([(0, NAMED)], "all"), "'largest' or 'smallest', not 'all'"),
    "half": (lambda: named([(0, NAMED)], 2.5), "must be an integer"),
    "a flag": (lambda: named([(0, NAMED)], True), "must be an integer"),
    "changed to none": (lambda: named([(0, NAMED)]).changed([[9, [0, 0]]]), "no position with"),
    "changed to three": (lambda: named([(0, NAMED)]).changed([[9, [1, 1, 1]]]), "3 weights for 2"),
    "changed before": (lambda: named([(0, NAMED)]).changed([[-1, [1, 1]]]), "no position with"),
    "changed to text": (lambda: named([(0, NAMED)]).changed(["ab"]), "no position with"),
    "no changes": (lambda: named([(0, NAMED)]).changed(3), "changes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_weights_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        make()
    assert len(str(error.value)) < 300
