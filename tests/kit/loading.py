"""Cheap pipelines for tests of Loader, and what the reader of DALI delivers in their place."""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn, pipeline_def

from dali_storage import readers

SHUFFLES: dict[str, dict[str, Any]] = {
    "list": {},
    "sticky": {"stick_to_shard": True},
    "window": {"random_shuffle": True, "initial_fill": 7, "seed": 5},
    "epoch": {"shuffle_after_epoch": True},
}
"""Arguments of readers that determine the order."""

FILE = Path(__file__)  # what all samples contain


MEMORY: Callable[..., Any] = functools.partial(readers.file, backend="memory")


@dataclass(frozen=True, kw_only=True)
class Make:
    """A pipeline of (label, random number); the label of a sample is its place in the list.

    `file` is the reader: ours, or the one of DALI.
    """

    samples: int = 22
    batch_size: int = 4
    depth: int = 2
    order: dict[str, Any] = field(default_factory=dict)
    file: Callable[..., Any] = MEMORY
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *, checkpoint: bytes | None, shard_id: int, num_shards: int) -> Pipeline:
        @pipeline_def
        def define() -> Any:
            labels = self.read(shard_id, num_shards)
            return labels, fn.random.uniform(range=(0.0, 1.0), seed=9 + shard_id)

        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "num_threads": 1,
            "device_id": None,
            "prefetch_queue_depth": self.depth,
            "enable_checkpointing": True,
            "checkpoint": checkpoint,
        }
        return define(**options | self.options)

    def read(self, shard_id: int, num_shards: int) -> Any:
        """Put the reader into the current pipeline; returns the labels."""
        _, labels = self.file(
            name="Reader",
            files=[str(FILE)] * self.samples,
            labels=list(range(self.samples)),
            shard_id=shard_id,
            num_shards=num_shards,
            **{"pad_last_batch": True} | self.order,
        )
        return labels


def two_readers(one: Make, second: Callable[..., Any] = MEMORY, **others: Any) -> Any:
    """Makes pipelines of the labels of a reader and of a second one, with other arguments."""

    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_checkpointing=True)
    def make(shard_id: int, num_shards: int) -> Any:
        masks = replace(one, file=lambda **given: second(**given | {"name": "Masks"} | others))
        return one.read(shard_id, num_shards), masks.read(shard_id, num_shards)

    return make


def numbers(batch: Iterable[Any]) -> tuple[list[Any], ...]:
    """The values of a batch, flat."""
    return tuple(np.asarray(tensor).ravel().tolist() for tensor in batch)


def labels(batches: Iterable[Any]) -> list[list[int]]:
    """The labels of some batches."""
    return [numbers(batch)[0] for batch in batches]


def drain(loader: Any) -> int:
    """Take all batches that a Loader's pipeline has under way; returns how many there were."""
    queued = 0
    while not loader.pipeline.empty():
        loader.pipeline.share_outputs()
        loader.pipeline.release_outputs()
        queued += 1
    return queued


def place(state: dict[str, Any]) -> tuple[int, int]:
    """Where a state of a Loader is: the epoch, and how many batches of it every rank was given."""
    reader = state["readers"]["Reader"]
    return reader["epoch"], -(-reader["given"] // (state["world"] * state["batch_size"]))


def stream(
    make: Make, rank: int = 0, world: int = 1, output: int = 0
) -> Callable[[int], list[list[int]]]:
    """Returns what gives the labels of an epoch, padding included, as DALI's own reader orders.

    Output 1 are the random numbers.
    """
    real = Make(
        samples=make.samples, batch_size=make.batch_size, order=make.order, file=fn.readers.file
    )
    pipeline = real(checkpoint=None, shard_id=rank, num_shards=world)
    rounds = math.ceil(math.ceil(make.samples / world) / make.batch_size)
    known: list[list[list[int]]] = []

    def epoch(number: int) -> list[list[int]]:
        while len(known) <= number:
            known.append(
                [
                    np.array(pipeline.run()[output].as_tensor()).ravel().tolist()
                    for _ in range(rounds)
                ]
            )
        return known[number]

    return epoch


def shard_size(make: Make, rank: int, world: int, epoch: int) -> int:
    """Documentation of DALI, "Sharding": where a shard begins, and which one an epoch reads."""
    moves = not make.order.get("stick_to_shard") and not make.order.get("shuffle_after_epoch")
    shard = (rank + epoch * moves) % world
    return make.samples * (shard + 1) // world - make.samples * shard // world


def given(
    make: Make, epoch: list[list[int]], number: int, last_batch: str, rank: int = 0, world: int = 1
) -> list[list[int]]:
    """What of an epoch of `stream()` a Loader gives."""
    if last_batch == "pad":
        return epoch
    if last_batch == "drop":
        return epoch[: make.samples // world // make.batch_size]
    flat = list(chain(*epoch))[: shard_size(make, rank, world, number)]
    return [flat[at : at + make.batch_size] for at in range(0, len(flat), make.batch_size)]
