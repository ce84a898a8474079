"""contract.cuda, on CUDA in host memory. What is expected is what CUDA's documentation says."""

import gc
import io
import itertools
import mmap
import os
import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nvidia.dali.tensors import TensorGPU

from dali_storage.contract._types import address_of
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.runtime import cuda
from tests.kit import fake_cuda
from tests.kit.fake_cuda import Cuda
from tests.kit.interrupts import ends_at
from tests.kit.process import status_of_fork


def host_memory(nbytes=100_000):
    return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)


# What is missing


NEEDS_CUDA = [
    cuda.require,
    lambda: cuda.allocate(1, 0),
    lambda: cuda.page_lock(host_memory(), 0),
    lambda: cuda.CudaStream(0),
    lambda: cuda.current(0),
]


@pytest.mark.parametrize("use", NEEDS_CUDA)
def test_a_missing_cupy_driver_or_gpu_is_named_with_its_remedy(gpus, monkeypatch, use):
    gpus.count = 0
    with pytest.raises(BackendUnavailable, match="no GPU 0"):
        use()
    gpus.count = 2
    for gpu in (-1, 2):
        with pytest.raises(BackendUnavailable, match=f"no GPU {gpu}; choose one from 0 to 1"):
            cuda.allocate(1, gpu)
    gpus.count = None
    with pytest.raises(BackendUnavailable, match=r"InsufficientDriver.*install NVIDIA's driver"):
        use()
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=r"CuPy.*pip install .*\[cuda12\]'"):
        use()


@pytest.mark.parametrize(
    "broken",
    [
        "raise ValueError('numpy.dtype size changed')",  # built for another NumPy
        "raise OSError('libcudart.so.12: cannot open shared object file')",
        "",  # what an incomplete removal leaves behind
    ],
)
def test_a_cupy_that_does_not_work_is_as_none(tmp_path, monkeypatch, broken):
    (tmp_path / "cupy.py").write_text(broken)
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BackendUnavailable, match=r"cannot be imported: .*; pip install"):
        cuda.require()
    sys.modules.pop("cupy", None)


def test_cupy_is_not_imported_at_start_up(tmp_path):
    (tmp_path / "cupy.py").write_text("open(__file__ + '.imported', 'w')")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    script = "import runpy; from dali_storage import readers, testing; "
    script += "runpy.run_module('dali_storage', run_name='__main__', alter_sys=True)"
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert "python-file" in run.stdout
    assert "Traceback" not in run.stderr
    assert os.listdir(tmp_path) == ["cupy.py"]


# GPU memory


@pytest.mark.parametrize("nbytes", [0, 1, 2 << 20, (2 << 20) + 1])
@pytest.mark.parametrize("gpu", [0, 1])
def test_memory_is_allocated_on_its_gpu_in_2_mib_units(gpus, nbytes, gpu):
    buffer = cuda.allocate(nbytes, gpu)
    assert gpus.allocated == {buffer.address: (gpu, buffer.nbytes)}
    assert buffer.nbytes >= max(nbytes, 1)
    assert buffer.nbytes % (2 << 20) == 0
    assert (buffer.gpu, len(buffer), address_of(buffer)) == (gpu, buffer.nbytes, buffer.address)
    assert gpus.current == 0


def test_too_much_memory_is_an_error_that_says_what_to_do(gpus):
    gpus.capacity = 1 << 20
    with pytest.raises(MemoryError, match=r"GPU 1 cannot allocate 2097152 bytes.*smaller"):
        cuda.allocate(1, 1)


ends = st.none() | st.integers(-100, 100)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    parts=st.lists(st.tuples(ends, ends, st.integers(0, 255)), max_size=5),
    inner=st.tuples(ends, ends, ends, ends),
    gpu=st.sampled_from([0, 1]),  # the machine refuses addresses of others than the current one
)
def test_parts_of_a_buffer_are_read_and_written_as_of_a_bytearray(gpus, parts, inner, gpu):
    buffer, model = cuda.allocate(1, gpu)[:60], bytearray(60)
    buffer[:] = 0
    for start, stop, value in parts:
        filled = np.full(len(model[start:stop]), value, np.uint8)
        model[start:stop] = filled.tobytes()
        buffer[start:stop] = value if value % 2 else filled
        assert gpus.contents(buffer) == model  # it was waited for
    part, expected = buffer[inner[0] : inner[1]], model[inner[0] : inner[1]]
    assert part[inner[2] : inner[3]].tobytes() == expected[inner[2] : inner[3]]


@pytest.mark.parametrize("value", [b"12", b"1234", np.zeros(4, np.uint8)])
def test_a_slice_with_a_step_or_for_other_numbers_of_bytes_is_refused(gpus, value):
    buffer = cuda.allocate(1, 0)
    with pytest.raises(ValueError, match="step"):
        buffer[::2]
    with pytest.raises(ValueError, match=f"cannot copy {len(value)} bytes to 3 bytes"):
        buffer[5:8] = value


