"""The kernel for the host and the simulated controller, each built once a run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from dali_storage.backends.gpu import queue_pairs
from dali_storage.backends.gpu.dmabuf import PeerMemory
from tests.kit import gpu_machine
from tests.kit.dmabuf_import import BAR1, BAR1_SIZE, Driver, Module
from tests.kit.fake_cuda import Cuda
from tests.kit.gpu_controller import Memory
from tests.kit.gpu_machine import NVME, GpuMachine, bar
from tests.kit.nvme_sim import build

Kernels = Callable[[int], Path]


@pytest.fixture(scope="session")
def controller(sim_folder: Path) -> Path:
    """The library of the simulated controller."""
    return build.build_controller(sim_folder / "controller")


@pytest.fixture(scope="session")
def kernels(sim_folder: Path) -> Kernels:
    """The library of the kernel with a number of lanes."""
    return cache(lambda lanes: build.build_kernel(sim_folder / f"kernel{lanes}", lanes))


@pytest.fixture(scope="package", autouse=True)
def older_objects_are_not_collected() -> Iterator[None]:
    """Many tests here collect garbage; they skip what earlier tests and imports have made."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """The memory that the bus reaches."""
    return Memory(monkeypatch)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Queue pairs that are leaked on purpose, with their memory."""
    pairs: list[object] = []
    monkeypatch.setattr(queue_pairs, "_leaked_on_purpose", pairs)
    return pairs


# GPU memory on the bus


@pytest.fixture
def machine(tmp_path: Path) -> GpuMachine:
    """A machine with everything."""
    made = GpuMachine(tmp_path)
    made.change({gpu_machine.RESOURCE: bar(0x9000_0000, 16 << 20) + bar(BAR1, BAR1_SIZE)})
    return made


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    return Module(monkeypatch)


@pytest.fixture
def libcuda(monkeypatch: pytest.MonkeyPatch, gpus: Cuda) -> Driver:
    return Driver(gpus, monkeypatch)


@pytest.fixture
def peer_memory(module: Module, libcuda: Driver, machine: GpuMachine) -> PeerMemory:
    return PeerMemory(0, NVME, str(machine.base))
