"""Orders of the user: what is taken, and what is refused with a remedy; samplers of torch."""

import random
import tracemalloc
import zlib
from array import array

import numpy as np
import pytest

from dali_storage.order.sampling.own import OwnOrder

torch = pytest.importorskip("torch", reason="no torch: pip install torch")
data = pytest.importorskip("torch.utils.data")
BatchSampler, Sampler, SequentialSampler = data.BatchSampler, data.Sampler, data.SequentialSampler
DistributedSampler, RandomSampler = data.DistributedSampler, data.RandomSampler
SubsetRandomSampler, WeightedRandomSampler = data.SubsetRandomSampler, data.WeightedRandomSampler

SAMPLES = 20
WEIGHTS = torch.arange(20) + 1.0


def seeded(epoch):
    return torch.Generator().manual_seed(epoch)


def permutation(epoch):
    return np.random.Generator(np.random.Philox(key=[1, epoch])).permutation(SAMPLES)


class ByEpoch(Sampler):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(torch.randperm(SAMPLES, generator=seeded(self.epoch)))  # tensors


class OfOtherKind:
    """No class of torch, but it has set_epoch()."""

    def set_epoch(self, epoch):
        self.start = epoch

    def __iter__(self):
        return iter(range(self.start, self.start + 5))


class Batches(Sampler):
    def __init__(self, sizes):
        self.sizes = sizes

    def __iter__(self):
        return iter([list(range(size)) for size in self.sizes])


def shuffled(epoch):
    """Also by torch's DistributedSampler, which documents its seed, 0 + epoch."""
    return torch.randperm(SAMPLES, generator=seeded(epoch)).tolist()


def weighted(epoch):
    return WeightedRandomSampler(WEIGHTS, 30, generator=seeded(epoch))


ALL = [*range(SAMPLES)]
FIXED = {
    "list": [3, 1, 1, 19],
    "tuple": (3, 1),
    "range": range(19, 0, -3),
    "array": np.arange(SAMPLES)[::-1],
    "small integers": np.arange(SAMPLES, dtype=np.uint8),
    "array.array": array("h", [4, 2]),
    "tensor": torch.arange(10) * 2,
    "SequentialSampler": SequentialSampler(ALL),
}
CHANGING = {  # with what an epoch is
    "function": (permutation, lambda e: permutation(e).tolist()),
    "generator function": (lambda e: (i for i in (e, 1)), lambda e: [e, 1]),
    "function of a sampler": (weighted, lambda e: [*weighted(e)]),
    "DistributedSampler of all": (DistributedSampler(ALL, 1, 0), shuffled),
    "sampler with set_epoch": (ByEpoch(), shuffled),
    "other with set_epoch": (OfOtherKind(), lambda e: [*range(e, e + 5)]),
    "BatchSampler": (BatchSampler(SequentialSampler(ALL), 6, False), lambda e: ALL),
    "BatchSampler, dropping": (BatchSampler(SequentialSampler(ALL), 6, True), lambda e: ALL[:18]),
    "BatchSampler of epochs": (BatchSampler(DistributedSampler(ALL, 1, 0), 7, False), shuffled),
    "own batches": (Batches([3, 3, 2]), lambda e: [0, 1, 2, 0, 1, 2, 0, 1]),
}
TAKEN = CHANGING | {
    name: (order, lambda e, it=order: [*map(int, it)]) for name, order in FIXED.items()
}


@pytest.mark.parametrize("name", TAKEN)
def test_an_order_that_can_be_seeked_is_taken(name):
    order, expected = TAKEN[name]
    made = OwnOrder(order, SAMPLES)
    size = len(expected(0))
    assert (made.epoch_size, made.changes, made.changed([])) == (size, [], made)
    for epoch in (2, 0, 1, 3, 2):
        found = made.entries(np.arange(epoch * size, (epoch + 1) * size))
        assert (found.dtype, found.tolist()) == (np.int64, expected(epoch))
        checksum = zlib.crc32(np.array(expected(epoch), "<i8").tobytes())
        assert made.describe(epoch) == f"an own one of {size} indices (CRC-32 {checksum:#x})"
    across = made.entries(np.arange(size - 1, 3 * size + 1))
    assert across.tolist() == [*expected(0)[-1:], *expected(1), *expected(2), expected(3)[0]]


