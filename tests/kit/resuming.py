"""Pipelines of all ranks whose samples are their places in the list, and states of them."""

import json
import math
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any

from nvidia.dali import Pipeline, fn

from dali_storage import readers
from tests.kit.loading import FILE
from tests.kit.parity import Operator, build, numbers

SIZE = 37
ORDERS: dict[str, dict[str, Any]] = {
    "list": {},
    "window": {"random_shuffle": True, "initial_fill": 7, "seed": 5},
    "sticky": {"random_shuffle": True, "seed": 5, "stick_to_shard": True},
    "epoch": {"shuffle_after_epoch": True},
    "checkpointing": {"shuffle_after_epoch": True, "options": {"enable_checkpointing": True}},
}
WINDOW, EPOCH = ORDERS["window"], ORDERS["epoch"]
State = dict[str, Any]


def files(size: int = SIZE, file: Operator = readers.file, **arguments: Any) -> Operator:
    """A readers.file of so many samples."""
    arguments = arguments or {"backend": "memory"}
    return partial(file, files=[str(FILE)] * size, labels=[*range(size)], **arguments)


OURS, REAL = files(), files(file=fn.readers.file, dont_use_mmap=True)


def pipeline(
    rank: int,
    world: int,
    batch_size: int,
    resume: State | None = None,
    *,
    read: Operator = OURS,
    options: dict[str, Any] | None = None,
    **order: Any,
) -> Pipeline:
    """A pipeline with the reader "R" of a rank."""
    order |= {} if resume is None else {"resume": resume}
    shard = {"shard_id": rank, "num_shards": world, "pad_last_batch": True, "name": "R"}

    def number(**arguments: Any) -> Any:
        found = read(**arguments)
        return found[1] if isinstance(found, (list, tuple)) else found

    return build(number, batch_size, options or {}, **shard | order)  # type: ignore[no-any-return]


def ranks(world: int, *arguments: Any, **options: Any) -> list[Pipeline]:
    return [pipeline(rank, world, *arguments, **options) for rank in range(world)]


def begun(batches: int = 2, world: int = 2, **options: Any) -> State:
    """The state of ranks with batches of 4."""
    made = ranks(world, 4, **options)
    for each in made:
        numbers(each, batches)
    return saved(made)


def saved(pipelines: Iterable[Pipeline]) -> State:
    """The state, the same on all ranks, after a way through JSON."""
    one, *others = [json.dumps(readers.state(each, "R")) for each in pipelines]
    assert set(others) <= {one}
    assert len(one) < 400
    state: State = json.loads(one)
    return state


def rounds(size: int, world: int, batch_size: int) -> int:
    """Batches of an epoch; documentation of DALI, "Sharding"."""
    return math.ceil(math.ceil(size / world) / batch_size)


def valid(batches: list[list[int]], share: int) -> list[int]:
    """The samples of a rank, less padding, which repeats the last sample."""
    flat = list(chain(*batches))
    assert not share or set(flat[share:]) <= {flat[share - 1]}
    return flat[:share]


def shares(left: int, world: int) -> list[int]:
    return [len(range(rank, left, world)) for rank in range(world)]
