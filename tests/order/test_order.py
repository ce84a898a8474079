"""The order of the samples; the oracles are the real fn.readers.file and a model of its loader."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn

from dali_storage.contract._types import IntArray
from dali_storage.order import Order, OrderOptions, reader_meta, streams
from dali_storage.order.libstdcxx import seed_words
from tests.kit.order_model import Model, minstd, model_batches, scaled, std_shuffle

# --- Cases -------------------------------------------------------------------------------

Case = tuple[int, int, OrderOptions]


def some_case(random: Random) -> Case:
    """A size, a batch size and options."""
    size = random.choice([random.randint(1, 9), random.randint(1, 70)])
    num_shards = random.choice([1, 1, random.randint(1, size)])
    shuffle = random.choice(["none", "random", "random", "epoch"])
    options = OrderOptions(
        random_shuffle=shuffle == "random",
        initial_fill=random.choice([1, 2, random.randint(1, 80), 1024]),
        seed=random.choice([-1, 0, 7, 2**31 - 1, 2**32 + 5, -(2**40), random.randrange(2**62)]),
        shuffle_after_epoch=shuffle == "epoch",
        shuffle_after_epoch_seed=random.choice([None, 0, -3, 2**33 + 1, random.randrange(2**62)]),
        num_shards=num_shards,
        shard_id=random.randrange(num_shards),
        stick_to_shard=shuffle != "epoch" and random.random() < 0.5,
        pad_last_batch=random.random() < 0.5,
        checkpointing=random.random() < 0.5,
    )
    return size, random.choice([1, random.randint(1, 8), random.randint(1, 100)]), options


def epochs(case: Case, number: int = 3) -> int:
    """The number of batches in `number` epochs, plus two."""
    size, batch_size, options = case
    return number * -(-size // options.num_shards // batch_size) + 2


def batches(case: Case, number: int) -> list[list[int]]:
    order = Order(*case)
    return [order.batch(index).tolist() for index in range(number)]


@pytest.fixture
def single_file(tmp_path: Path) -> str:
    path = tmp_path / "sample"
    path.write_bytes(b"x")
    return str(path)


def dali_reader(path: str, case: Case, **pipeline_arguments: Any) -> Pipeline:
    """A pipeline of which each sample is its own index."""
    size, batch_size, options = case
    arguments = {key: value for key, value in asdict(options).items() if value is not None}
    del arguments["by_container"]
    pipeline_arguments["enable_checkpointing"] = arguments.pop("checkpointing")
    if not options.shuffle_after_epoch:
        arguments.pop("shuffle_after_epoch_seed", None)  # DALI warns
    if "seed" in pipeline_arguments:
        del arguments["seed"]
    pipeline = Pipeline(batch_size, num_threads=1, device_id=None, **pipeline_arguments)
    with pipeline:
        # As DALI cannot map very many files, they are read.
        _, labels = fn.readers.file(
            files=[path] * size, labels=list(range(size)), dont_use_mmap=True, name="r", **arguments
        )
        pipeline.set_outputs(labels)
    return pipeline


def dali_batches(pipeline: Pipeline, number: int) -> list[list[int]]:
    return [pipeline.run()[0].as_array().ravel().tolist() for _ in range(number)]


# --- The order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("part", range(4))
def test_samples_are_in_the_order_of_dali(part: int, single_file: str) -> None:
    random = Random(part)
    for _ in range(120):
        case = some_case(random)
        pipeline = dali_reader(single_file, case)
        assert batches(case, epochs(case)) == dali_batches(pipeline, epochs(case)), case
        assert reader_meta(case[0], case[2]) == pipeline.reader_meta("r"), case


@pytest.mark.parametrize("seed", [0, 42, 2**31, 2**40 + 3])
def test_a_pipeline_deals_its_first_seed_to_the_reader(seed: int, single_file: str) -> None:
    case = 50, 8, OrderOptions(random_shuffle=True)
    expected = dali_batches(dali_reader(single_file, case, seed=seed), 20)
    case = 50, 8, replace(case[2], seed=seed_words(seed, 1024)[0])
    assert batches(case, 20) == expected


@pytest.mark.parametrize("size", [65535, 65536, 70001])
def test_a_long_list_is_shuffled_as_in_dali(size: int, single_file: str) -> None:
    for options in (OrderOptions(random_shuffle=True), OrderOptions(shuffle_after_epoch=True)):
        case = size, 3001, options
        assert batches(case, 30) == dali_batches(dali_reader(single_file, case), 30)


def test_a_rejected_draw_is_repeated_as_in_dali(single_file: str) -> None:
    size, seed, refused = 70001, 0, list[int]()
    while len(refused) < 2:
        seed += 1
        refused = []
        numbers = minstd(seed)
        for bound in range(size, 0, -1):
            scaled(numbers, bound, refused)
    case = size, 7001, OrderOptions(random_shuffle=True, initial_fill=size, seed=seed)
    assert batches(case, 20) == dali_batches(dali_reader(single_file, case), 20)


@pytest.mark.parametrize("part", range(4))
def test_samples_are_in_the_order_of_the_model(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(100 + part)
    for _ in range(150):
        monkeypatch.setattr(streams, "_CHUNK", random.choice([1, 7, 50, 8192]))
        case = some_case(random)
        assert batches(case, epochs(case)) == model_batches(*case, epochs(case)), case


@pytest.mark.parametrize("part", range(4))
def test_batches_can_be_requested_in_any_order(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(200 + part)
    for _ in range(80):
        # Few saved states and short chunks, so that seeking does all it can.
        monkeypatch.setattr(streams, "_CHUNK", random.choice([1, 7, 50, 8192]))
        monkeypatch.setattr(streams, "_MARKS", random.choice([1, 2, 5]))
        monkeypatch.setattr(streams, "_STRIDE", random.choice([1, 10, 100]))
        case = some_case(random)
        expected = model_batches(*case, epochs(case, 5))
        order = Order(*case)
        for index in random.choices(range(len(expected)), k=20):
            assert order.batch(index).tolist() == expected[index], (index, case)


class SmallEngine:
    """A stand-in for Minstd with so few numbers that it rejects many."""

    def __init__(self, seed: int) -> None:
        self.state = seed % 100 + 1

    def one(self, bound: int) -> int:
        while True:
            self.state = self.state * 2 % 101
            if self.state - 1 < 99 // bound * bound:
                return (self.state - 1) // (99 // bound)

    def draw(self, bounds: IntArray) -> IntArray:
        return np.array([self.one(bound) for bound in bounds.tolist()])

    def skip(self, number: int, largest: int, bound: Callable[[int], int]) -> None:
        for index in range(number):
            assert 1 <= bound(index) <= largest
            self.one(bound(index))


def test_a_jump_counts_rejected_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "Minstd", SmallEngine)
    random = Random(300)
    for _ in range(100):
        monkeypatch.setattr(streams, "_STRIDE", random.choice([1, 10, 65536]))
        size, batch_size, options = some_case(random)
        options = replace(options, random_shuffle=True, shuffle_after_epoch=False)
        model = Model(size, options)
        model.draw = SmallEngine(options.seed).one
        number = epochs((size, batch_size, options), 5)
        expected = [[model.sample(i == 0) for i in range(batch_size)] for _ in range(number)]
        index = random.randrange(number)
        order = Order(size, batch_size, options)
        assert order.batch(index).tolist() == expected[index], (index, size, options)


def test_known_orders() -> None:
    base = OrderOptions(random_shuffle=True, initial_fill=1)
    assert batches((10, 10, base), 1) == [[5, 9, 1, 6, 7, 2, 0, 4, 8, 3]]
    assert batches((10, 10, replace(base, initial_fill=5, seed=7)), 2) == [
        [6, 9, 5, 4, 7, 0, 8, 3, 2, 1],
        [6, 9, 7, 5, 0, 3, 2, 1, 8, 4],
    ]
    reshuffled = OrderOptions(shuffle_after_epoch=True)
    assert batches((10, 10, reshuffled), 1) == [[9, 6, 0, 5, 4, 2, 8, 1, 7, 3]]
    assert seed_words(42, 1024)[0] == 1153314634


def test_a_batch_belongs_to_the_caller() -> None:
    for options in (OrderOptions(), OrderOptions(pad_last_batch=True)):
        order = Order(10, 4, options)
        batch = order.batch(0)
        assert batch.dtype == np.int64
        assert batch.shape == (4,)
        batch[:] = -1
        assert order.batch(0).tolist() == [0, 1, 2, 3]


# --- Jumps and large lists -----------------------------------------------------------------------


def test_a_jump_is_immediate_without_shuffling() -> None:
    far, began = 10**30, time.perf_counter()
    assert Order(7, 4, OrderOptions()).batch(far).tolist() == [(4 * far + i) % 7 for i in range(4)]
    padded = OrderOptions(pad_last_batch=True, num_shards=3, stick_to_shard=True)
    assert Order(7, 4, padded).batch(far).tolist() == [0, 1, 1, 1]
    options = OrderOptions(shuffle_after_epoch=True, checkpointing=True)
    items = list(range(8))
    std_shuffle(items, 64, 524287 + (5 * 10**6 + 1 << 32))
    assert Order(8, 4, options).batch(10**7).tolist() == items[:4]
    assert time.perf_counter() - began < 5


def test_a_jump_in_a_shuffle() -> None:
    case = 999, 64, OrderOptions(random_shuffle=True, initial_fill=500, num_shards=2, seed=3)
    steady = Order(*case)
    for index in range(20_000):
        expected = steady.batch(index)
    assert Order(*case).batch(20_000 - 1).tolist() == expected.tolist()


def test_a_long_jump_in_a_shuffle_does_not_shuffle_the_epochs_in_between() -> None:
    order, began = Order(999, 4, OrderOptions(random_shuffle=True)), time.perf_counter()
    far = order.batch(2 * 10**7).tolist()
    order.batch(0)
    assert order.batch(2 * 10**7).tolist() == far
    assert time.perf_counter() - began < 5  # 0.4 s, and 16 s if all the samples were shuffled


def peak_bytes(case: Case, batches: int) -> int:
    """The peak memory of the first batches."""
    tracemalloc.start()
    try:
        order = Order(*case)
        for index in range(batches):
            order.batch(index)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_depends_on_the_list_and_not_on_the_window() -> None:
    options = OrderOptions(random_shuffle=True, initial_fill=2**31 - 1)
    assert peak_bytes((100, 10, options), 100) < 4_000_000
    assert peak_bytes((300_000, 64, options), 10) < 100 * 300_000


def test_memory_does_not_grow_with_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_CHUNK", 16)
    monkeypatch.setattr(streams, "_STRIDE", 16)
    case = 40, 10, OrderOptions(random_shuffle=True)
    assert peak_bytes(case, 40_000) < 1_000_000


# --- Refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"random_shuffle": True, "initial_fill": 0}, "initial_fill must be .* not 0"),
        ({"random_shuffle": True, "initial_fill": -5}, "initial_fill must be .* not -5"),
        ({"num_shards": 0}, "num_shards must be at least 1, not 0"),
        ({"shard_id": -1}, "shard_id must be from 0 to 0, not -1"),
        ({"num_shards": 2, "shard_id": 2}, "shard_id must be from 0 to 1, not 2"),
        ({"shuffle_after_epoch": True, "random_shuffle": True}, "epoch and random_shuffle cannot"),
        ({"shuffle_after_epoch": True, "stick_to_shard": True}, "epoch and stick_to_shard cannot"),
    ],
)
def test_impossible_options_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OrderOptions(**arguments)


def test_initial_fill_matters_only_to_random_shuffle() -> None:
    assert batches((3, 3, OrderOptions(initial_fill=0)), 1) == [[0, 1, 2]]


def test_more_shards_than_samples_are_refused() -> None:
    options = OrderOptions(num_shards=4)
    with pytest.raises(ValueError, match=r"num_shards must be at most 3, .* not 4"):
        Order(3, 1, options)
    with pytest.raises(ValueError, match=r"num_shards must be at most 3, .* not 4"):
        reader_meta(3, options)
    with pytest.raises(ValueError, match=r"num_shards must be at most 0, .* not 1"):
        Order(0, 1, OrderOptions())


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"batch_size .* not 0"):
        Order(3, 0, OrderOptions())
    with pytest.raises(ValueError, match=r"index .* not -1"):
        Order(3, 1, OrderOptions()).batch(-1)


def test_a_list_takes_four_bytes_for_an_entry() -> None:
    lists = streams.Lists(5000, OrderOptions())
    assert {lists.fixed.dtype, lists.of_epoch(1).dtype} == {np.dtype(np.int32)}
    assert Order(5000, 4, OrderOptions(shuffle_after_epoch=True)).batch(0).dtype == np.int64
