"""The iterators of nvidia.dali.plugin.pytorch, over our reader and over the real one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from nvidia.dali import Pipeline, fn
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, DALIGenericIterator

from dali_storage import readers

from .conftest import Tree

pytestmark = pytest.mark.usefixtures("pipelines_end")

SIZE = 23
POLICIES = [LastBatchPolicy.FILL, LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL]


def pipelines(
    file: Callable[..., Any], root: str, shards: int, batch_size: int, **order: Any
) -> list[Pipeline]:
    """One pipeline a shard; a sample is told by its bytes and its label."""
    arguments = order.pop("pipeline", {})
    made = []
    for shard in range(shards):
        pipeline = Pipeline(batch_size=batch_size, num_threads=1, device_id=None, **arguments)
        with pipeline:
            data, labels = file(
                file_root=root, name="R", num_shards=shards, shard_id=shard, **order
            )
            pipeline.set_outputs(fn.pad(data, fill_value=0), labels)
        made.append(pipeline)
    return made


def epochs(iterator: Any, count: int) -> list[Any]:
    """What each batch of `count` epochs holds, and the length that the iterator says it has."""
    seen = []
    for _ in range(count):
        seen.append(len(iterator))
        for outputs in iterator:
            seen.append([(o["data"].tolist(), o["label"].tolist()) for o in outputs])
        if not iterator._auto_reset:
            iterator.reset()
    return seen


@pytest.fixture
def root(tree: Tree) -> str:
    return str(tree(SIZE, sizes=(3, 5, 9)))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("auto_reset", [False, True])
@pytest.mark.parametrize(
    "order",
    [
        {},
        {"pad_last_batch": True},
        {"stick_to_shard": True},
        {"random_shuffle": True, "seed": 3, "initial_fill": 6},
        {"shuffle_after_epoch": True},
    ],
    ids=str,
)
def test_batches_and_lengths_are_those_of_the_real_reader(
    root: str, policy: LastBatchPolicy, shards: int, auto_reset: bool, order: dict[str, Any]
) -> None:
    def run(file: Callable[..., Any]) -> list[Any]:
        iterator = DALIGenericIterator(
            pipelines(file, root, shards, 4, **order),
            ["data", "label"],
            reader_name="R",
            last_batch_policy=policy,
            auto_reset=auto_reset,
        )
        return epochs(iterator, 4)

    assert run(readers.file) == run(fn.readers.file)


def test_the_classification_iterator(root: str) -> None:
    def run(file: Callable[..., Any]) -> list[Any]:
        made = pipelines(file, root, 1, 4, pad_last_batch=True)
        iterator = DALIClassificationIterator(made, reader_name="R", auto_reset=True)
        return epochs(iterator, 3)

    assert run(readers.file) == run(fn.readers.file)


@pytest.mark.parametrize("cut", [0, 2, 7, 13])
@pytest.mark.parametrize("policy", POLICIES, ids=str)
@pytest.mark.parametrize(
    "order",
    [{}, {"random_shuffle": True, "seed": 3, "initial_fill": 6}, {"shuffle_after_epoch": True}],
    ids=str,
)
def test_an_iterators_checkpoint_restores_the_stream(
    root: str, order: dict[str, Any], policy: LastBatchPolicy, cut: int
) -> None:
    def make(file: Callable[..., Any], **pipeline: Any) -> Any:
        options = {"enable_checkpointing": True} | pipeline
        return DALIGenericIterator(
            pipelines(file, root, 1, 4, **order, pipeline=options),
            ["data", "label"],
            reader_name="R",
            last_batch_policy=policy,
            auto_reset=True,
        )

    def batches(iterator: Any, count: int) -> list[Any]:
        endless = itertools.chain.from_iterable(iterator for _ in itertools.count())
        return [outputs[0]["data"].tolist() for outputs in itertools.islice(endless, count)]

    def run(file: Callable[..., Any]) -> list[Any]:
        first = make(file)
        seen = batches(first, cut)
        (checkpoint,) = first.checkpoints()
        return [seen, batches(make(file, checkpoint=checkpoint), 14)]

    assert run(readers.file) == run(fn.readers.file)
