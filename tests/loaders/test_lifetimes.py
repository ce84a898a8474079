"""What a Loader holds, for how long, and what its tensors share."""

import gc
import subprocess
import sys
import weakref
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice

import jax
import numpy as np
import pytest
import torch

from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.loaders import Loader, Shard
from tests.kit.loading import Make, drain, labels
from tests.kit.paths import ROOT
from tests.kit.process import (
    alone,
    descriptors,
    lanes,
    resident,
    tasks,
    wait_until,
    without_collector,
)
from tests.kit.tiers import by_tier
from tests.kit.training_pipelines import maker


@pytest.mark.parametrize(
    ("to", "kind"),
    [("torch", torch.Tensor), ("jax", jax.Array), ("numpy", np.ndarray), (list, list)],
)
def test_batches_are_tensors_of_the_framework(loader, to, kind):
    def convert(tensor):
        return np.from_dlpack(tensor).tolist()

    one = loader(Make(), to=convert if to is list else to)
    batches = list(one)
    assert [len(batch) for batch in batches] == [2] * 6
    assert all(isinstance(tensor, kind) for batch in batches for tensor in batch)
    assert [len(batch[0]) for batch in batches] == [4, 4, 4, 4, 4, 2]
    assert np.asarray(batches[0][0]).tolist() == [[0], [1], [2], [3]]
    if to is not list:
        assert (str(batches[0][0].dtype), str(batches[0][1].dtype)) in (
            ("int32", "float32"),
            ("torch.int32", "torch.float32"),
        )


@pytest.mark.parametrize("to", ["torch", "jax", "numpy"])
def test_batches_that_are_held_stay_as_they_were_without_their_loader(jpegs, to):
    one = Loader(maker(jpegs, 30, train=False, batch_size=4), shard=Shard(), to=to)
    held = [
        (tensors, [np.asarray(tensor).tobytes() for tensor in tensors])
        for _ in range(3)
        for tensors in one
    ]
    assert len(held) == 24
    assert len({contents[0] for _, contents in held}) == 8
    one.close()
    del one
    gc.collect()
    for tensors, contents in held:
        assert [np.asarray(tensor).tobytes() for tensor in tensors] == contents


@pytest.mark.parametrize("epochs", [by_tier(5, 30)])
@alone
@pytest.mark.long
def test_memory_threads_and_files_are_flat(jpegs, epochs):
    """Over complete epochs, and ones that are left."""
    make = maker(jpegs, 30, train=False, batch_size=4, side=64)
    with Loader(make, shard=Shard(), to="numpy") as one:
        for epoch in range(epochs):
            if epoch == epochs // 3:
                gc.collect()
                memory, threads, files = resident(), tasks(), len(descriptors())
            list(islice(one, 3 if epoch % 3 else None))
        gc.collect()
        wait_until(lambda: tasks() <= threads and len(descriptors()) <= files)  # it reads ahead
        # The batches of 20 epochs have 18 MB; those of a few are less than a process varies by.
        assert epochs < 30 or resident() - memory < 6_000_000


def test_a_script_closes_nothing_and_imports_no_framework():
    script = (
        "import sys; from dali_storage.loaders import Loader; from tests.kit.loading import Make\n"
        "one = Loader(Make(), to='numpy'); iterator = iter(one); next(iterator)\n"
        "assert not {'torch', 'jax'} & set(sys.modules)"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("how", ["unused", "held error", "failed", "restored"])
def test_a_dropped_loader_leaves_nothing(tree, how):
    """Without the garbage collector, which would come late and find many of them."""
    root = tree(22, sizes=(50,))
    before = lanes()
    with without_collector():
        one = Loader(replace(Make(), file=read_all(root)), shard=Shard(), to="numpy")
        use(one, how, root)
        pipeline = weakref.ref(one.pipeline)  # DALI's threads end with it
        assert how in ("unused", "failed") or lanes() - before
        del one
        assert pipeline() is None
        assert lanes() <= before
        assert not descriptors(below=root)


def read_all(root):
    files = sorted(map(str, root.glob("*/*")))

    def read(**arguments):
        return readers.file(**arguments | {"files": files})

    return read


def use(one, how, root):
    if how == "unused":
        assert len(one) == 6
        return
    next(iter(one))
    if how == "restored":
        one.load_state_dict(one.state_dict())
        next(iter(one))
        return
    one.set_epoch(3)  # batches of the next one have been read
    for path in sorted(root.glob("*/*"))[0 if how == "failed" else 8 :]:
        path.unlink()
    with pytest.raises(FileNotFoundError) if how == "failed" else nullcontext():
        next(iter(one))  # otherwise, the next but one has failed


def test_close_ends_the_readers_work_and_twice_is_fine(loader, tree):
    root = tree(22, sizes=(50,))
    running = lanes()
    with loader(replace(Make(), file=read_all(root))) as one:
        iterator = iter(one)
        next(iterator)
        pipeline = one.pipeline
        assert lanes() - running
    one.close()
    assert lanes() <= running  # although somebody refers to the pipeline
    assert not descriptors(below=root)
    del pipeline
    for use_it in (lambda: next(iterator), lambda: iter(one), lambda: len(one), one.state_dict):
        with pytest.raises(RuntimeError, match="this Loader is closed: make a new one"):
            use_it()
    assert one.stats.batches == 1


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("before", ["first", "complete", "left", "moved", "restored"])
def test_the_queue_of_the_pipeline_is_always_full(loader, depth, before):
    """DALI fills it by itself only at the beginning. A queue of 1 would be slower, silently."""
    one = loader(replace(Make(), depth=depth))
    list(islice(one, {"first": 0, "complete": 6}.get(before, 2)))
    if before == "moved":
        one.set_epoch(4)
    if before == "restored":
        one.load_state_dict(one.state_dict())
    next(iter(one))
    assert drain(one) == depth


@pytest.mark.parametrize("last_batch", ["partial", "drop"])
def test_epochs_are_read_without_a_break_and_what_is_dropped_is_not_read(
    loader, monkeypatch, last_batch
):
    read = []
    original = MemoryReader.read

    def watched(reader, batch, lane):
        read.extend(batch.samples[::4].tolist())  # the first ones of several batches
        original(reader, batch, lane)

    monkeypatch.setattr(MemoryReader, "read", watched)
    one = loader(Make(), last_batch=last_batch)
    firsts = [batch[0] for _ in range(4) for batch in labels(one)]
    assert len(firsts) == 4 * (6 if last_batch == "partial" else 5)
    assert read[: len(firsts)] == firsts
    # Of the pipeline's queue, and two pieces of the reader.
    assert len(read) <= len(firsts) + 2 + 2 * 16


def test_a_loader_that_is_closed_while_its_pipeline_is_made_leaves_none_open():
    made = []

    def make(**given):
        one.close()
        made.append(Make()(**given))
        return made[0]

    one = Loader(make, shard=Shard(), to="numpy")
    with pytest.raises(RuntimeError, match="this Loader is closed: make a new one"):
        next(iter(one))
    with pytest.raises(RuntimeError, match="is closed; build a new pipeline"):
        made[0].run()
