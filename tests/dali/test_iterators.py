"""The iterators of nvidia.dali.plugin.pytorch, over our reader and over the real one."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIClassificationIterator, DALIGenericIterator

from dali_storage import readers
from tests.kit.process import threads
from tests.kit.trees import Tree

pytestmark = pytest.mark.usefixtures("pipelines_end")

SIZE = 23
POLICIES = [LastBatchPolicy.FILL, LastBatchPolicy.DROP, LastBatchPolicy.PARTIAL]


def pipelines(
    file: Callable[..., Any], root: str, shards: int, batch_size: int, **order: Any
) -> list[Pipeline]:
    """One pipeline per shard; samples differ in their bytes and labels."""
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


@pytest.fixture
def files(tree: Tree) -> Path:
    """40 files in one class, ten batches."""
    return tree(40, classes=1, sizes=(3, 5, 9))


@contextmanager
def missing(files: Path, batch: int) -> Iterator[str]:
    """A file of `batch` is not there for a while."""
    file = files / "class0" / f"{4 * batch + 2:04d}.jpg"
    file.rename(files / "away")
    yield str(file)
    (files / "away").rename(file)


def data_of(outputs: Any) -> list[Any]:
    return [output["data"].tolist() for output in outputs]


def real_batches(files: Path, shards: int = 1) -> list[Any]:
    made = pipelines(fn.readers.file, str(files), shards, 4)
    return [data_of(out) for out in DALIGenericIterator(made, ["data", "label"], reader_name="R")]


@pytest.mark.parametrize("exec_dynamic", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("bad", [0, 1, 3, 9])
@pytest.mark.parametrize("kind", [DALIGenericIterator, DALIClassificationIterator])
def test_a_failed_read_costs_no_batch(
    files: Path, kind: Any, depth: int, exec_dynamic: bool, bad: int
) -> None:
    """The batches before it are delivered, then its error is raised until it can be read."""
    options = {"prefetch_queue_depth": depth, "exec_dynamic": exec_dynamic}
    made = pipelines(readers.file, str(files), 1, 4, pipeline=options)
    outputs = [] if kind is DALIClassificationIterator else [["data", "label"]]
    iterator: Any = None
    seen = []
    with missing(files, bad) as name:
        with pytest.raises(FileNotFoundError) as caught:
            iterator = kind(made, *outputs, reader_name="R")  # takes the first batch at once
            for out in iterator:
                seen.append(data_of(out))
        assert caught.value.filename == name
        assert seen == real_batches(files)[:bad]
        for _ in range(2 if iterator else 0):
            with pytest.raises(FileNotFoundError):
                next(iterator)
    iterator = iterator or kind(made, *outputs, reader_name="R")
    assert seen + [data_of(out) for out in iterator] == real_batches(files)
    assert made[0]._batches_to_consume == depth  # it reads ahead as before


@pytest.mark.parametrize("depth", [1, 3])
def test_a_failed_read_costs_no_batch_of_another_pipeline(files: Path, depth: int) -> None:
    """Neither under this iterator nor under one that its checkpoints restore."""

    def make(checkpoints: list[dict[str, Any]]) -> list[Pipeline]:
        options = {"prefetch_queue_depth": depth, "enable_checkpointing": True}
        return [
            pipelines(readers.file, str(files), 2, 4, pipeline=options | checkpoint)[shard]
            for shard, checkpoint in enumerate(checkpoints)
        ]

    made = make([{}, {}])
    seen = []
    with missing(files, 8), pytest.raises(FileNotFoundError):  # batch 3 of the second shard
        iterator = DALIGenericIterator(made, ["data", "label"], reader_name="R")
        for out in iterator:
            seen.append(data_of(out))
    expected = real_batches(files, shards=2)
    assert seen == expected[:3]
    made = make([{"checkpoint": checkpoint} for checkpoint in iterator.checkpoints()])
    for each in (DALIGenericIterator(made, ["data", "label"], reader_name="R"), iterator):
        assert seen + [data_of(out) for out in each] == expected


@pytest.mark.parametrize("exec_dynamic", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
@pytest.mark.parametrize("bad", [0, 1, 2])
@pytest.mark.parametrize("auto_reset", [False, True])
def test_an_epoch_ends_although_a_read_of_the_next_has_failed(
    tree: Tree, depth: int, exec_dynamic: bool, bad: int, auto_reset: bool
) -> None:
    files = tree(60, classes=1, sizes=(3, 5, 9))
    options = {"prefetch_queue_depth": depth, "exec_dynamic": exec_dynamic}
    made = pipelines(readers.file, str(files), 1, 4, pipeline=options)
    iterator = DALIGenericIterator(made, ["data", "label"], reader_name="R", auto_reset=auto_reset)
    expected = real_batches(files)
    seen = [data_of(next(iterator)) for _ in range(4)]
    with missing(files, bad):
        seen += [data_of(out) for out in iterator]
        assert seen == expected
        if not auto_reset:
            iterator.reset()
        seen = []
        with pytest.raises(FileNotFoundError):
            for out in iterator:
                seen.append(data_of(out))
        assert seen == expected[:bad]
    assert seen + [data_of(out) for out in iterator] == expected


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_pipeline_that_is_reset_after_a_failed_read_goes_on(files: Path, depth: int) -> None:
    made = pipelines(readers.file, str(files), 1, 4, pipeline={"prefetch_queue_depth": depth})
    seen = []
    with missing(files, 5):
        iterator = DALIGenericIterator(made, ["data", "label"], reader_name="R")
        for _ in range(2):
            with pytest.raises(FileNotFoundError):
                for out in iterator:
                    seen.append(data_of(out))
            made[0].reset()
    assert seen + [data_of(out) for out in iterator] == real_batches(files)
    assert made[0]._batches_to_consume == depth


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_checkpoint_goes_on_with_the_batch_that_failed(files: Path, depth: int) -> None:
    def make(**options: Any) -> list[Pipeline]:
        options |= {"enable_checkpointing": True, "prefetch_queue_depth": depth}
        return pipelines(readers.file, str(files), 1, 4, pipeline=options)

    made = make()
    seen = []
    with missing(files, 5), pytest.raises(FileNotFoundError):
        iterator = DALIGenericIterator(made, ["data", "label"], reader_name="R")
        for out in iterator:
            seen.append(data_of(out))
    (checkpoint,) = iterator.checkpoints()
    rest = DALIGenericIterator(make(checkpoint=checkpoint), ["data", "label"], reader_name="R")
    assert seen + [data_of(out) for out in rest] == real_batches(files)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_scheduled_runs_go_on_after_a_failed_read(files: Path, depth: int) -> None:
    (pipeline,) = pipelines(
        readers.file, str(files), 1, 4, pipeline={"prefetch_queue_depth": depth}
    )
    seen = []

    def run(batches: int) -> None:
        for _ in range(batches):
            pipeline.schedule_run()
            data, _ = pipeline.share_outputs()
            seen.append(data.as_array().tolist())
            pipeline.release_outputs()

    with missing(files, 5), pytest.raises(FileNotFoundError):
        run(10)
    run(10 - len(seen))
    assert [[batch] for batch in seen] == real_batches(files)


@pytest.mark.parametrize("iterated", [False, True])
def test_a_failed_read_beside_another_source_ends_the_pipeline(files: Path, iterated: bool) -> None:
    """DALI has dropped the other source's batch, so later ones would be paired wrongly."""
    pipeline = Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipeline:
        data, _ = readers.file(file_root=str(files), name="R")
        pipeline.set_outputs(fn.pad(data), fn.external_source(four_times, batch=True))
    with missing(files, 5), pytest.raises(FileNotFoundError):
        run: Callable[[], Any] = pipeline.run
        if iterated:
            run = DALIGenericIterator([pipeline], ["data", "number"], reader_name="R").__next__
        for _ in range(10):
            run()
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"'R'.*another source.*checkpoint") as caught:
            run()
        assert str(caught.value).count("a read failed (FileNotFoundError") == 1
        assert "RuntimeError" not in str(caught.value)


def four_times(number: int) -> list[np.ndarray]:
    return [np.array([number])] * 4


@pytest.mark.parametrize("delivered", [3, 5])
def test_a_pipeline_dropped_after_a_failed_read_is_closed_at_once(
    files: Path, delivered: int
) -> None:
    """Before its error is raised and after."""
    made = pipelines(readers.file, str(files), 1, 4, pipeline={"prefetch_queue_depth": 3})
    gc.collect()
    gc.disable()
    try:
        before = threads()
        with missing(files, 5):
            iterator = DALIGenericIterator(made, ["data", "label"], reader_name="R")
            for _ in range(delivered):
                next(iterator)
            if delivered == 5:
                with pytest.raises(FileNotFoundError):
                    next(iterator)
        del iterator, made
        assert threads() <= before
    finally:
        gc.enable()
