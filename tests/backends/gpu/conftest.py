"""The kernel for the host and the simulated controller, each built once a run."""

from functools import cache

import pytest

from dali_storage.backends.gpu import queue_pairs
from dali_storage.backends.gpu.dmabuf import PeerMemory
from tests.kit import gpu_machine
from tests.kit.dmabuf_import import BAR1, BAR1_SIZE, Driver, Module
from tests.kit.gpu_controller import Memory
from tests.kit.gpu_machine import NVME, GpuMachine, bar
from tests.kit.nvme_sim import build


@pytest.fixture(scope="session")
def controller(sim_folder):
    """The library of the simulated controller."""
    return build.build_controller(sim_folder / "controller")


@pytest.fixture(scope="session")
def kernels(sim_folder):
    """The library of the kernel with a number of lanes."""
    return cache(lambda lanes: build.build_kernel(sim_folder / f"kernel{lanes}", lanes))


@pytest.fixture
def memory(monkeypatch):
    """The memory that the bus reaches."""
    return Memory(monkeypatch)


@pytest.fixture
def kept(monkeypatch):
    """Queue pairs that are leaked on purpose, with their memory."""
    pairs = []
    monkeypatch.setattr(queue_pairs, "_leaked_on_purpose", pairs)
    return pairs


# GPU memory on the bus


@pytest.fixture
def machine(tmp_path):
    """A machine with everything."""
    made = GpuMachine(tmp_path)
    made.change({gpu_machine.RESOURCE: bar(0x9000_0000, 16 << 20) + bar(BAR1, BAR1_SIZE)})
    return made


@pytest.fixture
def module(monkeypatch):
    return Module(monkeypatch)


@pytest.fixture
def libcuda(monkeypatch, gpus):
    return Driver(gpus, monkeypatch)


@pytest.fixture
def peer_memory(module, libcuda, machine):
    return PeerMemory(0, NVME, str(machine.base))
