"""Launches of the kernel by CuPy: a CuPy on host memory runs the kernel on the host."""

import ctypes
import gc
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage.backends.gpu import layout
from dali_storage.backends.gpu.module import Launcher
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.runtime.uninterrupted import run_uninterrupted
from tests.gpu.kernel import make_trial
from tests.kit import fake_cuda
from tests.kit.nvme_sim.reads import Reads, Setup
from tests.kit.nvme_sim.simulation import NEVER
from tests.kit.nvme_sim.trial import IMAGE, some_reads

_REGISTERS = 7  # cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory


class Gpu(fake_cuda.Cuda):
    """A GPU that runs the kernel on the host, when somebody waits for it.

    `failure` is what its compiler or driver raises, `blocks` are those of the last launch.
    """

    def __init__(self, library: Path) -> None:
        super().__init__()
        self.library = ctypes.CDLL(str(library))
        self.capability, self.maps_registers = "90", True
        self.failure = None
        self.blocks = 0
        self.in_stream = []

    def module(self):
        module = super().module()
        module.RawModule = self.compile
        module.cuda.Device = partial(Device, self)
        module.cuda.Stream = partial(Stream, self)
        module.cuda.runtime.pointerGetAttributes = lambda address: SimpleNamespace(
            devicePointer=address
        )
        return module

    def compile(self, *, code, options):
        assert (code, options) == (layout.source(), ("--std=c++17",))
        return SimpleNamespace(compile=self.fail, get_function={"submit_reads": self.launch}.get)

    def fail(self):
        if self.failure is not None:
            raise self.failure

    def launch(self, grid, block, arguments):
        self.fail()
        batch, pairs = arguments[0].copy(), ctypes.c_void_p(int(arguments[1]))
        assert block == (32,)
        self.blocks = grid[0]
        self._require(pairs.value or 0, grid[0] * layout.QUEUE_PAIR.itemsize)
        for name in ("slba", "blocks", "offset", "status", "next", "page_bus"):
            self._require(int(batch[name]), 4)
            assert batch[name] % 8 == 0  # a GPU reads u64 only there
        rows = np.ctypeslib.as_array((ctypes.c_uint64 * (12 * grid[0])).from_address(pairs.value))
        assert not (rows.view(layout.QUEUE_PAIR)["prp_list_bus"] % 8).any()
        assert any(start <= batch["stop"] < start + size for start, size in self.registered.items())

        def run():
            self.fail()
            self.library.submit_reads(ctypes.c_void_p(batch.ctypes.data), pairs, grid[0])

        self.queue(self.in_stream[-1], run)

    def hostRegister(self, address, nbytes, flags):  # noqa: N802
        if flags == _REGISTERS and not self.maps_registers:
            raise fake_cuda.CUDARuntimeError("cudaErrorNotPermitted")
        super().hostRegister(address, nbytes, 3 if flags == _REGISTERS else flags)


class Device(fake_cuda.Device):
    @property
    def compute_capability(self):
        return self.machine.capability


class Stream(fake_cuda.Stream):
    def __enter__(self):
        self.machine.in_stream.append(self.ptr)

    def __exit__(self, *exc_info):
        self.machine.in_stream.pop()


@pytest.fixture
def gpu(kernels, monkeypatch):
    """It must have nothing allocated and nothing registered in the end."""
    machine = Gpu(kernels(1))
    fake_cuda.install(monkeypatch, machine)
    yield machine
    gc.collect()
    assert (machine.allocated, machine.registered) == ({}, {})


SETUP = Setup(queues=3, depth=9)


@pytest.fixture
def trial(gpu, controller):
    return make_trial(Launcher(0), controller)


def test_batches_are_read_right_in_a_lane(gpu, controller):
    def run():
        make_trial(Launcher(1), controller).random_reads_are_right(SETUP, [1, 500, 3], share=8)

    run_uninterrupted(run)
    assert gpu.used == {1}  # no other GPU got a context
    assert gpu.blocks == SETUP.queues


def test_a_batch_larger_than_the_memory_for_columns_gets_more(gpu, trial):
    random, count = np.random.default_rng(2), 90_000
    places = np.arange(count) * 512
    reads = Reads(random.integers(0, IMAGE.size >> 9, count), np.ones(count, int), places)
    with trial.simulate(SETUP, count * 512) as simulation:
        launch = trial.kernel.prepare(simulation, reads)
        before, capacity = sum(size for _, size in gpu.allocated.values()), gpu.capacity
        for room in (0, 3 << 20):  # for the memory of the GPU, or of the host, there is none
            gpu.capacity = room
            with pytest.raises(MemoryError):
                launch()
        gpu.capacity = capacity
        status = launch().wait()
        assert not status.any()
        assert simulation.wrong_bytes(reads, status) == 0
        assert sum(size for _, size in gpu.allocated.values()) > before


