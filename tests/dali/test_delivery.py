"""How batches reach DALI for pipelines with a GPU, by an executor that records them."""

import contextlib
import gc
import itertools
import os
import weakref
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract.ranges import Ranges
from dali_storage.dali import gpu_memory, group, hold
from dali_storage.readers.plugs import batch_memory
from dali_storage.reading.opening import Opening
from dali_storage.reading.slots import Memory
from dali_storage.runtime import cuda
from dali_storage.samples.discovery import from_directory
from tests.kit import versions
from tests.kit.executor import BATCH, Executor, FakePipeline, Tensor, TensorList
from tests.kit.fake_cuda import put_on_gpu
from tests.kit.interrupts import ends_at
from tests.kit.process import status_of_fork, without_collector
from tests.kit.reading_ahead import pool_of
from tests.kit.stand_ins import backend as changed
from tests.kit.tiers import by_tier

NEVER = 10**9
BATCHES = by_tier(30, 100)


@pytest.fixture
def records(monkeypatch):
    """Lists and page-locked tensors of DALI are records, which need no GPU."""
    versions.require("2.0", "its lists of tensors are copies")
    real = group.TensorListCPU
    monkeypatch.setattr(group, "TensorCPU", Tensor)
    monkeypatch.setattr(gpu_memory, "TensorListGPU", TensorList)
    given = lambda data, **options: TensorList(data, **options) if options else real(data)  # noqa: E731
    monkeypatch.setattr(group, "TensorListCPU", given)


SHAPES = {"sizes": ((700, 0, 4096, 1, 5000), False), "size": ((700,), False)}
SHAPES["ranges"] = (7000, 0, 4097, 1, 5000), True
FIRST_SHAPE = pytest.mark.parametrize("catalog", ["sizes"], indirect=True)


@pytest.fixture(params=SHAPES)
def catalog(tree, request):
    """Ten files of several sizes or of one, or ranges that are the whole files."""
    sizes, as_ranges = SHAPES[request.param]
    catalog = from_directory(tree(10, sizes=sizes))
    if as_ranges:
        lengths = [os.stat(path).st_size for path in catalog.paths(np.arange(10))]
        columns = np.arange(10), np.zeros(10, np.int64), np.array(lengths)
        catalog = replace(catalog, ranges=Ranges.of_columns(*columns))
    return catalog


@pytest.fixture
def make(gpus, records, catalog, monkeypatch):
    def make(device):
        change = partial(put_on_gpu, gpu=1) if device == "gpu" else lambda reader: reader
        options = {"device": device, "depth": 2, "memory": batch_memory}
        reader = changed(change, MemoryReader)
        opening = Opening(find=lambda tree, remote: catalog, reader=reader, **options)
        reader = group.ReaderGroup("R", opening)
        nodes = list(reader.add_outputs(with_index=False, preserve=False))
        assert [node.device for node in nodes] == [device, "cpu"]
        pipeline = FakePipeline(gpus, reader, nodes)
        monkeypatch.setattr(group, "Executor", Executor)
        monkeypatch.setattr(group.Pipeline, "_pipes", {weakref.ref(pipeline)})
        return pipeline

    return make


def expected(catalog, batches):
    """The bytes and labels of the first batches in list order."""
    samples = np.arange(batches * BATCH).reshape(-1, BATCH) % 10
    files = [Path(os.fsdecode(path)).read_bytes() for path in catalog.paths(np.arange(10))]
    return [[files[sample] for sample in row] for row in samples], catalog.labels[samples].tolist()


def finish_all(gpus):
    for stream in gpus.streams:
        gpus.finish(stream)


def test_gpu_memory_is_copied_on_the_streams_of_the_source(gpus, catalog, make):
    pipeline = make("gpu")
    pipeline.run(BATCHES)
    assert gpus.used == {1}, "GPU 0 is not the pipeline's"
    finish_all(gpus)
    contents, labels = expected(catalog, BATCHES)
    assert pipeline.executor.delivered == contents
    assert pipeline.executor.labels == labels
    assert len(gpus.allocated) <= 2 + 1 + 2  # the copies are waited for, and memory is used again


@pytest.mark.parametrize(("device", "shared"), [("cpu", [True, True]), ("gpu", [False, True])])
def test_dali_shares_host_memory_and_copies_gpu_memory(make, monkeypatch, device, shared):
    """Of shared GPU memory DALI lets go before the GPU has read it."""
    given = []
    real = fn.external_source

    def external_source(*arguments, no_copy, **options):
        given.append(no_copy)
        return real(*arguments, no_copy=no_copy, **options)

    monkeypatch.setattr(fn, "external_source", external_source)
    make(device)
    assert given == shared


@pytest.mark.parametrize("stream", [None, 0, 7])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_page_locked_memory_is_kept_until_the_gpu_has_read_it(gpus, catalog, make, ahead, stream):
    pipeline = make("cpu")
    gpus.streams |= {0: deque(), 7: deque()}  # the default stream, and one of the user's
    for number in range(BATCHES):
        pipeline.run()
        if number >= ahead:
            pipeline.take(stream)
    gpus.finish(stream or 0)
    contents, labels = expected(catalog, BATCHES)
    assert pipeline.executor.delivered == contents[: BATCHES - ahead]
    assert pipeline.executor.labels == labels
    assert 1 < len(gpus.registered) <= ahead + 2 + 1 + 3
    del pipeline
    gc.collect()
    assert not gpus.registered
    assert gpus.used == {1}, "GPU 0 is not the pipeline's"


