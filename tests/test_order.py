"""Two oracles: the real fn.readers.file, and a slow model of its loader written from DALI's C++."""

from __future__ import annotations

import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn

from dali_storage._types import IntArray
from dali_storage.order import Order, OrderOptions, libstdcxx, reader_meta, streams
from dali_storage.order.libstdcxx import seed_words

# --- The model: one number, one sample at a time -------------------------------------------------


def seed_seq(seed: int, size: int) -> list[int]:
    """[rand.util.seedseq] of the C++ standard, for one word."""
    given, words, mask = [seed % 2**32], [0x8B8B8B8B] * size, 2**32 - 1
    t = (
        11
        if size >= 623
        else 7
        if size >= 68
        else 5
        if size >= 39
        else 3
        if size >= 7
        else (size - 1) // 2
    )
    p = (size - t) // 2
    q = p + t
    rounds = max(len(given) + 1, size)

    def scramble(x: int) -> int:
        return x ^ (x >> 27)

    for k in range(rounds):
        r1 = (
            1664525 * scramble(words[k % size] ^ words[(k + p) % size] ^ words[(k - 1) % size])
            & mask
        )
        extra = len(given) if k == 0 else k % size + given[k - 1] if k <= len(given) else k % size
        r2 = (r1 + extra) & mask
        words[(k + p) % size] = (words[(k + p) % size] + r1) & mask
        words[(k + q) % size] = (words[(k + q) % size] + r2) & mask
        words[k % size] = r2
    for k in range(rounds, rounds + size):
        total = words[k % size] + words[(k + p) % size] + words[(k - 1) % size]
        r3 = 1566083941 * scramble(total & mask) & mask
        r4 = (r3 - k % size) & mask
        words[(k + p) % size] ^= r3
        words[(k + q) % size] ^= r4
        words[k % size] = r4
    return words


def minstd(seed: int) -> Iterator[int]:
    return minstd_after(seed_seq(seed, 4)[3] % (2**31 - 1) or 1)


def minstd_after(state: int) -> Iterator[int]:
    while True:
        state = state * 16807 % (2**31 - 1)
        yield state


def mersenne_twister(bits: int, seed: int) -> Iterator[int]:
    """[rand.eng.mers] of the C++ standard; the parameters are those of [rand.predef]."""
    n, m, r, a, u, d, s, b, t, c, last, f = {
        32: (624, 397, 31, 0x9908B0DF, 11, 0xFFFFFFFF, 7, 0x9D2C5680, 15, 0xEFC60000, 18,
             1812433253),
        64: (312, 156, 31, 0xB5026F5AA96619E9, 29, 0x5555555555555555, 17, 0x71D67FFFEDA60000, 37,
             0xFFF7EEE000000000, 43, 6364136223846793005),
    }[bits]  # fmt: skip
    mask, low = 2**bits - 1, 2**r - 1
    state = [seed & mask]
    for i in range(1, n):
        state.append((f * (state[-1] ^ (state[-1] >> (bits - 2))) + i) & mask)
    for i in count():
        y = (state[i % n] & ~low) | (state[(i + 1) % n] & low)
        z = state[i % n] = state[(i + m) % n] ^ (y >> 1) ^ (a if y & 1 else 0)
        z ^= (z >> u) & d
        z ^= (z << s) & b
        z ^= (z << t) & c
        yield z ^ (z >> last)


def scaled(numbers: Iterator[int], bound: int, refused: list[int] | None = None) -> int:
    """The older method of std::uniform_int_distribution, on minstd_rand0."""
    scaling = 2147483645 // bound
    while (number := next(numbers) - 1) >= bound * scaling:
        if refused is not None:
            refused.append(number)
    return number // scaling


def multiplied(
    numbers: Iterator[int], bits: int, bound: int, refused: list[int] | None = None
) -> int:
    """The newer method of std::uniform_int_distribution, on engines of full words."""
    while (product := next(numbers) * bound) % 2**bits < (2**bits - bound) % bound:
        if refused is not None:
            refused.append(product)
    return product >> bits


