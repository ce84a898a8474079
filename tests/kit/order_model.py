"""A slow model of DALI's loader and of libstdc++'s random numbers, one number at a time.

Written from the C++ code and the C++ standard, without the code under test.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, count
from random import Random

import numpy as np

from dali_storage.contract._types import IntArray
from dali_storage.order import Order, OrderOptions


def seed_seq(seed: int, size: int) -> list[int]:
    """[rand.util.seedseq] of the C++ standard, for one word."""
    given, words, mask = [seed % 2**32], [0x8B8B8B8B] * size, 2**32 - 1
    lags = ((623, 11), (68, 7), (39, 5), (7, 3), (0, (size - 1) // 2))
    t = next(lag for least, lag in lags if size >= least)
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
    """DALI's Loader and FileLabelLoader, statement by statement; gives one sample after another.

    With `containers`, how many samples each has, the loaders of containers.
    """

    def __init__(self, size: int, options: OrderOptions, containers: Sequence[int] = ()) -> None:
        self.size, self.options = size, options
        ends = list(accumulate(containers))
        self.containers = [
            list(range(end - count, end)) for end, count in zip(ends, containers, strict=True)
        ]
        self.stick = options.stick_to_shard or options.shuffle_after_epoch
        self.items, self.epoch, numbers = list(range(size)), 0, minstd(options.seed)
        self.draw: Callable[[int], int] = lambda bound: scaled(numbers, bound)
        if options.random_shuffle and not options.by_container:
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
        if not self.options.shuffle_after_epoch:
            return
        given = self.options.shuffle_after_epoch_seed
        seed = (524287 if given is None else given) + (self.epoch << 32)
        if self.options.by_container:
            order = list(range(len(self.containers)))
            std_shuffle(order, 64, seed)
            self.items = [sample for number in order for sample in self.containers[number]]
            return
        if self.options.checkpointing:
            self.items = list(range(self.size))
        std_shuffle(self.items, 64, seed)

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


# --- Random cases --------------------------------------------------------------------------------

Case = tuple[int, int, OrderOptions, IntArray | None]
"""The arguments of an `Order`: size, batch size, options, and the sizes of containers."""


def some_counts(random: Random, least: int = 0) -> list[int]:
    """How many samples each container has."""
    containers, most = random.randint(1, 8), random.choice([1, 3, 12])
    counts = [least + random.randrange(most) for _ in range(containers)]
    return counts if sum(counts) else [1]


def some_case(random: Random, counts: Sequence[int] | None = None) -> Case:
    """An order of files or, with `counts`, of containers."""
    size = random.choice([random.randint(1, 9), random.randint(1, 70)])
    size = size if counts is None else sum(counts)
    num_shards = random.choice([1, 1, random.randint(1, size)])
    window, after_epoch = random.choice(
        [(False, False), (True, False), (True, False), (False, True)]
    )
    if counts is not None:  # here they may come together
        window, after_epoch = random.random() < 0.6, random.random() < 0.5
    options = OrderOptions(
        by_container=counts is not None,
        random_shuffle=window,
        initial_fill=random.choice([1, 2, random.randint(1, 80), 1024]),
        seed=random.choice([-1, 0, 7, 2**31 - 1, 2**32 + 5, -(2**40), random.randrange(2**62)]),
        shuffle_after_epoch=after_epoch,
        shuffle_after_epoch_seed=random.choice([None, 0, -3, 2**33 + 1, random.randrange(2**62)]),
        num_shards=num_shards,
        shard_id=random.randrange(num_shards),
        stick_to_shard=not after_epoch and random.random() < 0.5,
        pad_last_batch=random.random() < 0.5,
        checkpointing=random.random() < 0.5,
    )
    batch_size = random.choice([1, random.randint(1, 8), random.randint(1, 100)])
    return size, batch_size, options, None if counts is None else np.array(counts)


def case_of(random: Random, containers: bool) -> Case:
    return some_case(random, some_counts(random) if containers else None)


def epochs(case: Case, number: int = 3) -> int:
    """The number of batches in `number` epochs, plus two."""
    size, batch_size, options, _ = case
    return number * -(-size // options.num_shards // batch_size) + 2


def batches(case: Case, number: int, first: int = 0) -> list[list[int]]:
    """Those of a new order, from `first` on."""
    order = Order(*case)
    return [order.batch(index).tolist() for index in range(first, number)]


def model_batches(case: Case, number: int) -> list[list[int]]:
    size, batch_size, options, counts = case
    model = Model(size, options, [] if counts is None else counts.tolist())
    return [[model.sample(i == 0) for i in range(batch_size)] for _ in range(number)]
