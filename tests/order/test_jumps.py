"""Batches of an order in any order, the work of a jump, and memory."""

import json
import subprocess
import sys
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from dali_storage.order import Order, OrderOptions, streams
from dali_storage.order.libstdcxx import Minstd, Mt19937_64, shuffled
from tests.kit.order_model import batches, case_of, epochs, some_case
from tests.kit.tiers import by_tier

SHUFFLED = OrderOptions(random_shuffle=True)


@pytest.mark.parametrize("containers", [False, True])
def test_batches_can_be_requested_in_any_order(containers, monkeypatch):
    random = Random(200 + containers)
    for _ in range(by_tier(40, 300)):
        case = case_of(random, containers)
        expected = batches(case, epochs(case, 5))
        # Few saved states and short chunks, so that seeking does all it can.
        with monkeypatch.context() as patch:
            patch.setattr(streams, "CHUNK", random.choice([1, 7, 50, 8192]))
            patch.setattr(streams, "_MARKS", random.choice([1, 2, 5]))
            patch.setattr(streams, "_STRIDE", random.choice([1, 10, 100]))
            order = Order(*case)
            for index in random.choices(range(len(expected)), k=12):
                assert order.batch(index).tolist() == expected[index], (index, case)


class SmallEngine:
    """A stand-in for Minstd with so few numbers that it rejects many."""

    def __init__(self, seed: int) -> None:
        self.state = seed % 100 + 1

    def one(self, bound):
        while True:
            self.state = self.state * 2 % 101
            if self.state - 1 < 99 // bound * bound:
                return (self.state - 1) // (99 // bound)

    def draw(self, bounds):
        return np.array([self.one(bound) for bound in bounds.tolist()])

    def skip(self, number, largest, bound):
        for index in range(number):
            assert 1 <= bound(index) <= largest
            self.one(bound(index))


def test_a_jump_counts_rejected_draws(monkeypatch):
    monkeypatch.setattr(streams, "Minstd", SmallEngine)
    random = Random(300)
    for _ in range(by_tier(50, 300)):
        monkeypatch.setattr(streams, "_STRIDE", random.choice([1, 10, 65536]))
        size, batch_size, options, _ = some_case(random)
        options = replace(options, random_shuffle=True, shuffle_after_epoch=False)
        case = size, batch_size, options, None
        expected = batches(case, epochs(case, 5))
        index = random.randrange(len(expected))
        assert Order(*case).batch(index).tolist() == expected[index], (index, case)


def test_a_jump_computes_no_batch_in_between_without_shuffling():
    far = 10**30
    assert Order(7, 4, OrderOptions()).batch(far).tolist() == [(4 * far + i) % 7 for i in range(4)]
    padded = OrderOptions(pad_last_batch=True, num_shards=3, stick_to_shard=True)
    assert Order(7, 4, padded).batch(far).tolist() == [0, 1, 1, 1]


@pytest.fixture
def shuffles(monkeypatch):
    """The lengths of the lists that are shuffled; at most ten."""
    found = []

    def count(items, *others):
        found.append(len(items))
        assert len(found) <= 10
        return shuffled(items, *others)

    monkeypatch.setattr(streams, "shuffled", count)
    return found


@pytest.mark.parametrize("in_containers", [False, True])
def test_a_jump_shuffles_no_epoch_in_between(in_containers, shuffles):
    options = OrderOptions(shuffle_after_epoch=True, checkpointing=True, by_container=in_containers)
    each = 5 if in_containers else 1
    far = Order(8 * each, 8 * each, options, np.array([each] * 8)).batch(10**7)
    expected = shuffled(np.arange(8), Mt19937_64(524287 + (10**7 + 1 << 32)), 64)
    assert (far[::each] // each).tolist() == expected.tolist()
    assert shuffles


def test_few_epochs_of_a_small_data_set_are_shuffled_ahead(shuffles):
    options = replace(SHUFFLED, by_container=True, shuffle_after_epoch=True)
    Order(20, 10, options, np.array([5] * 4)).batch(0)
    assert 1 <= len(shuffles) <= 5


def test_a_long_jump_in_a_shuffle_does_not_shuffle_the_samples_in_between(monkeypatch):
    drawn, skips = [], []

    class Counting(Minstd):
        def draw(self, bounds):
            drawn.append(len(bounds))
            return super().draw(bounds)

        def skip(self, number, *others):
            skips.append(number)
            assert len(skips) < 10**4
            super().skip(number, *others)

    monkeypatch.setattr(streams, "Minstd", Counting)
    order = Order(999, 4, SHUFFLED)
    far = order.batch(2 * 10**7).tolist()
    order.batch(0)
    assert order.batch(2 * 10**7).tolist() == far
    assert sum(drawn) < 10**5


MEMORY = """
import json, tracemalloc
from dali_storage.order import Order, OrderOptions, streams
import numpy as np

def peak(batches, size, batch_size, **options):
    by_container = options.get("by_container", False)
    counts = np.full(100, size // 100) if by_container else None
    tracemalloc.start()
    order = Order(size, batch_size, OrderOptions(random_shuffle=True, **options), counts)
    for index in batches:
        order.batch(index)
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found

window = {"initial_fill": 2**31 - 1}
containers = {"by_container": True, "shuffle_after_epoch": True}
found = [
    peak(range(100), 100, 10, **window),
    peak(range(10), 300_000, 64, **window),
    peak((0, 1, 10**5, 10**5 + 1), 10**10, 64, initial_fill=1, **containers),
    peak(range(300), 10**10, 64, **containers),
]
streams.CHUNK = streams._STRIDE = streams._MARKS = 16
found += [peak(range(number), 40, 10) for number in (200, 2500)]
print(json.dumps(found))
"""


@pytest.mark.long
def test_memory_depends_on_the_list_or_the_containers_and_not_on_window_samples_or_epochs():
    """In a process of its own, in which nobody else takes memory."""
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, check=True)
    small, large, jumps, window, short, long = json.loads(done.stdout)
    assert small < 4_000_000
    assert large < 100 * 300_000
    assert max(jumps, window) < 2_000_000
    assert long < short + 30_000
