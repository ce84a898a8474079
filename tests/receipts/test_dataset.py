"""Names in a verdict: random faults are planted, and nobody innocent is named."""

import random
from collections import Counter

import numpy as np
import pytest

from dali_storage.receipts.dataset import compare, suspects
from dali_storage.receipts.values import COLUMNS, ROWS, receipt_of
from tests.kit.tiers import by_tier

KINDS = ["missing", "twice", "gone", "gone since", "new", "new, gone since", "renamed", "changed"]


def table(rows, groups=ROWS):
    found = np.zeros((groups, COLUMNS), np.uint64)
    for row in rows:
        found[int(row[2]) % groups] += row
    return found


def receipt(rows, listing, groups=ROWS):
    named = {"dataset": listing, "source": None, "epoch": 0, "shard": None, "run": {}}
    return receipt_of(table(rows, groups), mode="samples", **named)


@pytest.mark.parametrize("seed", range(by_tier(60, 2000)))
def test_no_innocent_sample_is_named(seed):
    draw, size = random.Random(seed), random.Random(seed).choice([3, 40, 700])
    rows = np.random.default_rng(seed).integers(0, 2**64, (size + 99, COLUMNS), np.uint64)
    rows[:, 0], rows[:, 1] = 1, 0
    data, new = [*range(size)], [*range(size, size + 99)]
    listing, given, today, changed = {*data}, Counter(data), {*data}, set[int]()
    for kind in draw.sample(KINDS, draw.randint(1, 3)):
        for it in draw.sample(data, draw.choice([1, 1, 2, 3])):
            if kind == "twice":
                given[it] += draw.choice([1, 1, 2])
            elif kind == "changed":
                changed |= {it} if given[it] == 1 else set()
            elif kind != "gone since":
                given[it] -= bool(given[it]) and kind in ("missing", "gone", "renamed")
            if kind in ("new", "new, gone since", "renamed"):
                given[new[0]] += 1
                listing |= {new[0]}
                today |= {new[0]} if kind != "new, gone since" else set()
                new = new[1:]
            if kind in ("gone", "gone since", "renamed"):
                today -= {it}
                listing -= {it} if kind != "gone since" else set()
    changed = {it for it in changed if given[it] == 1}
    had = [
        rows[it] + np.uint64(3) * (np.arange(COLUMNS) == 3) * (it in changed)
        for it in given.elements()
    ]
    names = sorted(today)
    groups = draw.choice([ROWS, ROWS // 8])
    dataset = receipt(rows[data], 1)
    epoch = receipt(np.array(had, np.uint64), 1 if listing == {*data} else 2, groups)
    guilty = {
        "missing": {it for it in data if not given[it]},
        "too many": {it for it in given if given[it] > (it < size)},
        "changed": changed,
    }
    guilty["missing, and others in its place"] = guilty["missing"]
    assert compare(dataset, epoch)[0] == (not any(guilty.values()))
    for kind, found in suspects(dataset, epoch, table(rows[names]), rows[names, 2]):
        if isinstance(found, str):
            continue
        named = {names[it] for it in found.tolist()}
        group = {int(rows[it, 2]) % groups for it in named}
        its = {it for it in guilty[kind] if int(rows[it, 2]) % groups in group}
        assert its
        assert named <= its or (len(named) > 1 and its <= named)


def test_what_is_proven_is_named():
    rows = np.random.default_rng(0).integers(0, 2**64, (2000, COLUMNS), np.uint64)
    rows[:, 0], rows[:, 1] = 1, 0
    dataset, today = receipt(rows, 1), (table(rows), rows[:, 2])
    for missing, twice in [([5], []), ([], [7]), ([5], [7]), ([5, 261], []), ([], [7, 7])]:
        for it, place in [(5, 3), (261, 3), (7, 3)]:  # in one group
            rows[it, 2] = rows[it, 2] // np.uint64(ROWS) * np.uint64(ROWS) + np.uint64(place)
        dataset, today = receipt(rows, 1), (table(rows), rows[:, 2])
        kept = [it for it in range(2000) if it not in missing] + twice
        found = [
            (kind, its.tolist()) for kind, its in suspects(dataset, receipt(rows[kept], 1), *today)
        ]
        wanted = [("missing", [it]) for it in missing] + [("too many", [it]) for it in {*twice}]
        assert found == wanted


def test_a_changed_sample_is_not_said_to_be_renamed_with_others_of_its_group():
    rows = np.random.default_rng(0).integers(0, 2**64, (10, COLUMNS), np.uint64)
    rows[:, 0], rows[:, 1] = 1, 0
    rows[:2, 2] = 7, 7 + ROWS
    dataset, today = receipt(rows[1:], 1), (table(rows), rows[:, 2])
    rows[1, 3] += np.uint64(1)
    words = "some samples; which is not known, because names have changed since"
    assert [*suspects(dataset, receipt(rows[1:], 1), *today)] == [("changed", words)]
