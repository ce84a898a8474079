"""The kernel for the host and the simulated controller, each built once a run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from dali_storage.backends.gpu import queue_pairs
from tests.kit.gpu_controller import Memory
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
