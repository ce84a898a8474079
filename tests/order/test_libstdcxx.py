"""The random numbers of libstdc++, compared with a model of one number at a time."""

from itertools import islice
from random import Random

import numpy as np
import pytest

from dali_storage.order import libstdcxx
from tests.kit.order_model import (
    mersenne_twister,
    minstd,
    minstd_after,
    multiplied,
    scaled,
    seed_seq,
    std_shuffle,
)


def test_seed_sequences():
    for seed in (0, 1, 42, -1, 2**32 + 1):
        for size in (2, 4, 6, 7, 38, 39, 67, 68, 622, 623, 1024):
            assert libstdcxx.seed_words(seed, size) == seed_seq(seed, size)


def test_a_state_of_zero_is_not_taken(monkeypatch):
    monkeypatch.setattr(libstdcxx, "seed_words", lambda seed, count: [0, 0, 0, 2**31 - 1])
    assert libstdcxx.Minstd(1).state == 1


@pytest.mark.parametrize("least", [1, 2**20, 2**30])
def test_draws_that_are_rejected_shift_the_others(least):
    bounds = np.random.default_rng(0).integers(least, 2**31 - 2, 10_000)
    numbers, rejected = minstd(5), list[int]()
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


@pytest.mark.parametrize("bits", [32, 64])
def test_mersenne_twisters(bits):
    for seed in (0, 5489, 524287, 2**32 - 1):
        engine = twister(bits, seed)
        words = np.concatenate([engine(156), engine(156 * 5)]).tolist()
        assert words == list(islice(mersenne_twister(bits, seed), len(words)))


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("least_bits", [1, 2, 8])
def test_multiplied_draws_that_are_rejected_shift_the_others(bits, least_bits):
    random, numbers, rejected = Random(bits), mersenne_twister(bits, 11), list[int]()
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
        std_shuffle(items, bits, size)
        given = np.arange(size)
        assert libstdcxx.shuffled(given, twister(bits, size), bits).tolist() == items
        assert given.tolist() == list(range(size))