def std_shuffle(items: list[int], bits: int, seed: int) -> None:
    numbers = mersenne_twister(bits, seed)

    def swap(i: int, j: int) -> None:
        items[i], items[j] = items[j], items[i]

    size = len(items)
    if (2**bits - 1) // size < size:
        for i in range(1, size):
            swap(i, multiplied(numbers, bits, i + 1))
        return
    first = 1
    if size % 2 == 0:
        swap(1, multiplied(numbers, bits, 2))
        first = 2
    for i in range(first, size, 2):
        x = multiplied(numbers, bits, (i + 1) * (i + 2))
        swap(i, x // (i + 2))
        swap(i + 1, x % (i + 2))


class Model:
    """DALI's Loader and FileLabelLoader, statement by statement; gives one sample after another."""

    def __init__(self, size: int, options: OrderOptions) -> None:
        self.size, self.options = size, options
        self.stick = options.stick_to_shard or options.shuffle_after_epoch
        self.items, self.epoch, numbers = list(range(size)), 0, minstd(options.seed)
        self.draw: Callable[[int], int] = lambda bound: scaled(numbers, bound)
        if options.random_shuffle:
            std_shuffle(self.items, 32, 524287)
        self.reshuffle()
        self.fill = options.initial_fill if options.random_shuffle else 1
        self.virtual = options.shard_id
        self.current = self.start(self.virtual)
        self.buffer: list[int] = []
        self.parts = deque([[0, 0]])
        self.returned = self.counted = 0
        self.last = -1
        for _ in range(self.fill):
            self.buffer.append(self.read())

    def start(self, shard: int) -> int:
        return self.size * shard // self.options.num_shards

    def reshuffle(self) -> None:
        self.epoch += 1
        if self.options.shuffle_after_epoch:
            if self.options.checkpointing:
                self.items = list(range(self.size))
            seed = self.options.shuffle_after_epoch_seed
            std_shuffle(self.items, 64, (524287 if seed is None else seed) + (self.epoch << 32))

    def read(self) -> int:
        sample = self.items[self.current]
        self.current += 1
        next_shard = self.options.shard_id + 1
        passed = next_shard < self.options.num_shards and self.current >= self.start(next_shard)
        if self.current >= self.size or (self.stick and passed):
            self.current = self.start(self.options.shard_id) if self.stick else 0
            self.reshuffle()
        self.count_read()
        self.parts[-1][1] += 1
        return sample

    def count_read(self) -> None:
        shards = self.options.num_shards
        self.counted += 1
        index = self.counted - 1 + self.start(self.virtual)
        inside = self.virtual + 1 == shards or index < self.start(self.virtual + 1)
        if index >= self.size or not inside:
            self.counted = 1
            if not self.stick:
                self.virtual = (self.virtual + 1) % shards
            self.parts.append([self.parts[-1][1]] * 2)

    def sample(self, first_of_batch: bool) -> int:
        if self.parts[0][0] == self.parts[0][1]:
            wanted = -(-self.size // self.options.num_shards)
            if self.options.pad_last_batch and (self.returned < wanted or not first_of_batch):
                self.returned += 1
                return self.last
            self.parts.popleft()
            self.returned = 0
        start, end = self.parts[0]
        drawn = self.draw(end - start) if self.options.random_shuffle else 0
        i, j = (start + drawn) % self.fill, start % self.fill
        self.buffer[i], self.buffer[j] = self.buffer[j], self.buffer[i]
        place = self.parts[-1][1] % self.fill
        self.last = self.buffer[place]
        self.buffer[place] = self.read()
        self.parts[0][0] += 1
        self.returned += 1
        return self.last


def model_batches(
    size: int, batch_size: int, options: OrderOptions, batches: int
) -> list[list[int]]:
    model = Model(size, options)
    return [[model.sample(i == 0) for i in range(batch_size)] for _ in range(batches)]


# --- What is tried -------------------------------------------------------------------------------

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
    """How many batches some epochs have, and two more."""
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
def test_as_dali_orders_them(part: int, single_file: str) -> None:
    random = Random(part)
    for _ in range(120):
        case = some_case(random)
        pipeline = dali_reader(single_file, case)
        assert batches(case, epochs(case)) == dali_batches(pipeline, epochs(case)), case
        assert reader_meta(case[0], case[2]) == pipeline.reader_meta("r"), case


@pytest.mark.parametrize("seed", [0, 42, 2**31, 2**40 + 3])
def test_the_first_seed_that_a_pipeline_deals(seed: int, single_file: str) -> None:
    case = 50, 8, OrderOptions(random_shuffle=True)
    expected = dali_batches(dali_reader(single_file, case, seed=seed), 20)
    case = 50, 8, replace(case[2], seed=seed_words(seed, 1024)[0])
    assert batches(case, 20) == expected


@pytest.mark.parametrize("size", [65535, 65536, 70001])
def test_the_shuffle_of_a_long_list_as_dali(size: int, single_file: str) -> None:
    for options in (OrderOptions(random_shuffle=True), OrderOptions(shuffle_after_epoch=True)):
        case = size, 3001, options
        assert batches(case, 30) == dali_batches(dali_reader(single_file, case), 30)


def test_a_refused_draw_from_a_window_of_the_whole_list_as_dali(single_file: str) -> None:
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
def test_as_the_model_orders_them(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(100 + part)
    for _ in range(150):
        monkeypatch.setattr(streams, "_CHUNK", random.choice([1, 7, 50, 8192]))
        case = some_case(random)
        assert batches(case, epochs(case)) == model_batches(*case, epochs(case)), case


@pytest.mark.parametrize("part", range(4))
def test_batches_in_any_order(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(200 + part)
    for _ in range(80):
        # So few states remembered and so short chunks, that all of seeking is needed.
        monkeypatch.setattr(streams, "_CHUNK", random.choice([1, 7, 50, 8192]))
        monkeypatch.setattr(streams, "_MARKS", random.choice([1, 2, 5]))
        monkeypatch.setattr(streams, "_STRIDE", random.choice([1, 10, 100]))
        case = some_case(random)
        expected = model_batches(*case, epochs(case, 5))
        order = Order(*case)
        for index in random.choices(range(len(expected)), k=20):
            assert order.batch(index).tolist() == expected[index], (index, case)


class SmallEngine:
    """Has the face of Minstd, but so few numbers that it refuses many of them."""

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


def test_refused_draws_are_counted_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
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


# --- Far away, and large -------------------------------------------------------------------------


def test_a_batch_far_away_is_there_at_once() -> None:
    far, began = 10**30, time.perf_counter()
    assert Order(7, 4, OrderOptions()).batch(far).tolist() == [(4 * far + i) % 7 for i in range(4)]
    padded = OrderOptions(pad_last_batch=True, num_shards=3, stick_to_shard=True)
    assert Order(7, 4, padded).batch(far).tolist() == [0, 1, 1, 1]
    options = OrderOptions(shuffle_after_epoch=True, checkpointing=True)
    items = list(range(8))
    std_shuffle(items, 64, 524287 + (5 * 10**6 + 1 << 32))
    assert Order(8, 4, options).batch(10**7).tolist() == items[:4]
    assert time.perf_counter() - began < 5


def test_a_batch_far_away_in_a_shuffle() -> None:
    case = 999, 64, OrderOptions(random_shuffle=True, initial_fill=500, num_shards=2, seed=3)
    steady = Order(*case)
    for index in range(20_000):
        expected = steady.batch(index)
    assert Order(*case).batch(20_000 - 1).tolist() == expected.tolist()


def test_a_batch_very_far_away_in_a_shuffle_takes_no_shuffling_on_the_way() -> None:
    order, began = Order(999, 4, OrderOptions(random_shuffle=True)), time.perf_counter()
    far = order.batch(2 * 10**7).tolist()
    order.batch(0)
    assert order.batch(2 * 10**7).tolist() == far
    assert time.perf_counter() - began < 5  # 0.4 s, and 16 s if all the samples were shuffled


def peak_bytes(case: Case, batches: int) -> int:
    """The most memory that there is at once for the first batches."""
    tracemalloc.start()
    try:
        order = Order(*case)
        for index in range(batches):
            order.batch(index)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_of_the_size_of_the_list_and_not_of_the_window() -> None:
    options = OrderOptions(random_shuffle=True, initial_fill=2**31 - 1)
    assert peak_bytes((100, 10, options), 100) < 4_000_000
    assert peak_bytes((300_000, 64, options), 10) < 100 * 300_000


def test_memory_does_not_grow_with_the_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_CHUNK", 16)
    monkeypatch.setattr(streams, "_STRIDE", 16)
    case = 40, 10, OrderOptions(random_shuffle=True)
    assert peak_bytes(case, 40_000) < 1_000_000


# --- The random numbers --------------------------------------------------------------------------


def test_seed_sequences() -> None:
    for seed in (0, 1, 42, -1, 2**32 + 1):
        for size in (2, 4, 6, 7, 38, 39, 67, 68, 622, 623, 1024):
            assert libstdcxx.seed_words(seed, size) == seed_seq(seed, size)


def test_a_state_of_zero_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libstdcxx, "seed_words", lambda seed, count: [0, 0, 0, 2**31 - 1])
    assert libstdcxx.Minstd(1).state == 1


@pytest.mark.parametrize("least", [1, 2**20, 2**30])
def test_draws_that_are_refused_shift_the_others(least: int) -> None:
    bounds = np.random.default_rng(0).integers(least, 2**31 - 2, 10_000)
    numbers, refused = minstd(5), list[int]()
    expected = [scaled(numbers, bound, refused) for bound in bounds.tolist()]
    assert refused
    drawn, skipped = libstdcxx.Minstd(5), libstdcxx.Minstd(5)
    assert drawn.draw(bounds).tolist() == expected
    skipped.skip(len(bounds), int(bounds.max()), bounds.item)
    assert skipped.state == drawn.state
    assert skipped.draw(np.array([2**31 - 3])).tolist() == [scaled(numbers, 2**31 - 3)]


@pytest.mark.parametrize("bound", [1, 2, 3, 1024, 10**6 + 1, 2147483646 // 2, 2147483646 // 3])
def test_draws_next_to_those_that_are_refused(bound: int) -> None:
    limit = 2147483645 // bound * bound
    for output in range(limit - 1, min(limit + 2, 2147483646)):
        engine = libstdcxx.Minstd(0)
        engine.state = (output + 1) * pow(16807, -1, 2**31 - 1) % (2**31 - 1)
        expected = scaled(minstd_after(engine.state), bound)
        assert engine.draw(np.array([bound])).tolist() == [expected]


def twister(bits: int, seed: int) -> libstdcxx.WordSource:
    return libstdcxx.mt19937(seed) if bits == 32 else libstdcxx.Mt19937_64(seed)


@pytest.mark.parametrize("bits", [32, 64])
def test_mersenne_twisters(bits: int) -> None:
    for seed in (0, 5489, 524287, 2**32 - 1):
        engine = twister(bits, seed)
        words = np.concatenate([engine(156), engine(156 * 5)]).tolist()
        assert words == list(islice(mersenne_twister(bits, seed), len(words)))


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("least_bits", [1, 2, 8])
def test_multiplied_draws_that_are_refused_shift_the_others(bits: int, least_bits: int) -> None:
    random, numbers, refused = Random(bits), mersenne_twister(bits, 11), list[int]()
    bounds = [random.randrange(2 ** (bits - least_bits), 2**bits) for _ in range(5000)]
    expected = [multiplied(numbers, bits, bound, refused) for bound in bounds]
    assert refused
    engine = twister(bits, 11)
    assert libstdcxx.draw_below(engine, bits, np.array(bounds, np.uint64)).tolist() == expected


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("bound", [3, 1025, 2**31 - 1, 2**32 - 5])
def test_multiplied_draws_next_to_those_that_are_refused(bits: int, bound: int) -> None:
    limit = 2**bits % bound
    for low in (0, limit - 1, limit, bound - 1, bound):
        words = [low * pow(bound, -1, 2**bits) % 2**bits, 2**bits - 1]
        expected = [multiplied(iter(words), bits, bound)]

        def engine(count: int, words: list[int] = words) -> libstdcxx.Words:
            return np.array(words * count, np.uint64)

        drawn = libstdcxx.draw_below(engine, bits, np.array([bound], np.uint64))
        assert drawn.tolist() == expected


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("head", [4, 20, 4096])
def test_shuffles(bits: int, head: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libstdcxx, "_SHUFFLE_HEAD", head)
    for size in (1, 2, 3, 4, 5, 100, 1001, 6000):
        items = list(range(size))
        std_shuffle(items, bits, size)
        given = np.arange(size)
        assert libstdcxx.shuffled(given, twister(bits, size), bits).tolist() == items
        assert given.tolist() == list(range(size))


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"random_shuffle": True, "initial_fill": 0}, "initial_fill must be .* not 0"),
        ({"random_shuffle": True, "initial_fill": -5}, "initial_fill must be .* not -5"),
        ({"num_shards": 0}, "num_shards must be at least 1, not 0"),
        ({"shard_id": -1}, "shard_id must be from 0 to 0, not -1"),
        ({"num_shards": 2, "shard_id": 2}, "shard_id must be from 0 to 1, not 2"),
        (
            {"shuffle_after_epoch": True, "random_shuffle": True},
            "epoch and random_shuffle cannot",
        ),
        (
            {"shuffle_after_epoch": True, "stick_to_shard": True},
            "epoch and stick_to_shard cannot",
        ),
    ],
)
def test_options_that_are_refused(arguments: dict[str, Any], message: str) -> None:
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