def test_a_launch_has_the_statuses_of_its_commands(trial):
    trial.statuses_reach_their_commands(SETUP)


@contextmanager
def prepared(trial, *stuck, **options):
    """Launches, and what starts them with reads; those with the numbers `stuck` never complete."""
    reads, size = some_reads(SETUP, 400)
    with trial.simulate(SETUP, size) as simulation:
        for number in stuck:
            simulation.fault(int(reads.slba[number]), NEVER)
        launch = trial.kernel.prepare(simulation, reads, **options)
        (launches,) = trial.kernel._launches.values()
        yield launches, launch


def test_a_launch_says_which_queue_pair_it_has_given_up(trial):
    with prepared(trial, 3, patience_s=0.2) as (launches, launch):
        assert launch().wait()[3] == layout.NOT_DONE
    assert layout.TIMED_OUT in launches.pairs["fault"]
    assert (launches.pairs["in_flight"] > 0).tolist() == (launches.pairs["fault"] > 0).tolist()


def test_a_stopped_launch_leaves_its_commands_in_flight(trial):
    with prepared(trial, 3) as (launches, launch):
        launch().stop()
        assert layout.STOPPED in launches.pairs["fault"]
        assert launches.pairs["in_flight"].sum() > 0


def test_launches_go_on_after_a_stop_without_a_launch(trial):
    with prepared(trial) as (launches, launch):
        launches.stop()
        assert not launches.pairs["fault"].any()
        assert launches.pairs["depth"].tolist() == [SETUP.depth] * SETUP.queues
        assert not launch().wait().any()


illegal_address = partial(fake_cuda.CUDARuntimeError, "cudaErrorIllegalAddress")
is_an_error = partial(pytest.raises, OSError, match="GPU 0 has failed .* cudaErrorIllegalAddress")


def test_a_gpu_that_fails_during_a_launch_is_an_error(gpu, trial):
    with prepared(trial) as (launches, launch):
        launch()
        gpu.failure = illegal_address()
        with is_an_error():
            launches.wait()
        gpu.failure = None


def test_launches_cannot_be_made_on_a_gpu_that_has_failed(gpu, trial, monkeypatch):
    def fail(*_):
        raise illegal_address()

    monkeypatch.setattr(gpu, "memcpyAsync", fail)
    fake_cuda.install(monkeypatch, gpu)
    with is_an_error():
        trial.statuses_reach_their_commands(SETUP)


def test_a_launch_that_cuda_refuses_is_an_error(gpu, trial):
    with prepared(trial) as (launches, launch):
        gpu.failure = RuntimeError("cudaErrorIllegalAddress")  # of the driver
        with is_an_error():
            launch()
        gpu.failure = None
        launches.stop()
        assert not launches.pairs["fault"].any()


@pytest.mark.parametrize("capability", ["61", "52"])
def test_a_gpu_that_is_too_old_is_refused(gpu, capability):
    gpu.capability = capability
    words = f"capability {capability[0]}.{capability[1]}.*7.0"
    with pytest.raises(BackendUnavailable, match=words):
        Launcher(0)


def test_a_kernel_that_cannot_be_compiled_is_named(gpu):
    gpu.capability, gpu.failure = "130", ValueError("invalid value for --gpu-architecture")
    with pytest.raises(BackendUnavailable, match=r"GPU 1 \(sm_130\): invalid value.*NVRTC"):
        Launcher(1)


def test_memory_and_registers_are_mapped_until_they_die(gpu):
    launcher = Launcher(0)
    memory, registers = (np.frombuffer(bytearray(n), np.uint8) for n in (5000, 4096))
    assert launcher.map_memory(memory) == memory.ctypes.data
    assert launcher.map_registers(registers) == registers.ctypes.data
    assert len(gpu.registered) == 2
    part = registers[:10]
    del memory, registers
    assert [*gpu.registered] == [part.ctypes.data]


def test_registers_that_cuda_does_not_map_are_refused(gpu):
    gpu.maps_registers = False
    launcher, registers = Launcher(0), np.zeros(4096, np.uint8)
    words = "registers .* cudaErrorNotPermitted; run as root"
    with pytest.raises(BackendUnavailable, match=words):
        launcher.map_registers(registers)
    assert gpu.registered == {}
