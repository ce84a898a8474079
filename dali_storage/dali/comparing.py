"""Comparison of the batches of two readers: DALI's and ours."""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from nvidia.dali import Pipeline
from nvidia.dali.data_node import DataNode

from .compat import has

Read: TypeAlias = Callable[..., Sequence[Any]]
"""A reader with its data set: a function from arguments of the order to nodes: data, label, ..."""

Row: TypeAlias = tuple[int, int]
"""A sample: its label, and the CRC-32 of its bytes."""

Guard: TypeAlias = Callable[[], AbstractContextManager[object]]
"""A factory of contexts for running a reader; a context may convert errors."""

_THIRDS: dict[str, Any] = {"num_shards": 3}

VARIANTS: dict[str, dict[str, Any]] = {
    "list order": _THIRDS | {"shard_id": 1},
    "stick_to_shard, pad_last_batch": _THIRDS | {"stick_to_shard": True, "pad_last_batch": True},
    "random_shuffle": {"random_shuffle": True},  # by a seed of the pipeline
    "random_shuffle, seed, initial_fill": _THIRDS
    | {"random_shuffle": True, "seed": 7, "initial_fill": 4, "shard_id": 1},
    "shuffle_after_epoch": {"shuffle_after_epoch": True},
}
"""Arguments of the order. Together they expose a reader that ignores any argument."""

if has((2, 1)):
    VARIANTS["shuffle_after_epoch_seed"] = _THIRDS | {
        "shuffle_after_epoch": True,
        "shuffle_after_epoch_seed": 5,
        "shard_id": 2,
    }


class Pair(NamedTuple):
    """A batch of both readers.

    Attributes:
        restored: our batch is from the pipeline restored from a checkpoint.
        batch: its number, from 0.
        got: our samples.
        wanted: DALI's.
    """

    restored: bool
    batch: int
    got: list[Row]
    wanted: list[Row]


def pipeline_of(
    read: Read,
    order: Mapping[str, Any],
    *,
    batch_size: int,
    checkpoint: Any = None,
) -> Pipeline:
    """A built pipeline of a reader's outputs, with a seed."""
    pipeline = Pipeline(
        batch_size=batch_size,
        num_threads=1,
        device_id=None,
        seed=1,
        enable_checkpointing=True,
        checkpoint=checkpoint,
    )
    with pipeline:
        found = read(**order)
        pipeline.set_outputs(*([found] if isinstance(found, DataNode) else found))
    pipeline.build()
    return pipeline


def rows(data: Any, labels: Any) -> list[Row]:
    """The samples of a batch, from the outputs of a pipeline."""
    numbers = np.asarray(labels.as_tensor()).ravel().tolist()
    return [(label, zlib.crc32(content(data, slot))) for slot, label in enumerate(numbers)]


def sums(*outputs: Any) -> list[Row]:
    """As `rows()`, of any outputs; the number of bytes, and the CRC-32 of types, shapes and all."""
    samples = zip(*([np.asarray(each) for each in it] for it in outputs), strict=True)
    parts = [(repr([(it.dtype.str, it.shape) for it in each]), each) for each in samples]
    whole = [b"".join([head.encode(), *(it.tobytes() for it in each)]) for head, each in parts]
    return [(len(it), zlib.crc32(it)) for it in whole]


def content(data: Any, slot: int) -> memoryview:
    """The bytes of a sample of an output in host memory, valid until the next run."""
    return np.asarray(data[slot]).data


def pairs(
    ours: Pipeline,
    theirs: Pipeline,
    restored: Callable[..., Pipeline],
    *,
    batches: int,
    cut: int,
    guards: tuple[Guard, Guard] = (nullcontext, nullcontext),
    rows: Callable[..., list[Row]] = rows,
) -> Iterator[Pair]:
    """The first batches of two new pipelines, and the batches after `cut` a second time.

    Our pipeline is saved at `cut`, and `restored` makes another one from this `checkpoint`.
    `guards`: for our reader, and for DALI's. `rows`: of the outputs of a batch.
    """
    our_guard, their_guard = guards
    again: Pipeline | None = None
    for batch in range(batches):
        with their_guard():
            wanted = rows(*theirs.run())
        with our_guard():
            got = rows(*ours.run())
        yield Pair(False, batch, got, wanted)
        if again is not None:
            with our_guard():
                got = rows(*again.run())
            yield Pair(True, batch, got, wanted)
        elif batch + 1 == cut:
            with our_guard():
                again = restored(checkpoint=ours.checkpoint())
