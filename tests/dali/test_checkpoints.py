"""Checkpoints of pipelines with our reader, beside those with the real one."""

import json
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.contract.catalog import Catalog
from dali_storage.dali.queries import source
from dali_storage.saving import positions
from tests.kit.dali import build, pipeline_of, take

pytestmark = pytest.mark.usefixtures("pipelines_end")

WINDOW: dict[str, Any] = {"random_shuffle": True, "seed": 4, "initial_fill": 7}
SHARD: dict[str, Any] = {"num_shards": 3, "shard_id": 1}
DEPTHS = [1, pytest.param(2, marks=pytest.mark.long), 3]


def make(batch_size=4, file=readers.file, **arguments):
    """A pipeline that can be saved; `pipeline` has its other options, such as `checkpoint`."""
    options = {"enable_checkpointing": True} | arguments.pop("pipeline", {})
    return build(file, batch_size, **{"name": "R"} | arguments, pipeline=options)


def restored(checkpoint, batch_size=4, **arguments):
    return make(batch_size, **arguments, pipeline={"checkpoint": checkpoint})


def saved_after(batches, **arguments):
    pipeline = make(**arguments)
    take(pipeline, batches)
    return pipeline.checkpoint()


@pytest.mark.parametrize("cut", [0, 6])
def test_a_checkpoint_restores_the_stream_of_no_seed(tree, cut):
    """A seed that DALI takes of the time."""
    arguments = {"file_root": str(tree(22)), "random_shuffle": True}
    pipeline = make(**arguments)
    take(pipeline, cut)
    rest = take(restored(pipeline.checkpoint(), **arguments), 15)
    assert take(pipeline, 15) == rest


OTHERS = [({}, {"name": "Other"}), ({}, {"name": None})]
OTHERS += [({"file": fn.readers.file, "dont_use_mmap": True}, {})]


@pytest.mark.parametrize(("saved", "here"), OTHERS, ids=["name", "no name", "of DALI"])
def test_a_checkpoint_of_another_reader_is_refused(tree, saved, here):
    root = str(tree(22))
    with pytest.raises(RuntimeError, match="another pipeline"):
        restored(saved_after(3, file_root=root, **saved), file_root=root, **here).build()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("cut", [0, 2, 3, 5, 7])
def test_a_checkpoint_is_right_after_epochs_that_another_source_ends(tree, depth, cut):
    """DALI's own checkpoint has the number of batches since the last reset only."""
    root = str(tree(40, sizes=(9,)))

    def make(file, **options):
        def define():
            return fn.external_source(three_batches, batch=True), file(file_root=root, name="R")[0]

        options |= {"enable_checkpointing": True, "prefetch_queue_depth": depth}
        return pipeline_of(define, **options)

    def run(pipeline, batches):
        samples = []
        while batches:
            try:
                _, data = pipeline.run()
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


def three_batches(index):
    if index >= 3:
        raise StopIteration
    return np.zeros((4, 1), np.float32)


# --- checkpoints of something else ----------------------------------------------------------------

RESUME = "resume a pipeline from readers.state"


@pytest.mark.parametrize(
    ("saved", "here", "words"),
    [
        (SHARD, SHARD | {"shard_id": 2}, "shard_id=1, .*shard_id=2: give every rank its own check"),
        (SHARD, {"num_shards": 2, "shard_id": 1}, f"num_shards=3, .*num_shards=2: .*{RESUME}"),
        (SHARD, SHARD | {"pad_last_batch": True}, "pad_last_batch=False, .*pad_last_batch=True"),
        (WINDOW, WINDOW | {"seed": 5}, "seed=4, but .* seed=5: give the reader the same seed"),
        ({}, {"dir_filters": "class[12]"}, "22 samples, but .* 14 samples: resume with the same"),
        ({}, {"batch_size": 8}, f"a batch size of 4, but .* a batch size of 8: .*{RESUME}"),
        ({}, {"batch_size": 8, "lazy_init": True}, "a batch size of 4, but .*size of 8: .*"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_order_is_refused(tree, saved, here, words):
    """Other differences are those of a state, in order/test_resume_refusals.py."""
    root = str(tree(22))
    checkpoint = saved_after(3, file_root=root, **saved)
    with pytest.raises(ValueError, match=rf"'R'\): the checkpoint was made with {words}"):
        restored(checkpoint, file_root=root, **here).build()
    assert take(restored(checkpoint, file_root=root, **saved), 1)


def test_a_checkpoint_of_the_seed_of_another_pipeline_is_refused(tree):
    """The seed is that of DALI's table; it is known when the pipeline is built."""
    arguments = {"file_root": str(tree(22)), "random_shuffle": True}
    pipeline = make(**arguments, pipeline={"seed": 1})
    checkpoint = pipeline.checkpoint()  # before the first batch
    again = make(**arguments, pipeline={"seed": 1, "checkpoint": checkpoint})
    assert take(again, 9) == take(pipeline, 9)
    other = make(**arguments, pipeline={"seed": 2, "checkpoint": checkpoint})
    with pytest.raises(ValueError, match=r"with seed=\d+, but this reader has seed=\d+: give the"):
        other.build()
    # Without random_shuffle there is nothing that depends on it.
    arguments["random_shuffle"] = False
    pipeline = make(**arguments, pipeline={"seed": 1})
    other = make(**arguments, pipeline={"seed": 2, "checkpoint": pipeline.checkpoint()})
    assert take(other, 3) == take(pipeline, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 0}, r"version 0 \(this release reads version 1\)"),
        (dict.fromkeys(["version", "seed", "names"]), "without a version .*load it with the rel"),
        ({"batches": -1}, "batches is -1"),
        ({"names": None}, "missing or unexpected keys: names"),
        ({"resumed": []}, r"resumed is \[\]"),
        ({"resumed": {}}, "not a state of readers.state.*without a version"),
    ],
    ids=str,
)
def test_a_damaged_checkpoint_is_refused(tree, change, words):
    """Those of the first dali_storage had no more than batches, batch_size and samples."""
    stream = source(build(readers.file, name="R", file_root=str(tree(22))), "R")
    made = positions.checkpoint(stream, 0)
    saved = {key: value for key, value in (made | change).items() if value is not None}
    with pytest.raises(ValueError, match=rf"'R'\): .*{words}"):
        positions.restore(stream, {"resumed": None} | saved)
    positions.restore(stream, json.loads(json.dumps(made)))


def test_a_checkpoint_is_small_and_needs_the_names_once(tree, monkeypatch):
    calls = []
    checksum = Catalog.checksum
    monkeypatch.setattr(Catalog, "checksum", lambda it: [calls.append(it), checksum(it)][1])
    pipeline = make(file_root=str(tree(22)))
    take(pipeline, 5)
    assert len(pipeline.checkpoint()) < 600
    pipeline.checkpoint()
    assert len(calls) == 1