def test_a_tensor_of_dali_is_the_same_memory_and_keeps_it_alive(gpus):
    buffer = cuda.allocate(1, 0)
    piece = buffer[50:150][50:57]
    tensor = TensorGPU(piece, "", 0)
    assert tensor.shape() == [7]
    assert tensor.data_ptr() == buffer.address + 100
    assert str(tensor.dtype) == "DALIDataType.UINT8"
    del buffer, piece
    assert gpus.allocated
    del tensor
    assert not gpus.allocated


def test_ctrl_c_leaves_no_copy_under_way(gpus, monkeypatch):
    buffer, log = cuda.allocate(1, 0), io.StringIO()
    # Functions in C, as CuPy's are.
    runtime = sys.modules["cupy"].cuda.runtime
    monkeypatch.setattr(runtime, "memsetAsync", partial(print, "start", file=log))
    synchronize = staticmethod(partial(print, "done", file=log))
    monkeypatch.setattr(fake_cuda.Stream, "synchronize", synchronize)
    for instruction in itertools.count():
        if not ends_at(instruction, cuda, lambda: buffer.__setitem__(slice(5), 1)):
            break
        lines = [line.split()[0] for line in log.getvalue().splitlines()]
        assert lines == ["start", "done"] * (len(lines) // 2)
    assert instruction > 50
    assert lines


# Page-locked memory


@pytest.mark.parametrize(
    "make",
    [host_memory, lambda: host_memory()[4096:], lambda: np.empty(1 << 26, np.uint8)],
    ids=["a mapping", "a part of an array", "an array that owns its memory"],
)
def test_memory_is_page_locked_until_before_it_is_freed(monkeypatch, make):
    is_mapped = []

    class Machine(Cuda):
        def hostUnregister(self, address):  # noqa: N802
            is_mapped.append(fake_cuda._is_mapped(address))
            super().hostUnregister(address)

    machine = fake_cuda.install(monkeypatch, Machine())
    locked = cuda.page_lock(make(), 1)
    assert machine.registered == {address_of(locked): locked.nbytes}
    assert is_mapped == []
    del locked
    assert is_mapped == [True]
    assert not machine.registered


def test_a_view_keeps_memory_page_locked(gpus):
    view = cuda.page_lock(np.zeros(100_000, np.uint8), 1)[5:]
    gc.collect()
    assert gpus.registered
    del view
    assert not gpus.registered


def test_ctrl_c_leaves_no_freed_memory_page_locked(gpus):
    """CUDA would take a new mapping at the same address for the old one."""
    for instruction in itertools.count():
        buffer = host_memory()
        ended = ends_at(instruction, cuda, partial(cuda.page_lock, buffer, 0))
        del buffer
        gc.collect()
        assert not gpus.registered
        if not ended:
            break
    assert instruction > 50


def test_memory_that_someone_else_has_page_locked_stays_so(gpus):
    buffer = cuda.page_lock(host_memory(), 0)
    with pytest.raises(MemoryError, match="AlreadyRegistered"):
        cuda.page_lock(buffer[:10], 0)
    gc.collect()
    assert gpus.registered


def test_memory_that_cannot_be_page_locked_is_an_error(gpus):
    gpus.capacity = 10
    with pytest.raises(MemoryError, match=r"cannot page-lock 100000 bytes.*pinned=False"):
        cuda.page_lock(host_memory(), 0)
    gc.collect()
    assert not gpus.registered


def test_a_driver_that_shuts_down_is_no_error(gpus):
    buffer = cuda.page_lock(host_memory(), 0)
    gpus.count = None
    del buffer  # an exception in a finalizer would fail the test


# Streams


def test_a_fence_waits_for_what_was_queued_before_it_only(gpus):
    done = []
    stream = cuda.CudaStream(1)
    gpus.queue(stream.pointer, partial(done.append, 1))
    wait = stream.fence()
    gpus.queue(stream.pointer, partial(done.append, 2))
    assert done == []
    wait()
    wait()
    assert done == [1]


def test_a_fence_blocks_without_the_interpreter_lock(gpus):
    stream = cuda.CudaStream(0)
    gpus.may_run.clear()
    gpus.queue(stream.pointer, lambda: None)
    thread = threading.Thread(target=stream.fence())
    thread.start()
    assert thread.is_alive()
    gpus.may_run.set()
    thread.join(120)
    assert not thread.is_alive()


def test_a_fork_never_calls_cuda(gpus):
    """The machine ends a process that calls it in a fork."""
    stream, locked = cuda.CudaStream(0), [cuda.page_lock(host_memory(), 0)]

    def child():
        stream.fence()()
        locked.clear()
        gc.collect()

    assert status_of_fork(child) == 0
    locked.clear()
    assert not gpus.registered
