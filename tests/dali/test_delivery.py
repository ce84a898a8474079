"""How batches reach DALI for pipelines with a GPU, on an executor that records what it is given.

DALI makes no list of GPU tensors and no page-locked tensor where there is no GPU, so these are
records, too. The executor does what DALI's documentation and headers say: it queues its reads of
GPU memory on the stream that it is given, and its reads of page-locked memory until the outputs
are taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, backend, fn
from nvidia.dali.tensors import TensorGPU

from dali_storage import readers
from dali_storage.backends.memory import MemoryReader
from dali_storage.contract import cuda
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.ranges import Ranges
from dali_storage.dali import group, hold
from dali_storage.reading.buffers import BufferPool
from dali_storage.reading.opening import Opening
from dali_storage.samples.discovery import from_directory
from tests.kit.fake_cuda import Cuda, put_on_gpu
from tests.kit.interrupts import ends_at
from tests.kit.trees import Tree

BATCH = 4
NEVER = 10**9


class Tensor:
    """A page-locked tensor of DALI."""

    def __init__(self, piece: Any, layout: str = "", is_pinned: bool = False) -> None:
        self.memory = np.frombuffer(piece, np.uint8)
        self.is_pinned = is_pinned


class TensorList(list[Any]):
    """A list of tensors of DALI, or an array of which they are the rows."""

    def __init__(self, tensors: Any, contiguous: bool = True, is_pinned: bool = False) -> None:
        self.copied = contiguous and isinstance(tensors, list)
        if isinstance(tensors, np.ndarray):
            tensors = [group.TensorCPU(row, "", is_pinned) for row in tensors]
        super().__init__(tensors)


class Executor:
    """The executor of a pipeline.

    Attributes:
        delivered: the samples' bytes of each batch, as the GPU has read them.
        labels: the labels of each batch.
    """

    def __init__(self, machine: Cuda) -> None:
        self.machine = machine
        self.delivered: list[list[bytes]] = []
        self.labels: list[list[int]] = []
        self.pending: deque[Callable[[], None]] = deque()
        self.fails = False
        self.own_stream = cuda.CudaStream(1).pointer

    def SetExternalTLInput(  # noqa: N802
        self, name: str, tensors: Any, stream: Any, use_copy_kernel: bool
    ) -> None:
        if name.endswith("[1]"):
            assert (stream, use_copy_kernel) == (None, False)
            self.labels.append(np.asarray(tensors.as_array()).ravel().tolist())
        elif isinstance(tensors[0], TensorGPU):
            self._copy(tensors, stream, use_copy_kernel)
        else:
            self._share(tensors, stream)

    def _copy(self, tensors: TensorList, stream: Any, use_copy_kernel: bool) -> None:
        assert not tensors.copied, "it would be copied on DALI's stream"
        assert use_copy_kernel
        assert self.machine.current == 1, "DALI takes the stream for one of the current GPU"
        assert type(stream) is ctypes.c_void_p, "DALI takes all else for the default stream"
        parts = [(tensor.data_ptr(), tensor.shape()[0]) for tensor in tensors]
        self.machine.queue(stream.value or 0, partial(deliver, self.delivered, parts))

    def _share(self, tensors: TensorList, stream: Any) -> None:
        assert (stream, tensors.copied) == (None, False)
        assert all(tensor.is_pinned for tensor in tensors)
        parts = [(tensor.memory.ctypes.data, tensor.memory.size) for tensor in tensors]
        self.pending.append(partial(deliver, self.delivered, parts))

    @hold.watched
    def Outputs(self, stream: Any = None) -> None:  # noqa: N802
        read = self.pending.popleft()
        if self.fails:
            self.machine.queue(self.own_stream, read)
            raise RuntimeError("an operator failed")
        if stream is None:
            read()
        else:
            self.machine.queue(stream.value or 0, read)


def deliver(delivered: list[list[bytes]], parts: list[tuple[int, int]]) -> None:
    """What a GPU does: it knows addresses, and keeps nothing alive."""
    delivered.append([ctypes.string_at(address, nbytes) for address, nbytes in parts])


class FakePipeline:
    """What a `ReaderGroup` uses of a pipeline."""

    max_batch_size, num_threads, device_id = BATCH, 1, 1
    _enable_checkpointing, _api_type = False, None
    _batches_to_consume = 0

    def __init__(self, machine: Cuda, reader: group.ReaderGroup, nodes: list[Any]) -> None:
        self._pipe = Executor(machine)
        self._ops = [node.source for node in nodes]
        self._input_callbacks = [reader]


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "TensorCPU", Tensor)
    monkeypatch.setattr(group, "TensorListGPU", TensorList)
    real = group.TensorListCPU
    monkeypatch.setattr(
        group,
        "TensorListCPU",
        lambda data, **options: TensorList(data, **options) if options else real(data),
    )


@pytest.fixture(
    params=[((700, 0, 4096, 1, 5000), False), ((700,), False), ((7000, 0, 4097, 1, 5000), True)],
    ids=["sizes", "size", "ranges"],
)
def make(
    gpus: Cuda, records: None, tree: Tree, request: pytest.FixtureRequest
) -> Callable[[str], Any]:
    sizes, as_ranges = request.param
    root = tree(10, sizes=sizes)

    def make(device: str) -> tuple[group.ReaderGroup, FakePipeline]:
        def find(tree: object, remote: object) -> Catalog:
            catalog = from_directory(root)
            if as_ranges:
                lengths = [os.stat(path).st_size for path in catalog.paths(np.arange(10))]
                columns = np.arange(10), np.zeros(10, np.int64), np.array(lengths)
                catalog = replace(catalog, ranges=Ranges.of_columns(*columns))
            return catalog

        class OnDevice(MemoryReader):
            def __init__(self, catalog: Catalog) -> None:
                super().__init__(catalog)
                if device == "gpu":
                    put_on_gpu(self, 1)

        opening = Opening(find=find, reader=OnDevice, device=device, depth=2)
        reader = group.ReaderGroup("R", opening)
        nodes = list(reader.add_outputs(with_index=False, preserve=False))
        assert [node.device for node in nodes] == [device, "cpu"]
        return reader, FakePipeline(gpus, reader, nodes)

    make.root = root  # type: ignore[attr-defined]
    return make


def expected(root: Path, batches: int) -> tuple[list[list[bytes]], list[list[int]]]:
    """The bytes and labels of the first batches in list order."""
    paths = sorted(root.rglob("*.jpg"))
    samples = list(itertools.islice(itertools.cycle(paths), batches * BATCH))
    rows = [samples[start : start + BATCH] for start in range(0, len(samples), BATCH)]
    contents = [[path.read_bytes() for path in row] for row in rows]
    return contents, [[int(path.parent.name[-1]) for path in row] for row in rows]


def run(reader: group.ReaderGroup, pipeline: Any) -> None:
    reader.get_batch(pipeline, BATCH, 0).feed()


def test_gpu_memory_is_copied_on_the_streams_of_the_source(
    gpus: Cuda, make: Callable[[str], Any]
) -> None:
    reader, pipeline = make("gpu")
    for _ in range(100):
        run(reader, pipeline)
    assert gpus.used == {1}, "GPU 0 is not the pipeline's"
    for stream in gpus.streams:
        gpus.finish(stream)
    contents, labels = expected(make.root, 100)  # type: ignore[attr-defined]
    assert pipeline._pipe.delivered == contents
    assert pipeline._pipe.labels == labels
    assert len(gpus.allocated) <= 2 + 1 + 2  # the copies are waited for, and memory is used again


@pytest.mark.parametrize(("device", "shared"), [("cpu", [True, True]), ("gpu", [False, True])])
def test_dali_shares_host_memory_and_copies_gpu_memory(
    make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, device: str, shared: list[bool]
) -> None:
    """Of shared GPU memory DALI lets go before the GPU has read it."""
    given: list[bool] = []
    real = fn.external_source

    def external_source(*arguments: Any, no_copy: bool, **options: Any) -> Any:
        given.append(no_copy)
        return real(*arguments, no_copy=no_copy, **options)

    monkeypatch.setattr(fn, "external_source", external_source)
    make(device)
    assert given == shared


@pytest.mark.parametrize("stream", [None, 0, 7])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_page_locked_memory_is_kept_until_the_gpu_has_read_it(
    gpus: Cuda, make: Callable[[str], Any], ahead: int, stream: int | None
) -> None:
    reader, pipeline = make("cpu")
    gpus.streams |= {0: deque(), 7: deque()}  # the default stream, and one of the user's
    for number in range(100):
        run(reader, pipeline)
        if number >= ahead:
            pipeline._pipe.Outputs(None if stream is None else ctypes.c_void_p(stream))
    gpus.finish(stream or 0)
    contents, labels = expected(make.root, 100)  # type: ignore[attr-defined]
    assert pipeline._pipe.delivered == contents[: 100 - ahead]
    assert pipeline._pipe.labels == labels
    assert 1 < len(gpus.registered) <= ahead + 2 + 1 + 3
    del reader, pipeline
    gc.collect()
    assert not gpus.registered
    assert gpus.used == {1}, "GPU 0 is not the pipeline's"


def test_page_locked_tensors_are_made_on_the_gpu_of_the_pipeline(
    gpus: Cuda, make: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: set[int] = set()

    class Watched(Tensor):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            devices.add(gpus.current)

    monkeypatch.setattr(group, "TensorCPU", Watched)
    run(*make("cpu"))
    assert devices == {1}
    assert gpus.current == 0


def test_a_dropped_pipeline_frees_its_memory(gpus: Cuda, make: Callable[[str], Any]) -> None:
    for device in ("cpu", "gpu"):
        reader, pipeline = make(device)
        for _ in range(5):
            run(reader, pipeline)
        gone = weakref.ref(pipeline)
        del reader, pipeline
        gc.collect()
        assert gone() is None
        assert not gpus.registered
        for stream in gpus.streams:
            gpus.finish(stream)
        assert not gpus.allocated


def test_outputs_on_a_stream_are_right_after_their_pipeline_was_dropped(
    gpus: Cuda, make: Callable[[str], Any]
) -> None:
    reader, pipeline = make("cpu")
    user = cuda.CudaStream(1)
    run(reader, pipeline)
    pipeline._pipe.Outputs(ctypes.c_void_p(user.pointer))
    delivered = pipeline._pipe.delivered
    del pipeline
    gc.collect()
    assert delivered == expected(make.root, 1)[0]  # type: ignore[attr-defined]


def test_a_failed_batch_is_kept_until_the_gpu_has_read_it_and_no_longer(
    gpus: Cuda, make: Callable[[str], Any]
) -> None:
    """DALI goes on after an error. Operators that did not fail may have queued copies."""
    reader, pipeline = make("cpu")
    for number in range(100):
        run(reader, pipeline)
        pipeline._pipe.fails = number % 3 != 1
        if number:
            with pytest.raises(RuntimeError) if pipeline._pipe.fails else contextlib.nullcontext():
                pipeline._pipe.Outputs()
    gpus.finish(pipeline._pipe.own_stream)
    assert pipeline._pipe.delivered == expected(make.root, 99)[0]  # type: ignore[attr-defined]
    assert len(gpus.registered) <= 1 + 2 + 1 + 3
    gpus.count = None
    pipeline._pipe.fails = True
    with pytest.raises(RuntimeError, match="an operator failed"):  # although CUDA does, too
        pipeline._pipe.Outputs()


def test_a_batch_that_is_not_fed_is_read_again(gpus: Cuda, make: Callable[[str], Any]) -> None:
    """As when another source of the pipeline fails."""
    reader, pipeline = make("gpu")
    for number in range(20):
        reader.get_batch(pipeline, BATCH, 0)
        if number % 2:
            run(reader, pipeline)
    for stream in gpus.streams:
        gpus.finish(stream)
    contents, _ = expected(make.root, 10)  # type: ignore[attr-defined]
    assert pipeline._pipe.delivered == contents


class Batch:
    """What can be referred to weakly."""


@pytest.mark.parametrize("calls", [{0, 1, 2}, {2}])
def test_ctrl_c_never_lets_go_of_page_locked_memory_too_early(gpus: Cuda, calls: set[int]) -> None:
    """At any bytecode instruction: a batch may be kept for too long."""
    stream = cuda.CudaStream(0)
    for instruction in itertools.count():
        holding, done = hold.Hold(Executor(gpus), 0), list[int]()
        batches: list[Any] = [Batch() for _ in range(4)]
        alive = list(map(weakref.ref, batches))
        while batches:
            holding.add(batches.pop(0))
        ended = False
        for number in range(3):
            gpus.queue(stream.pointer, partial(done.append, number))
            release = partial(holding.release, stream.pointer)
            ended |= ends_at(instruction if number in calls else NEVER, hold, release)
            kept = [number for number, batch in enumerate(alive) if batch() is not None]
            assert {0, 1, 2, 3} == {*kept, *done}
        gpus.finish(stream.pointer)
        if not ended:
            break
    assert instruction > 20
    assert alive[0]() is alive[1]() is None


@pytest.mark.parametrize("calls", [{0, 1, 2}, {2}])
def test_ctrl_c_while_outputs_are_taken_never_lets_go_of_two_batches(
    gpus: Cuda, make: Callable[[str], Any], calls: set[int]
) -> None:
    contents = expected(make.root, 12)[0]  # type: ignore[attr-defined]
    for instruction in itertools.count():
        reader, pipeline = make("cpu")
        executor, stream = pipeline._pipe, cuda.CudaStream(1)
        for _ in range(4):
            run(reader, pipeline)
        take = partial(executor.Outputs, ctypes.c_void_p(stream.pointer))
        points = [instruction if number in calls else NEVER for number in range(3)]
        ended = [ends_at(point, hold, take) for point in points]
        for _ in range(8):  # overwrites what is not held
            run(reader, pipeline)
        while executor.pending:
            take()
        gpus.finish(stream.pointer)
        assert executor.delivered == contents
        if not any(ended):
            break
    assert instruction > 20


@pytest.fixture
def late_gpu(gpus: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """DALI finds the GPU of a pipeline that names none when the pipeline is built."""
    monkeypatch.setattr(Pipeline, "device_id", property(lambda self: 1 if self._built else None))
    real = group.TensorCPU
    monkeypatch.setattr(group, "TensorCPU", lambda content, layout, is_pinned: real(content))


def pipeline_of(root: Path, exec_dynamic: bool = True) -> Pipeline:
    pipeline = Pipeline(
        batch_size=BATCH, num_threads=1, prefetch_queue_depth=3, exec_dynamic=exec_dynamic
    )
    with pipeline:
        data, labels = readers.file(file_root=str(root))
        pipeline.set_outputs(fn.slice(data, 0, 100, axes=[0]), labels)
    return pipeline


def take_by_run(pipeline: Pipeline) -> None:
    pipeline.run()


def take_by_sharing(pipeline: Pipeline) -> None:
    pipeline.schedule_run()
    pipeline.share_outputs()
    pipeline.release_outputs()


@pytest.mark.parametrize("take", [take_by_run, take_by_sharing])
@pytest.mark.parametrize("exec_dynamic", [True, False])
def test_dali_lets_go_of_page_locked_batches_whose_outputs_are_taken(
    gpus: Cuda,
    late_gpu: None,
    tree: Tree,
    take: Callable[[Pipeline], None],
    exec_dynamic: bool,
) -> None:
    pipeline = pipeline_of(tree(10, sizes=(100,)), exec_dynamic)
    for _ in range(50):
        take(pipeline)
    assert 3 < len(gpus.registered) <= 3 + 2 + 1 + 3
    del pipeline
    gc.collect()
    assert not gpus.registered


def test_dali_lets_go_of_page_locked_batches_in_which_an_operator_fails(
    gpus: Cuda, late_gpu: None, tree: Tree
) -> None:
    pipeline = pipeline_of(tree(10, sizes=(100,) * 9 + (1,)))  # a slice of 1 byte fails
    failed = 0
    for _ in range(50):
        try:
            pipeline.run()
        except RuntimeError:
            failed += 1
    assert 10 < failed < 50
    assert len(gpus.registered) <= 3 + 2 + 1 + 3


def test_each_reader_of_a_pipeline_lets_go_of_one_batch_each_time(
    gpus: Cuda, late_gpu: None, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[hold.Hold] = []
    release = hold.Hold.release
    monkeypatch.setattr(
        hold.Hold, "release", lambda self, stream: released.append(self) or release(self, stream)
    )
    root = str(tree(10))
    pipelines = [Pipeline(batch_size=BATCH, num_threads=1) for _ in range(2)]
    for pipeline in pipelines:
        with pipeline:
            (data, _), (_, labels) = (readers.file(file_root=root, name=name) for name in "AB")
            pipeline.set_outputs(data, labels)
        pipeline.run()
    for _ in range(50):
        pipeline.run()
    assert sorted(Counter(released).values()) == [1, 1, 51, 51]
    assert len(gpus.registered) <= 2 * 2 * (2 + 2 + 1 + 3)


def test_a_fork_that_drops_a_pipeline_does_not_wait_for_a_gpu(
    gpus: Cuda, make: Callable[[str], Any]
) -> None:
    """The machine ends a process that calls CUDA in a fork."""
    reader, pipeline = make("cpu")
    for _ in range(2):
        run(reader, pipeline)
    pipeline._pipe.Outputs(ctypes.c_void_p(cuda.CudaStream(1).pointer))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        del pipeline
        gc.collect()
        os._exit(17)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17


@pytest.mark.parametrize(
    ("given", "told"), [(None, None), (ctypes.c_void_p(5), 5), (ctypes.c_void_p(0), 0)]
)
def test_a_batch_is_let_go_on_the_stream_of_its_outputs_after_they_were_taken(
    monkeypatch: pytest.MonkeyPatch, given: ctypes.c_void_p | None, told: int | None
) -> None:
    log: list[Any] = []
    monkeypatch.setattr(hold.Hold, "release", lambda self, stream: log.append(stream))
    executor = Batch()
    held = hold.Hold(executor, 0)
    take = hold.watched(lambda executor, stream: log.append((executor, stream)))
    assert take(executor, given) is None
    assert log == [(executor, given), told]
    del held
    take(Batch(), given)
    assert len(log) == 3


def test_the_outputs_of_a_pipeline_without_a_gpu_are_left_alone(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(executor: Any, stream: Any) -> Any:
        return original(executor, stream)

    original = backend.Pipeline.Outputs
    monkeypatch.setattr(backend.Pipeline, "Outputs", plain)
    pipeline_of(tree(10, sizes=(100,))).run()
    assert backend.Pipeline.Outputs is plain


def test_outputs_are_page_locked_only_if_all_are_parts_of_the_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(group, "TensorCPU", Tensor)
    monkeypatch.setattr(group, "TensorListCPU", TensorList)
    source: Any = SimpleNamespace(stream=None, pinned=True)
    pool = BufferPool(lambda nbytes: np.frombuffer(bytearray(nbytes), np.uint8))
    lease: Any = pool.lease(4)
    part, other = lease.data, np.zeros(4, np.uint8)
    for contents, expected in (
        ([part, part], True),
        ([part, other], False),
        ([other], False),
        (lease.reshape(2, -1), True),
        (other.reshape(2, 2), False),  # small ranges, which were copied
    ):
        tensors, *_ = group.data_list(source, contents)
        assert all(tensor.is_pinned is expected for tensor in tensors)


def test_the_last_tensor_of_a_batch_keeps_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then DALI takes the interpreter lock once to drop a batch, and not once for each sample."""
    monkeypatch.setattr(group, "TensorCPU", Tensor)
    monkeypatch.setattr(group, "TensorListCPU", TensorList)
    source: Any = SimpleNamespace(stream=None, pinned=False)
    gc.disable()  # what is dropped must die by itself
    try:
        tensors, *_ = group.data_list(source, [memoryview(bytes([each])) for each in range(3)])
        assert [tensor.memory.tobytes() for tensor in tensors] == [b"\x00", b"\x01", b"\x02"]
        others = [weakref.ref(tensor) for tensor in tensors[:2]]
        last = tensors[2]
        del tensors
        assert None not in [other() for other in others]
        del last
        assert [other() for other in others] == [None, None]
    finally:
        gc.enable()
