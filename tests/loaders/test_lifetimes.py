"""What a Loader holds, for how long, and what its tensors share."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
from nvidia.dali import fn, pipeline_def

from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.loaders import Loader, Shard
from tests.kit.loading import Make, labels
from tests.kit.process import descriptors, threads
from tests.kit.trees import Tree


def images(root: Path) -> Callable[..., Any]:
    """Makes pipelines of decoded pictures."""

    @pipeline_def(batch_size=4, num_threads=2, device_id=None, enable_checkpointing=True)
    def make(shard_id: int, num_shards: int) -> Any:
        data, labels = readers.file(
            name="Reader",
            file_root=str(root),
            shard_id=shard_id,
            num_shards=num_shards,
            pad_last_batch=True,
        )
        return fn.resize(fn.decoders.image(data), size=(64, 64)), labels

    return make


@pytest.mark.parametrize(
    ("to", "kind"),
    [("torch", torch.Tensor), ("jax", jax.Array), ("numpy", np.ndarray), (list, list)],
)
def test_batches_are_tensors_of_the_framework(loader: Any, to: Any, kind: type) -> None:
    def convert(tensor: Any) -> Any:
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
def test_batches_that_are_held_stay_as_they_were(loader: Any, jpegs: Path, to: str) -> None:
    one = loader(images(jpegs), to=to)
    held = [
        (tensors, [np.asarray(tensor).tobytes() for tensor in tensors])
        for _ in range(3)
        for tensors in one
    ]
    assert len(held) == 24
    assert len({contents[0] for _, contents in held}) == 8
    one.close()
    for tensors, contents in held:
        assert [np.asarray(tensor).tobytes() for tensor in tensors] == contents


def test_a_tensor_outlives_its_loader(jpegs: Path) -> None:
    one = Loader(images(jpegs), shard=Shard(), to="numpy")
    ((pixels, _),) = islice(one, 1)
    expected = pixels.copy()
    one.close()
    del one
    gc.collect()
    assert np.array_equal(pixels, expected)
    assert pixels.any()


def left_behind() -> set[object]:
    """Files and threads of this process."""
    deadline = time.monotonic() + 5
    while True:
        found = {*descriptors(), *os.listdir("/proc/self/task")}
        time.sleep(0.02)  # threads of DALI end some time later
        if found == {*descriptors(), *os.listdir("/proc/self/task")}:
            return found
        assert time.monotonic() < deadline


def test_memory_threads_and_files_are_flat_over_epochs(loader: Any, jpegs: Path) -> None:
    """Complete ones, and ones that are left."""
    one = loader(images(jpegs))

    def measure() -> tuple[int, set[object]]:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        return resident, left_behind()

    for epoch in range(30):
        if epoch == 10:
            memory, before = measure()
        list(islice(one, 3 if epoch % 3 else None))
    more_memory, after = measure()
    assert after <= before
    assert more_memory - memory < 4 << 20  # a batch has 50 KB


@pytest.mark.parametrize("how", ["complete", "left", "unused", "held error", "failed", "restored"])
def test_a_dropped_loader_leaves_nothing(tree: Tree, how: str) -> None:
    """Without the garbage collector, which would come late and find many of them."""
    root = tree(22, sizes=(50,))
    make = replace(Make(), file=read_all(root))
    use(Loader(make, shard=Shard(), to="numpy"), "left", root)
    gc.collect()
    gc.disable()
    try:
        before = left_behind()
        one = Loader(make, shard=Shard(), to="numpy")
        use(one, how, root)
        opened = left_behind()
        del one
        assert left_behind() <= before
    finally:
        gc.enable()
    assert opened - before


def read_all(root: Path) -> Callable[..., Any]:
    files = sorted(map(str, root.glob("*/*")))

    def read(**arguments: Any) -> Any:
        return readers.file(**arguments | {"files": files})

    return read


def use(one: Loader, how: str, root: Path) -> None:
    if how == "unused":
        assert len(one) == 6
    elif how == "complete":
        assert len(list(one)) == 6
    else:
        iterator = iter(one)
        next(iterator)
        if how == "restored":
            one.load_state_dict(one.state_dict())
            next(iter(one))
        elif how in ("failed", "held error"):
            one.set_epoch(3)  # batches of the next one have been read
            for path in sorted(root.glob("*/*"))[0 if how == "failed" else 8 :]:
                path.unlink()
            iterator = iter(one)
            if how == "failed":
                with pytest.raises(FileNotFoundError):
                    next(iterator)
            else:
                next(iterator)  # the next but one has failed


def lanes() -> set[threading.Thread]:
    """The threads of readers."""
    return {thread for thread in threads() if thread.name.startswith("dali_storage")}


def test_close_ends_the_readers_work_and_twice_is_fine(loader: Any, tree: Tree) -> None:
    root = tree(22, sizes=(50,))
    make = replace(Make(), file=read_all(root))
    list(loader(make))
    before, running = left_behind(), lanes()
    with loader(make) as one:
        iterator = iter(one)
        next(iterator)
        pipeline = one.pipeline
        assert lanes() - running
    one.close()
    assert lanes() <= running  # although somebody refers to the pipeline
    del pipeline
    assert left_behind() <= before
    for use_it in (lambda: next(iterator), lambda: iter(one), lambda: len(one), one.state_dict):
        with pytest.raises(RuntimeError, match="this Loader is closed: make a new one"):
            use_it()
    assert one.stats.batches == 1


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("before", ["first", "complete", "left", "moved", "restored"])
def test_the_queue_of_the_pipeline_is_always_full(loader: Any, depth: int, before: str) -> None:
    """DALI fills it by itself only at the beginning. A queue of 1 would be slower, silently."""
    one = loader(replace(Make(), depth=depth))
    if before in ("left", "moved", "restored"):
        list(islice(one, 2))
    if before == "complete":
        list(one)
    if before == "moved":
        one.set_epoch(4)
    if before == "restored":
        one.load_state_dict(one.state_dict())
    next(iter(one))
    queued = 0
    while not one.pipeline.empty():
        one.pipeline.share_outputs()
        one.pipeline.release_outputs()
        queued += 1
    assert queued == depth


@pytest.mark.parametrize("last_batch", ["partial", "drop"])
def test_epochs_are_read_without_a_break_and_what_is_dropped_is_not_read(
    loader: Any, monkeypatch: pytest.MonkeyPatch, last_batch: str
) -> None:
    read: list[int] = []
    original = MemoryReader.read

    def watched(reader: MemoryReader, batch: Any, lane: int) -> None:
        read.append(int(batch.samples[0]))
        original(reader, batch, lane)

    monkeypatch.setattr(MemoryReader, "read", watched)
    one = loader(Make(), last_batch=last_batch)
    firsts = [batch[0] for _ in range(4) for batch in labels(one)]
    time.sleep(0.1)  # what is being read ahead
    assert len(firsts) == 4 * (6 if last_batch == "partial" else 5)
    assert read[: len(firsts)] == firsts
    assert len(read) <= len(firsts) + 2 + 2  # of the pipeline's queue, and of the reader


SCRIPT = """
import sys
from tests.loading import Make
from dali_storage.loaders import Loader
assert not {"torch", "jax"} & set(sys.modules)
one = Loader(Make(), to="numpy")
iterator = iter(one)
next(iterator)
assert not {"torch", "jax"} & set(sys.modules)
print("end")
"""


def test_a_script_ends_without_closing_anything_and_imports_no_framework() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")
