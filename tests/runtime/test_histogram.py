"""Histograms, compared with sorted lists of the same integers."""

import math
from random import Random

import pytest

from dali_storage.runtime.histogram import Histogram, Times
from tests.kit.tiers import by_tier


def numbers(seed):
    """Some integers of all magnitudes."""
    random = Random(seed)
    return [random.randrange(1 << random.randrange(1, 61)) for _ in range(random.randrange(1, 400))]


def recorded(values):
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    return histogram


@pytest.mark.parametrize("seed", range(by_tier(20, 300)))
def test_a_percentile_is_never_too_low_and_at_most_an_eighth_too_high(seed):
    values = sorted(numbers(seed))
    histogram = recorded(values)
    for percent in (1, 50, 90, 95, 99, 100):
        exact = values[max(math.ceil(len(values) * percent / 100), 1) - 1]
        assert exact <= histogram.percentile(percent) <= exact + exact / 8
    counted = histogram.count, histogram.total, histogram.most
    assert counted == (len(values), sum(values), values[-1])


def test_small_integers_and_the_largest_are_exact_and_negative_ones_are_zero():
    for value in range(16):
        assert recorded([value, 999]).percentile(50) == value
    assert (recorded([-5]).most, recorded([-5]).total) == (0, 0)
    assert recorded([]).percentile(99) == 0
    assert recorded([2**63 - 1]).percentile(50) == 2**63 - 1


@pytest.mark.parametrize("shift", [4, 10, 37])
def test_a_power_of_two_divides_the_buckets(shift):
    values = [2**shift - 2, 2**shift - 1, 2**shift, 2**shift + 1]
    assert recorded(values).counts[: Histogram.below(shift) + 1].sum() == 2


def test_what_came_since_a_copy_is_all_that_was_recorded_meanwhile():
    histogram, before = recorded([5, 10**6]), recorded([5, 10**6])
    histogram.record(700)
    later = histogram.since(before)
    assert (later.count, later.total) == (1, 700)
    assert 700 <= later.most <= 700 + 700 / 8
    assert recorded([9]).since(None).total == 9
    assert histogram.since(histogram).count == 0


def test_times_are_those_of_all_threads_until_they_are_reset():
    times = Times()
    for thread in range(3):
        times.record(thread, {"reading": 2 * (10 + thread)}, 2)
    times.record(0, {"opening": 1})
    merged = times.merged()
    assert {name: it.total for name, it in merged.items()} == {"reading": 66, "opening": 1}
    times.reset()
    assert times.merged() == {}
    assert (merged["reading"].count, merged["reading"].most) == (6, 12)
