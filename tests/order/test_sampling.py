"""Streams of mixtures: what is at each position. How they are dealt out is in test_dealing.py.

The oracle is a plain walk with counters and fractions, tests/kit/stream_model.py.
"""

import json
from fractions import Fraction
from itertools import islice, product

import numpy as np
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

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
from tests.kit.streams import BOUND, SEEDS, cases, entries, mixed, stream


def expected(sizes, schedule, seed, stop):
    """The sources and the samples of the first positions."""
    starts = np.cumsum(sizes) - sizes
    shuffled = [model.Shuffled(*each) for each in zip(starts.tolist(), sizes, strict=True)]
    return zip(*model.walk(seed, shuffled, schedule, stop), strict=True)


@examples(cases(), SEEDS)
def test_the_stream_is_the_plain_walk(case, seed):
    sources, samples = expected(*case, seed, 200)
    made = stream(*case, seed)
    assert made.sources_at(np.arange(200))[0].tolist() == [*sources]
    assert entries(made, 0, 200) == [*samples]


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


@examples(cases(), st.integers(1, 200), st.data())
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


@pytest.mark.parametrize(
    ("epoch_size", "size"), [(None, 1060), ("largest", 1428), ("smallest", 95), (np.int64(5), 5)]
)
def test_an_epoch_is_a_number_of_positions(epoch_size, size):
    made = stream([1000, 50, 10], [(0, [7, 2, 1])], epoch_size=epoch_size)
    assert made.epoch_size == size
    enough = {"largest": all, "smallest": any}.get(epoch_size)
    for end, through in ((size - 1, False), (size, True)) if enough else ():
        assert enough(passes > 0 for _, passes in made.progress(end).values()) == through


def test_a_description_names_what_the_stream_depends_on():
    base = {"sizes": [5, 6], "schedule": [(0, [1, 2])], "seed": 1, "epoch_size": 7}
    others = [{"sizes": [5, 7]}, {"schedule": [(0, [1, 3])]}, {"seed": 2}, {"epoch_size": 8}]
    others += [{"schedule": [(0, [1, 2]), (9, [1, 1])]}]
    same = stream(**base | {"schedule": [(0, [0.5, 1])]}).describe(3)
    assert stream(**base).describe(0) == same
    assert "seed 1, epoch_size 7, weights {0: 1, 1: 2}" in same
    assert len({same, *(stream(**base | other).describe(0) for other in others)}) == 6


def test_a_description_differs_with_what_is_within_a_source():
    starts, lengths = np.array([0, 4]), np.array([4, 4])

    def classes(weights, labels=(0, 0, 1, 1)):
        return Joined([Mixed(Mixture(weights), by_label(np.array(labels))[1])] * 2)

    def drawn(*weights):
        return Joined([Drawn(start, Draws(weights, 3, 4)) for start in (0, 4)])

    inner = [Groups(starts, lengths), Groups(starts, lengths, listed=True), classes([1, 1])]
    inner += [Groups(starts, lengths, np.arange(8)), Groups(starts, lengths, np.arange(8)[::-1])]
    inner += [classes([1, 2]), classes([1, 1], [0, 1, 0, 1]), drawn(1, 2, 3), drawn(1, 3, 2)]
    made = [mixed("ab", each, [(0, NAMED)]).describe(0) for each in inner]
    assert len({*made}) == len(inner)
    assert made[7] == mixed("ab", drawn(1, 2, 3), [(0, NAMED)]).describe(0)


# --- bad input ---

NAMED = {"a": 2, "b": 1}


def named(schedule, epoch_size=None):
    groups = Groups(np.array([0, 2]), np.array([2, 3]))
    return mixed(["a", "b"], groups, schedule, seed=0, epoch_size=epoch_size)


PLAIN = named([(0, NAMED)])
NOT_A_WEIGHT = [*product(["source", "label", "sample"], [-1, float("nan"), float("inf")])]
NOT_A_WEIGHT += [("source", value) for value in ("1", None, [1], True, 1j)]


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
    "no such source": (lambda: named([(0, NAMED | {"c": 1})]), "of 'a', 'b'; unknown: 'c'"),
    "a source is missing": (lambda: named([(0, {"a": 1})]), "of 'a', 'b'; missing: 'b'"),
    "no such label": (lambda: class_weights({3: 9}, {3: 1, 5: 1}), "of 3; unknown: 5"),
    "a list": (lambda: named([(0, [2, 1])]), "weights must be a mapping"),
    "other words": (lambda: class_weights({3: 9}, "even"), "'balanced', 'sqrt'.*not 'even'"),
    "another length": (lambda: Draws([1, 2, 3], 4, 4), "3 numbers for 4 samples"),
    "a table": (lambda: Draws([[1], [2]], 2, 2), "one number per sample"),
    "text": (lambda: Draws(["1", "2"], 2, 2), "one number per sample"),
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
    "changed to none": (lambda: PLAIN.changed([[9, [0, 0]]]), "is not a position and"),
    "changed to three": (lambda: PLAIN.changed([[9, [1, 1, 1]]]), "3 weights for 2"),
    "changed before": (lambda: PLAIN.changed([[-1, [1, 1]]]), "is not a position and"),
    "changed to text": (lambda: PLAIN.changed(["ab"]), "is not a position and"),
    "no changes": (lambda: PLAIN.changed(3), "changes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_weights_are_refused(name):
    make, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        make()
    assert len(str(error.value)) < 300