def test_page_locked_tensors_are_made_on_the_gpu_of_the_pipeline(gpus, make, monkeypatch):
    devices = set()

    class Watched(Tensor):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            devices.add(gpus.current)

    monkeypatch.setattr(group, "TensorCPU", Watched)
    make("cpu").run()
    assert devices == {1}
    assert gpus.current == 0


def test_a_dropped_pipeline_frees_its_memory(gpus, make):
    for device in ("cpu", "gpu"):
        pipeline = make(device)
        pipeline.run(5)
        gone = weakref.ref(pipeline)
        del pipeline
        gc.collect()
        assert gone() is None
        assert not gpus.registered
        finish_all(gpus)
        assert not gpus.allocated


def test_outputs_on_a_stream_are_right_after_their_pipeline_was_dropped(gpus, catalog, make):
    pipeline = make("cpu")
    user = cuda.CudaStream(1)
    pipeline.run()
    pipeline.take(user.pointer)
    delivered = pipeline.executor.delivered
    del pipeline
    gc.collect()
    assert delivered == expected(catalog, 1)[0]


def test_a_failed_batch_is_kept_until_the_gpu_has_read_it_and_no_longer(gpus, catalog, make):
    """DALI goes on after an error. Operators that did not fail may have queued copies."""
    pipeline = make("cpu")
    for number in range(100):
        pipeline.run()
        pipeline.executor.fails = number % 3 != 1
        if number:
            with (
                pytest.raises(RuntimeError) if pipeline.executor.fails else contextlib.nullcontext()
            ):
                pipeline.take()
    gpus.finish(pipeline.executor.own_stream)
    assert pipeline.executor.delivered == expected(catalog, 99)[0]
    assert len(gpus.registered) <= 1 + 2 + 1 + 3
    gpus.count = None
    pipeline.executor.fails = True
    with pytest.raises(RuntimeError, match="an operator failed"):  # although CUDA does, too
        pipeline.take()


@FIRST_SHAPE
@pytest.mark.parametrize("calls", [{0, 1, 2}, {2}])
def test_ctrl_c_while_outputs_are_taken_never_lets_go_of_two_batches(gpus, catalog, make, calls):
    contents = expected(catalog, 12)[0]
    for instruction in itertools.count(0, by_tier(5, 1)):
        pipeline = make("cpu")
        executor, stream = pipeline.executor, cuda.CudaStream(1)
        pipeline.run(4)
        take = partial(pipeline.take, stream.pointer)
        points = [instruction if number in calls else NEVER for number in range(3)]
        ended = [ends_at(point, hold, take) for point in points]
        pipeline.run(8)  # overwrites what is not held
        while executor.pending:
            take()
        gpus.finish(stream.pointer)
        assert executor.delivered == contents
        if not any(ended):
            break
    assert instruction > 20


def test_a_fork_that_drops_a_pipeline_does_not_wait_for_a_gpu(gpus, make):
    """The machine ends a process that calls CUDA in a fork."""
    pipeline = make("cpu")
    pipeline.run(2)
    pipeline.take(cuda.CudaStream(1).pointer)
    held = [pipeline]
    del pipeline

    def child():
        held.clear()
        gc.collect()

    assert status_of_fork(child) == 0


def test_outputs_are_page_locked_only_if_all_are_parts_of_the_buffer(monkeypatch):
    monkeypatch.setattr(group, "TensorCPU", Tensor)
    monkeypatch.setattr(group, "TensorListCPU", TensorList)
    pool = pool_of(lambda nbytes: np.frombuffer(bytearray(nbytes), np.uint8))
    memory = gpu_memory.PageLocked(pool)
    lease = pool.lease(4)
    part, other = lease.data, np.zeros(4, np.uint8)
    for contents, expected in (
        ([part, part], True),
        ([part, other], False),
        ([other], False),
        (lease.reshape(2, -1), True),
        (other.reshape(2, 2), False),  # small ranges, which were copied
    ):
        tensors, *_ = group.data_list(memory, contents)
        assert all(tensor.is_pinned is expected for tensor in tensors)


def test_the_last_tensor_of_a_batch_keeps_the_others(monkeypatch):
    """Then DALI takes the interpreter lock once to drop a batch, and not once for each sample."""
    monkeypatch.setattr(group, "TensorCPU", Tensor)
    monkeypatch.setattr(group, "TensorListCPU", TensorList)
    memory = Memory(pool_of(np.empty))
    with without_collector():
        tensors, *_ = group.data_list(memory, [memoryview(bytes([each])) for each in range(3)])
        assert [tensor.memory.tobytes() for tensor in tensors] == [b"\x00", b"\x01", b"\x02"]
        others = [weakref.ref(tensor) for tensor in tensors[:2]]
        last = tensors[2]
        del tensors
        assert None not in [other() for other in others]
        del last
        assert [other() for other in others] == [None, None]
