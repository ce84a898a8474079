"""Checkpoints of pipelines with our reader, beside those with the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn

from dali_storage import readers
from dali_storage.dali import source

from .conftest import Tree, build, take

pytestmark = pytest.mark.usefixtures("pipelines_end")


# --- checkpoints --------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 1, 5, 6, 13])
@pytest.mark.parametrize(
    "order",
    [
        {},
        {"random_shuffle": True, "initial_fill": 7, "seed": 4},
        {"random_shuffle": True},
        {"shuffle_after_epoch": True},
        {"num_shards": 3, "shard_id": 1, "pad_last_batch": True},
        {"num_shards": 3, "shard_id": 2, "stick_to_shard": True, "random_shuffle": True, "seed": 1},
    ],
    ids=str,
)
def test_a_checkpoint_restores_the_stream(tree: Tree, order: dict[str, Any], cut: int) -> None:
    root = str(tree(22))
    checkpointing = {"enable_checkpointing": True}
    pipeline = build(readers.file, 4, file_root=root, **order, pipeline=dict(checkpointing))
    first = take(pipeline, cut)
    restored = build(
        readers.file,
        4,
        file_root=root,
        **order,
        pipeline=checkpointing | {"checkpoint": pipeline.checkpoint()},
    )
    rest = take(restored, 15)
    assert take(pipeline, 15) == rest
    if order.get("random_shuffle") and "seed" not in order:
        return  # DALI takes the time for a seed
    real = build(
        fn.readers.file,
        4,
        file_root=root,
        dont_use_mmap=True,
        **order,
        pipeline=dict(checkpointing),
    )
    assert take(real, cut + 15) == first + rest


def restored(checkpoint: bytes, batch_size: int = 4, **arguments: Any) -> Pipeline:
    pipeline = {"enable_checkpointing": True, "checkpoint": checkpoint}
    return build(readers.file, batch_size, name="R", **arguments, pipeline=pipeline)


def checkpoint_after(batches: int, **arguments: Any) -> bytes:
    pipeline = build(readers.file, name="R", **arguments, pipeline={"enable_checkpointing": True})
    take(pipeline, batches)
    checkpoint: bytes = pipeline.checkpoint()
    return checkpoint


@pytest.mark.parametrize("lazy_init", [False, True])
def test_a_checkpoint_of_another_batch_size_is_refused(tree: Tree, lazy_init: bool) -> None:
    root = str(tree(22))
    checkpoint = checkpoint_after(3, file_root=root)
    pipeline = restored(checkpoint, batch_size=8, file_root=root, lazy_init=lazy_init)
    with pytest.raises(
        ValueError, match=r"'R'.* size of 4, and here it is a batch size of 8: .*resume="
    ):
        pipeline.build()


def test_a_checkpoint_of_another_number_of_samples_is_refused(tree: Tree) -> None:
    root = tree(22)
    checkpoint = checkpoint_after(3, file_root=str(root))
    (root / "class0" / "more.jpg").write_bytes(b"more")
    with pytest.raises(ValueError, match=r"'R'.*22 samples, and here it is 23 samples: take"):
        restored(checkpoint, file_root=str(root)).build()


@pytest.mark.parametrize("name", ["Other", None])
def test_a_checkpoint_of_another_reader_is_refused(tree: Tree, name: str | None) -> None:
    root = str(tree(22))
    options = {"enable_checkpointing": True, "checkpoint": checkpoint_after(3, file_root=root)}
    with pytest.raises(RuntimeError, match="another pipeline"):
        build(readers.file, name=name, file_root=root, pipeline=options).build()


def test_a_checkpoint_of_the_real_reader_is_refused(tree: Tree) -> None:
    root = str(tree(22))
    options: dict[str, Any] = {"enable_checkpointing": True}
    real = build(fn.readers.file, name="R", file_root=root, pipeline=dict(options))
    options["checkpoint"] = real.checkpoint()
    with pytest.raises(RuntimeError, match="another pipeline"):
        build(readers.file, name="R", file_root=root, pipeline=options).build()


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("cut", range(6))
def test_a_checkpoint_is_right_after_a_seek_and_with_batches_left_out(
    tree: Tree, depth: int, cut: int
) -> None:
    """Batches 7, 8, then the first four of each six batches; `cut` of these are delivered."""
    root = str(tree(50))
    options = {"enable_checkpointing": True, "prefetch_queue_depth": depth}

    def make(**more: Any) -> Pipeline:
        pipeline = build(readers.file, 4, file_root=root, name="R", pipeline=options | more)
        source(pipeline, "R").successor = lambda index: index + 3 if index % 6 == 3 else index + 1
        return pipeline

    pipeline = make()
    real = take(build(fn.readers.file, 4, file_root=root, dont_use_mmap=True), 30)
    source(pipeline, "R").seek(7)
    assert take(pipeline, 1) == real[7 * 4 : 8 * 4]
    source(pipeline, "R").seek(12)
    prefetched = [8, 9][: depth - 1]
    order = [*prefetched, 12, 13, 14, 15, 18, 19, 20, 21, 24, 25, 26, 27]
    expected = [sample for index in order for sample in real[4 * index : 4 * index + 4]]
    seen = take(pipeline, len(prefetched) + cut)
    restored = make(checkpoint=pipeline.checkpoint())
    assert seen + take(restored, 6) == expected[: 4 * (len(prefetched) + cut + 6)]


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("cut", [0, 2, 3, 5, 7])
def test_a_checkpoint_is_right_after_epochs_that_another_source_ends(
    tree: Tree, depth: int, cut: int
) -> None:
    """DALI's own checkpoint has the number of batches since the last reset only."""
    root = str(tree(40, sizes=(9,)))

    def make(file: Callable[..., Any], **options: Any) -> Pipeline:
        pipeline = Pipeline(
            batch_size=4,
            num_threads=1,
            device_id=None,
            enable_checkpointing=True,
            prefetch_queue_depth=depth,
            **options,
        )
        with pipeline:
            numbers = fn.external_source(three_batches, batch=True)
            data, _ = file(file_root=root, name="R")
            pipeline.set_outputs(data, numbers)
        return pipeline

    def run(pipeline: Pipeline, batches: int) -> list[bytes]:
        samples: list[bytes] = []
        while batches:
            try:
                data, _ = pipeline.run()
            except StopIteration:
                pipeline.reset()
                continue
            samples += [np.asarray(sample).tobytes() for sample in data]
            batches -= 1
        return samples

    pipeline = make(readers.file)
    first = run(pipeline, cut)
    rest = run(make(readers.file, checkpoint=pipeline.checkpoint()), 8)
    assert first + rest == run(make(fn.readers.file), cut + 8)


def three_batches(index: int) -> np.ndarray:
    if index >= 3:
        raise StopIteration
    return np.zeros((4, 1), np.float32)
