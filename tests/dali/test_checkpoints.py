"""Checkpoints of pipelines with our reader, beside those with the real one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn

from dali_storage import readers
from dali_storage.contract.catalog import Catalog
from dali_storage.dali import source
from tests.kit.dali import build, take
from tests.kit.trees import Tree

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
        source(pipeline, "R").position.successor = lambda index: (
            index + 3 if index % 6 == 3 else index + 1
        )
        return pipeline

    pipeline = make()
    real = take(build(fn.readers.file, 4, file_root=root, dont_use_mmap=True), 30)
    source(pipeline, "R").position.seek(7)
    assert take(pipeline, 1) == real[7 * 4 : 8 * 4]
    source(pipeline, "R").position.seek(12)
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


# --- what a checkpoint is of ----------------------------------------------------------------------

WINDOW: dict[str, Any] = {"random_shuffle": True, "seed": 4, "initial_fill": 7}
EPOCH: dict[str, Any] = {"shuffle_after_epoch": True}
SHARD: dict[str, Any] = {"num_shards": 3, "shard_id": 1}
RESUME = "go on with resume=, see readers.state"


@pytest.mark.parametrize(
    ("saved", "here", "words"),
    [
        (
            SHARD,
            SHARD | {"shard_id": 2},
            "shard_id=1, .*shard_id=2: give every rank the checkpoint",
        ),
        (SHARD, {"num_shards": 2, "shard_id": 1}, f"num_shards=3, .*num_shards=2: .*{RESUME}"),
        (SHARD, {}, f"num_shards=3, and here it is num_shards=1: .*{RESUME}"),
        (SHARD, SHARD | {"pad_last_batch": True}, "pad_last_batch=False, .*pad_last_batch=True"),
        ({"stick_to_shard": True}, {}, "stick_to_shard=True, and here it is stick_to_shard=False"),
        (WINDOW, {}, "random_shuffle=True, and here it is random_shuffle=False: give the reader"),
        (
            WINDOW,
            WINDOW | {"seed": 5},
            "seed=4, and here it is seed=5: give the reader the same seed",
        ),
        (WINDOW, WINDOW | {"initial_fill": 9}, "initial_fill=7, and here it is initial_fill=9"),
        ({}, EPOCH, "shuffle_after_epoch=False, and here it is shuffle_after_epoch=True"),
        (
            EPOCH,
            EPOCH | {"shuffle_after_epoch_seed": 1},
            "shuffle_after_epoch_seed=524287, .*_seed=1",
        ),
        (
            {},
            {"dir_filters": "class[12]"},
            "22 samples, and here it is 14 samples: take the data set",
        ),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_order_is_refused(
    tree: Tree, saved: dict[str, Any], here: dict[str, Any], words: str
) -> None:
    root = str(tree(22))
    checkpoint = checkpoint_after(3, file_root=root, **saved)
    with pytest.raises(ValueError, match=rf"'R'\): the checkpoint was made with {words}"):
        restored(checkpoint, file_root=root, **here).build()
    assert take(restored(checkpoint, file_root=root, **saved), 1)


def test_a_checkpoint_of_other_names_is_refused(tree: Tree) -> None:
    root = tree(22)
    checkpoint = checkpoint_after(3, file_root=str(root))
    (root / "class0" / "0000.jpg").rename(root / "class0" / "0000.png")
    with pytest.raises(ValueError, match=r"names, labels and index .*0x\w+, and here .*data set"):
        restored(checkpoint, file_root=str(root)).build()


def test_a_checkpoint_of_the_seed_of_another_pipeline_is_refused(tree: Tree) -> None:
    """The seed is that of DALI's table; it is known when the pipeline is built."""
    arguments = {"file_root": str(tree(22)), "random_shuffle": True, "name": "R"}
    options = {"enable_checkpointing": True}
    pipeline = build(readers.file, 4, **arguments, pipeline=options | {"seed": 1})
    checkpoint = pipeline.checkpoint()  # before the first batch
    again = build(
        readers.file, 4, **arguments, pipeline=options | {"seed": 1, "checkpoint": checkpoint}
    )
    assert take(again, 9) == take(pipeline, 9)
    other = build(
        readers.file, 4, **arguments, pipeline=options | {"seed": 2, "checkpoint": checkpoint}
    )
    with pytest.raises(
        ValueError, match=r"with seed=\d+, and here it is seed=\d+: give the reader"
    ):
        other.build()
    # Without random_shuffle there is nothing that depends on it.
    arguments["random_shuffle"] = False
    pipeline = build(readers.file, 4, **arguments, pipeline=options | {"seed": 1})
    options |= {"seed": 2, "checkpoint": pipeline.checkpoint()}
    assert take(build(readers.file, 4, **arguments, pipeline=options), 3) == take(pipeline, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 0}, "version 0, and this dali_storage reads version 1"),
        (
            dict.fromkeys(["version", "seed", "names"]),
            "no version, and .*take the dali_storage that",
        ),
        ({"batches": -1}, "batches is -1"),
        ({"names": None}, "lacks, or has too much: names"),
        ({"resumed": []}, r"resumed is \[\]"),
        ({"resumed": {}}, "no state of readers.state.*no version"),
    ],
    ids=str,
)
def test_a_damaged_checkpoint_is_refused(tree: Tree, change: dict[str, Any], words: str) -> None:
    """Those of the first dali_storage had no more than batches, batch_size and samples."""
    root = str(tree(22))
    pipeline = build(readers.file, name="R", file_root=root)
    made = source(pipeline, "R").checkpoint(0)
    saved = {key: value for key, value in (made | change).items() if value is not None}
    with pytest.raises(ValueError, match=rf"'R'\): .*{words}"):
        source(pipeline, "R").restore({"resumed": None} | saved)
    source(pipeline, "R").restore(json.loads(json.dumps(made)))


def test_a_checkpoint_is_small_and_needs_the_names_once(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    checksum = Catalog.checksum
    monkeypatch.setattr(Catalog, "checksum", lambda it: [calls.append(it), checksum(it)][1])
    options = {"enable_checkpointing": True}
    pipeline = build(readers.file, 4, name="R", file_root=str(tree(22)), pipeline=options)
    take(pipeline, 5)
    assert len(pipeline.checkpoint()) < 600
    pipeline.checkpoint()
    assert len(calls) == 1
