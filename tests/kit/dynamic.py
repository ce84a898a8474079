"""Readers of DALI's dynamic mode: ours beside those of ndd.readers, which are the oracle."""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import nvidia.dali.experimental.dynamic as ndd

from dali_storage.dynamic.readers import File

Sample: TypeAlias = tuple[bytes, int]

ORDERS: list[dict[str, Any]] = [
    {},
    {"random_shuffle": True},
    {"random_shuffle": True, "initial_fill": 5, "seed": 7},
    {"shuffle_after_epoch": True},
    {"shuffle_after_epoch": True, "shuffle_after_epoch_seed": 3, "enable_checkpointing": True},
    {"num_shards": 3, "shard_id": 1},
    {"num_shards": 3, "shard_id": 2, "pad_last_batch": True},
    {"num_shards": 3, "shuffle_after_epoch": True},
    {"num_shards": 4, "stick_to_shard": True, "random_shuffle": True, "seed": 5},
    {"prefetch_queue_depth": 4, "pad_last_batch": True},
]


def sample(data: Any, label: Any) -> Sample:
    assert (data.dtype, label.dtype) == (ndd.uint8, ndd.int32)
    assert (data.layout, label.shape) == (None, (1,))
    return np.asarray(data).tobytes(), int(np.asarray(label)[0])


def contents(outputs: tuple[Any, Any]) -> Sample | list[Sample]:
    """A sample or a batch."""
    data, labels = outputs
    if isinstance(data, ndd.Tensor):
        return sample(data, labels)
    return [sample(*pair) for pair in zip(data.tensors, labels.tensors, strict=True)]


def tensors(outputs: Any) -> Any:
    """Type, shape, bytes and layout of each tensor of a batch or sample, in its order."""
    if isinstance(outputs, dict):
        return {name: tensors(output) for name, output in outputs.items()}
    if isinstance(outputs, (tuple, ndd.Batch)):
        return [*map(tensors, outputs if isinstance(outputs, tuple) else outputs.tensors)]
    array = np.asarray(outputs)
    return str(array.dtype), array.shape, array.tobytes(), outputs.layout


def outcome(action: Callable[[], Any]) -> Any:
    """What an action returns, or the type of the error that it raises, with its text."""
    try:
        return action()
    except Exception as error:
        return type(error), str(error)


def real_reader(**arguments: Any) -> Any:
    return ndd.readers.File(dont_use_mmap=True, **arguments)


def both(play: Callable[[Any], Any], only_ours: dict[str, Any] | None = None, **given: Any) -> None:
    """Have `play` do the same with a reader of ours and with the real one."""
    with File(dont_use_mmap=True, **given | (only_ours or {})) as ours:
        assert play(ours) == play(real_reader(**given))


def epochs(
    batch_size: int | None, number: int = 4, **options: Any
) -> Callable[[Any], list[list[Any]]]:
    def play(reader: Any) -> list[list[Any]]:
        every = [
            [contents(outputs) for outputs in reader.next_epoch(batch_size, **options)]
            for _ in range(number)
        ]
        assert all(every)
        return every

    return play


def batches(reader: Any) -> Iterator[Any]:
    while True:
        for outputs in reader.next_epoch():
            yield contents(outputs)