AGAIN = "other indices for epoch 0 in a second call: seed by the epoch"
KIND, OF_A_RANK = "cannot restart at any epoch", "one of 2 ranks.*num_replicas=1"
REFUSED = {
    "RandomSampler": (lambda: RandomSampler(ALL), AGAIN),
    "RandomSampler with a generator": (lambda: RandomSampler(ALL, generator=seeded(1)), AGAIN),
    "SubsetRandomSampler": (lambda: SubsetRandomSampler(ALL[:10]), AGAIN),
    "WeightedRandomSampler": (lambda: WeightedRandomSampler(WEIGHTS, 20), AGAIN),
    "BatchSampler of random": (lambda: BatchSampler(RandomSampler(ALL), 3, True), AGAIN),
    "numpy's generator": (lambda: lambda e: np.random.permutation(20), AGAIN),
    "Python's generator": (lambda: lambda e: random.sample(ALL, 20), AGAIN),
    "of one rank": (lambda: DistributedSampler(ALL, 2, 1), OF_A_RANK),
    "its batches": (lambda: BatchSampler(DistributedSampler(ALL, 2, 1), 4, False), OF_A_RANK),
    "generator": (lambda: (i for i in ALL), KIND),
    "iterator": (lambda: iter(ALL), KIND),
    "set": (lambda: {1, 2}, KIND),
    "dictionary": (lambda: {1: 2}, KIND),
    "number": (lambda: 3, KIND),
    "larger batches": (lambda: Batches([2, 3]), "must have one size"),
    "smaller batches": (lambda: Batches([3, 2, 3]), "must have one size"),
    "floats": (lambda: [0.5, 1], "list of integers, not float64"),
    "floats of a function": (lambda: lambda e: iter([1, 1.0]), "list of integers, not float64"),
    "text": (lambda: "12", "list of integers, not <U2"),
    "mask": (lambda: [True, False] * 10, r"not bool .*give np.flatnonzero\(mask\)"),
    "table": (lambda: [[1, 2], [3, 4]], r"not int64 of shape \(2, 2\)"),
    "ragged": (lambda: [[1, 2], [3]], "order: .*inhomogeneous"),
    "nothing": (list, "no indices in epoch 0"),
    "empty sampler": (lambda: SequentialSampler([]), "no indices in epoch 0"),
    "None of a function": (lambda: lambda e: None, "order: 'NoneType'"),
    "too large": (lambda: [1, 2, 20], "index 20, but 20 samples exist"),
    "negative": (lambda: [1, -1], "index -1, but 20 samples exist"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_orders_are_refused_with_a_remedy(name):
    make, message = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=message) as error:
        OwnOrder(make(), SAMPLES)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (lambda e: range(20 - e), "epoch 1 has 19 indices, but epoch 0 has 20; give every epoch"),
        (lambda e: [e + 19], "index 20, but 20 samples exist"),
    ],
)
def test_a_later_epoch_is_checked_as_well(order, message):
    made = OwnOrder(order, SAMPLES)
    for ask in (lambda: made.describe(1), lambda: made.entries(np.array([made.epoch_size]))):
        with pytest.raises(ValueError, match=message):
            ask()
    assert made.entries(np.array([0])).size == 1


def test_the_global_generators_go_on_as_if_nothing_was_asked():
    def draws():
        return random.random(), np.random.random(), torch.rand(1).item()

    def order(epoch):
        draws()
        return ALL

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draws()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    OwnOrder(order, SAMPLES)
    with pytest.raises(ValueError, match=AGAIN):
        OwnOrder(RandomSampler(ALL), SAMPLES)
    assert draws() == expected


def test_two_epochs_are_kept():
    asked = []
    made = OwnOrder(lambda e: asked.append(e) or permutation(e), SAMPLES)
    for epoch in (0, 1, 0, 1, 2, 1, 2, 0):
        made.entries(np.array([epoch * SAMPLES + 3]))
    assert asked == [0, 0, 1, 2, 0]


@pytest.mark.parametrize("make", [np.arange, range], ids=["array", "range"])
def test_an_array_is_not_copied_and_a_range_is_no_list(make):
    size = 10**6
    order = make(size)
    tracemalloc.start()
    try:
        made = OwnOrder(order, size)
        made.entries(np.arange(size - 100, size + 100))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < (size if make is np.arange else 9 * size)
