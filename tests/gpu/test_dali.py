"""DALI with a GPU: page-locked batches, and batches in GPU memory."""

import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dali_storage import Reader
from tests.gpu import readers as gpu_readers
from tests.kit.paths import ROOT

pytest.importorskip("nvidia.dali", reason="no DALI: pip install '.[cuda12]'")

from nvidia.dali import Pipeline, fn

from dali_storage import readers

IMAGES, ROUNDS = 2000, 3
BATCHES = 1000
LONG = ("--batches", 250)  # so that filling the queues takes a small part of the time
needs_benchmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("rich", "matplotlib", "PIL")),
    reason="the benchmark is not installed: pip install '.[bench]'",
)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The data set of the benchmark's demo."""
    from benchmarks import dataset

    return Path(dataset.make(str(tmp_path_factory.mktemp("demo")), lambda done: None, IMAGES))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """300 files of random bytes in a class directory."""
    return make_files(tmp_path_factory.mktemp("files"), 300)


def make_files(root, count):
    random = np.random.default_rng(3)
    (root / "class").mkdir()
    for index, size in enumerate(random.integers(1, 200_000, count).tolist()):
        (root / "class" / f"{index:04}.jpg").write_bytes(random.bytes(size))
    return root


@needs_benchmark
def test_decoding_from_page_locked_and_other_memory(gpu, images, tmp_path, measured):
    legs = ("python-file", "memory")
    rounds = [
        (
            pinned,
            benchmark_of(images, tmp_path, legs, "--device-id", gpu, "--pinned", pinned, *LONG),
        )
        for _ in range(ROUNDS)  # in turn, so that a drift of the machine's speed affects both
        for pinned in ("no", "yes")
    ]
    for leg in legs:
        for pinned, memory in (("no", "cpu"), ("yes", "pinned")):
            found = [document[leg] for given, document in rounds if given == pinned]
            assert {one["memory"] for one in found} == {memory}
            what = f"decoding on the GPU, {leg}, page-locked: {pinned}"
            for figure, unit in (("img_per_s", "images/s"), ("cpu_s_per_gb", "CPU s/GB")):
                value = statistics.median(one["summary"][figure] for one in found)
                measured(what, value, unit)


def benchmark_of(images, folder, legs, *options):
    """The figures of some legs that decode images, from a process of their own."""
    kept = folder / "benchmark.json"
    command = [sys.executable, "benchmark.py", "compare", "--readers", ",".join(legs), "--decode"]
    command += ["--datadir", str(images), "--rounds", "1", "--json", str(kept)]
    done = subprocess.run(
        [*command, *map(str, options)], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(kept.read_text())["readers"]


@pytest.mark.parametrize("pinned", [True, False])
@needs_benchmark
def test_dali_does_not_copy_page_locked_samples(gpu, images, monkeypatch, measured, pinned):
    """Where a mixed decoder and a function of Python see the same batch, DALI has it only once."""
    shared = share_of_our_memory(images, gpu, monkeypatch, pinned=pinned)
    kind = "page-locked" if pinned else "other"
    measured(f"samples in {kind} memory that DALI does not copy", 100 * shared, "%")
    if pinned:
        assert shared == 1


def share_of_our_memory(images, device_id, monkeypatch, **options):
    """The share of samples that operators of DALI find in the buffers of the reader."""
    places = []
    seen = []

    def allocate(reader, nbytes):
        buffer = really(reader, nbytes)
        places.append((buffer.ctypes.data, buffer.nbytes))
        return buffer

    def look(sample):
        seen.append(sample.__array_interface__["data"][0])
        return np.zeros(1, np.uint8)

    really = Reader.allocate
    monkeypatch.setattr(Reader, "allocate", allocate)
    pipe = Pipeline(batch_size=16, num_threads=2, device_id=device_id)
    with pipe:
        data, _ = readers.file(file_root=str(images), backend="memory", **options)
        decoder = "cpu" if device_id is None else "mixed"
        pipe.set_outputs(
            fn.decoders.image(data, device=decoder), fn.python_function(data, function=look)
        )
    pipe.build()
    for _ in range(10):
        pipe.run()
    assert len(seen) >= 160
    inside = [any(start <= place < start + size for start, size in places) for place in seen]
    return sum(inside) / len(inside)


def test_batches_in_gpu_memory_are_right_although_buffers_are_overwritten_at_once(
    gpu, files, monkeypatch, measured
):
    measured(
        "batches of 16 samples of 100 KB in GPU memory, compared on the host",
        BATCHES / compare_batches(files, gpu, BATCHES, monkeypatch),
        "/s",
    )


def compare_batches(files, gpu, batches, monkeypatch):
    """Compare so many batches with the files; returns the seconds that this took."""
    gpu_readers.register(monkeypatch)
    device = "cpu" if gpu is None else "gpu"
    contents = [np.fromfile(path, np.uint8) for path in sorted((files / "class").iterdir())]
    pipe = Pipeline(batch_size=16, num_threads=2, device_id=gpu)
    with pipe:
        pipe.set_outputs(
            *readers.file(
                device=device,
                file_root=str(files),
                random_shuffle=True,
                seed=4,
                return_index=True,
                backend=gpu_readers.NAME,
                backend_options={"gpu": gpu},
            )
        )
    pipe.build()
    start, seen = time.perf_counter(), set()
    for batch in range(batches):
        outputs = pipe.run()
        assert outputs[0].__class__.__name__ == (
            "TensorListCPU" if gpu is None else "TensorListGPU"
        )
        data, _, indices = (output.as_cpu() for output in outputs)
        for slot in range(16):
            index = int(np.asarray(indices.at(slot))[0])
            seen.add(index)
            where = f"batch {batch}, sample {slot}"
            assert np.array_equal(np.asarray(data.at(slot)), contents[index]), where
    taken = time.perf_counter() - start
    assert len(seen) == len(contents) or batches * 16 < 3 * len(contents)
    del pipe, outputs, data
    gc.collect()  # ends the reader while its backend is registered
    return taken
