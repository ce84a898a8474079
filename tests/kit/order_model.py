"""Random orders, and libstdc++'s distributions and shuffle, one number at a time.

Those are written from the C++ code, without the code under test.
"""

from collections.abc import Iterator, Sequence
from random import Random

import numpy as np

from dali_storage.contract._types import IntArray
from dali_storage.order import Order, OrderOptions


def minstd_after(state: int) -> Iterator[int]:
    while True:
        state = state * 16807 % (2**31 - 1)
        yield state


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


def std_shuffle(items: list[int], bits: int, numbers: Iterator[int]) -> None:
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


def batches(case: Case, number: int) -> list[list[int]]:
    """Those of a new order."""
    order = Order(*case)
    return [order.batch(index).tolist() for index in range(number)]
