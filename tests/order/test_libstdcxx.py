"""The random numbers of libstdc++: known ones, and a model of one draw at a time."""

from random import Random

import numpy as np
import pytest

from dali_storage.order import libstdcxx
from tests.kit.order_model import minstd_after, multiplied, scaled, std_shuffle


def test_a_state_of_zero_is_not_taken(monkeypatch):
    monkeypatch.setattr(libstdcxx, "seed_words", lambda seed, count: [0, 0, 0, 2**31 - 1])
    assert libstdcxx.Minstd(1).state == 1


@pytest.mark.parametrize("least", [1, 2**20, 2**30])
def test_draws_that_are_rejected_shift_the_others(least):
    bounds = np.random.default_rng(0).integers(least, 2**31 - 2, 10_000)
    numbers, rejected = minstd_after(libstdcxx.Minstd(5).state), list[int]()
    expected = [scaled(numbers, bound, rejected) for bound in bounds.tolist()]
    assert rejected
    drawn, skipped = libstdcxx.Minstd(5), libstdcxx.Minstd(5)
    assert drawn.draw(bounds).tolist() == expected
    skipped.skip(len(bounds), int(bounds.max()), bounds.item)
    assert skipped.state == drawn.state
    assert skipped.draw(np.array([2**31 - 3])).tolist() == [scaled(numbers, 2**31 - 3)]


@pytest.mark.parametrize("bound", [1, 2, 3, 1024, 10**6 + 1, 2147483646 // 2, 2147483646 // 3])
def test_draws_next_to_those_that_are_rejected(bound):
    limit = 2147483645 // bound * bound
    for output in range(limit - 1, min(limit + 2, 2147483646)):
        engine = libstdcxx.Minstd(0)
        engine.state = (output + 1) * pow(16807, -1, 2**31 - 1) % (2**31 - 1)
        expected = scaled(minstd_after(engine.state), bound)
        assert engine.draw(np.array([bound])).tolist() == [expected]


def twister(bits, seed):
    return libstdcxx.mt19937(seed) if bits == 32 else libstdcxx.Mt19937_64(seed)


def test_the_engines_give_the_numbers_that_the_standard_requires():
    """The 10,000th of each, see [rand.predef]."""
    minstd = libstdcxx.Minstd(0)
    minstd.state = 1
    minstd.skip(10_000, 1, lambda index: 1)
    assert minstd.state == 1043618065
    for bits, expected in ((32, 4123659995), (64, 9981545732273789042)):
        words, parts = twister(bits, 5489)(10_140), twister(bits, 5489)
        assert words[9_999] == expected
        assert np.concatenate([parts(156), parts(9_984)]).tolist() == words.tolist()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("least_bits", [1, 2, 8])
def test_multiplied_draws_that_are_rejected_shift_the_others(bits, least_bits):
    random, rejected = Random(bits), list[int]()
    numbers = iter(twister(bits, 11)(312 * 64).tolist())
    bounds = [random.randrange(2 ** (bits - least_bits), 2**bits) for _ in range(5000)]
    expected = [multiplied(numbers, bits, bound, rejected) for bound in bounds]
    assert rejected
    engine = twister(bits, 11)
    assert libstdcxx.draw_below(engine, bits, np.array(bounds, np.uint64)).tolist() == expected


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("bound", [3, 1025, 2**31 - 1, 2**32 - 5])
def test_multiplied_draws_next_to_those_that_are_rejected(bits, bound):
    limit = 2**bits % bound
    for low in (0, limit - 1, limit, bound - 1, bound):
        words = [low * pow(bound, -1, 2**bits) % 2**bits, 2**bits - 1]
        expected = [multiplied(iter(words), bits, bound)]

        def engine(count, words=words):
            return np.array(words * count, np.uint64)

        drawn = libstdcxx.draw_below(engine, bits, np.array([bound], np.uint64))
        assert drawn.tolist() == expected


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("head", [4, 20, 4096])
def test_shuffles(bits, head, monkeypatch):
    monkeypatch.setattr(libstdcxx, "_SHUFFLE_HEAD", head)
    # From 2**16 on, 32 bits are drawn for one item and not for two.
    for size in (1, 2, 3, 4, 5, 100, 1001, 6000, *(2**16 - 1, 2**16) * (bits == 32 and head > 20)):
        items = list(range(size))
        std_shuffle(items, bits, iter(twister(bits, size)(3 * size + 312).tolist()))
        given = np.arange(size)
        assert libstdcxx.shuffled(given, twister(bits, size), bits).tolist() == items
        assert given.tolist() == list(range(size))
