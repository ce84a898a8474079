"""The order of samples in containers; the oracles are DALI's readers and a model of a loader."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, tfrecord, types

from dali_storage.order import Order, OrderOptions, reader_meta, streams
from dali_storage.order.libstdcxx import shuffled
from tests.kit.containers import (
    write_numbered_recordios,
    write_numbered_tars,
    write_numbered_tfrecords,
)
from tests.kit.order_model import model_batches, std_shuffle
from tests.order.test_order import dali_batches, epochs, some_case

Case = tuple[list[int], int, OrderOptions]
"""How many samples each container has, the batch size, the options."""


def some_counts(random: Random, least: int) -> list[int]:
    containers, most = random.randint(1, 8), random.choice([1, 3, 12])
    counts = [least + random.randrange(most) for _ in range(containers)]
    return counts if sum(counts) else [1]


def some_options(random: Random, counts: list[int]) -> tuple[int, OrderOptions]:
    """A batch size and options; shuffle_after_epoch and random_shuffle may come together."""
    _, batch_size, options = some_case(random)
    num_shards = random.choice([1, 1, random.randint(1, sum(counts))])
    after_epoch = random.random() < 0.5
    return batch_size, replace(
        options,
        by_container=True,
        random_shuffle=random.random() < 0.6,
        num_shards=num_shards,
        shard_id=random.randrange(num_shards),
        stick_to_shard=not after_epoch and options.stick_to_shard,
        shuffle_after_epoch=after_epoch,
    )


def some_containers(random: Random, least: int = 0) -> Case:
    counts = some_counts(random, least)
    return counts, *some_options(random, counts)


def batch_count(case: Case, number: int = 3) -> int:
    counts, batch_size, options = case
    return epochs((sum(counts), batch_size, options), number)


def order_of(case: Case) -> Order:
    counts, batch_size, options = case
    return Order(sum(counts), batch_size, options, np.array(counts))


def batches(case: Case, number: int) -> list[list[int]]:
    order = order_of(case)
    return [order.batch(index).tolist() for index in range(number)]


def dali_pipeline(kind: str, paths: Any, case: Case, checkpoint: Any = None) -> Pipeline:
    """A pipeline of which each sample is its own number."""
    _, batch_size, options = case
    arguments = {key: value for key, value in asdict(options).items() if value is not None}
    del arguments["by_container"]
    checkpointing = arguments.pop("checkpointing") or checkpoint is not None
    if not options.shuffle_after_epoch:
        arguments.pop("shuffle_after_epoch_seed", None)  # DALI warns
    files, indexes = paths
    pipeline = Pipeline(
        batch_size,
        num_threads=1,
        device_id=None,
        enable_checkpointing=checkpointing,
        checkpoint=checkpoint,
        prefetch_queue_depth=1,
    )
    arguments |= {"name": "r", "dont_use_mmap": True}
    with pipeline:
        if kind == "webdataset":
            numbers = fn.readers.webdataset(
                paths=files, index_paths=indexes, ext=["n"], dtypes=types.INT64, **arguments
            )
        elif kind == "tfrecord":
            features = {"n": tfrecord.FixedLenFeature([1], tfrecord.int64, 0)}
            numbers = fn.readers.tfrecord(
                path=files, index_path=indexes, features=features, **arguments
            )["n"]
        else:
            _, numbers = fn.readers.mxnet(path=files, index_path=indexes, **arguments)
        pipeline.set_outputs(numbers)
    return pipeline


@pytest.fixture(params=["webdataset", "tfrecord", "mxnet"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


def write(kind: str, directory: Path, counts: list[int]) -> Any:
    directory.mkdir()
    writers = {
        "webdataset": write_numbered_tars,
        "tfrecord": write_numbered_tfrecords,
        "mxnet": write_numbered_recordios,
    }
    return writers[kind](directory, counts)


# An index of a tar needs a sample. MXNet's reader counts a last file of one record to the file
# before it, and does not see files without records.
LEAST = {"webdataset": 1, "tfrecord": 0, "mxnet": 2}


def test_samples_are_in_the_order_of_dali(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CHUNK", 64)  # few samples: a chunk would be many epochs
    random = Random(f"order of {kind}")
    for number in range(20):
        counts = some_counts(random, LEAST[kind])
        paths = write(kind, tmp_path / str(number), counts)
        for _ in range(10):
            case = counts, *some_options(random, counts)
            pipeline = dali_pipeline(kind, paths, case)
            number_of = batch_count(case)
            # Before the first batch: DALI's readers of containers count their samples without a
            # lock, and between two epochs the thread that reads ahead fills the list anew.
            assert reader_meta(sum(counts), case[2]) == pipeline.reader_meta("r"), case
            assert batches(case, number_of) == dali_batches(pipeline, number_of), case


def test_a_restored_pipeline_goes_on_in_the_order_of_dali(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_CHUNK", 64)
    random = Random(f"restored {kind}")
    counts = [3, 2, 7, 4]
    paths = write(kind, tmp_path / "containers", counts)
    for _ in range(15):
        batch_size, options = some_options(random, counts)
        case = counts, batch_size, replace(options, checkpointing=True)
        number = batch_count(case)
        done = random.randrange(number)
        first = dali_pipeline(kind, paths, case)
        dali_batches(first, done)
        restored = dali_pipeline(kind, paths, case, first.checkpoint())
        order = order_of(case)  # a new one, which jumps
        expected = [order.batch(index).tolist() for index in range(done, number)]
        assert expected == dali_batches(restored, number - done), (case, done)


@pytest.mark.parametrize("part", range(2))
def test_samples_are_in_the_order_of_the_model(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(400 + part)
    for _ in range(150):
        monkeypatch.setattr(streams, "_CHUNK", random.choice([1, 7, 50]))
        case = some_containers(random)
        counts, batch_size, options = case
        expected = model_batches(sum(counts), batch_size, options, batch_count(case), counts)
        assert batches(case, batch_count(case)) == expected, case


def test_batches_can_be_requested_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    random = Random(500)
    for _ in range(100):
        monkeypatch.setattr(streams, "_CHUNK", random.choice([1, 7, 50]))
        monkeypatch.setattr(streams, "_MARKS", random.choice([1, 2, 5]))
        monkeypatch.setattr(streams, "_STRIDE", random.choice([1, 10, 100]))
        case = some_containers(random)
        counts, batch_size, options = case
        expected = model_batches(sum(counts), batch_size, options, batch_count(case, 5), counts)
        order = order_of(case)
        for index in random.choices(range(len(expected)), k=20):
            assert order.batch(index).tolist() == expected[index], (index, case)


def test_known_orders() -> None:
    options = OrderOptions(by_container=True, random_shuffle=True, initial_fill=1)
    assert batches(([2, 3], 5, options), 1) == [[0, 1, 2, 3, 4]]  # the list is not shuffled
    options = OrderOptions(by_container=True, shuffle_after_epoch=True)
    order = [0, 1, 2]
    std_shuffle(order, 64, 524287 + (1 << 32))
    assert order != [0, 1, 2]
    groups = {0: [0, 1], 1: [2, 3, 4], 2: [5]}
    expected = [sample for container in order for sample in groups[container]]
    assert batches(([2, 3, 1], 6, options), 1) == [expected]


def test_a_jump_is_immediate_without_a_window() -> None:
    options = OrderOptions(by_container=True, shuffle_after_epoch=True)
    began = time.perf_counter()
    far = order_of(([5] * 1000, 5000, options)).batch(10**7)
    assert time.perf_counter() - began < 5
    order = list(range(1000))
    std_shuffle(order, 64, 524287 + (10**7 + 1 << 32))
    assert (far[::5] // 5).tolist() == order


def test_few_epochs_of_a_small_data_set_are_shuffled_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    shuffles = []
    monkeypatch.setattr(streams, "shuffled", lambda *args: shuffles.append(1) or shuffled(*args))
    options = OrderOptions(by_container=True, shuffle_after_epoch=True, random_shuffle=True)
    order_of(([5] * 4, 10, options)).batch(0)
    assert 1 <= len(shuffles) <= 5


def test_memory_depends_on_the_containers_and_not_on_the_samples() -> None:
    for random_shuffle in (False, True):
        options = OrderOptions(
            by_container=True, shuffle_after_epoch=True, random_shuffle=random_shuffle
        )
        tracemalloc.start()
        order = order_of(([10**8] * 100, 64, options))
        for index in (0, 1, 10**5, 10**5 + 1) if not random_shuffle else range(300):
            order.batch(index)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000


def test_options_exclude_each_other_as_in_dali() -> None:
    OrderOptions(by_container=True, shuffle_after_epoch=True, random_shuffle=True)
    with pytest.raises(ValueError, match="shuffle_after_epoch and stick_to_shard cannot"):
        OrderOptions(by_container=True, shuffle_after_epoch=True, stick_to_shard=True)


@pytest.mark.parametrize("containers", [None, np.array([3, 3])])
def test_containers_that_do_not_fit_are_refused(containers: Any) -> None:
    options = OrderOptions(by_container=True, shuffle_after_epoch=True)
    with pytest.raises(ValueError, match="containers of 7 samples"):
        Order(7, 2, options, containers)
