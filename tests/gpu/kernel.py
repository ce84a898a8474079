"""The kernel on a GPU, with queues and doorbells of the simulated controller in host memory."""

import ctypes
import mmap
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dali_storage.backends.gpu import layout
from dali_storage.contract._types import HostBuffer, address_of
from tests.kit.nvme_sim.reads import Reads, Setup
from tests.kit.nvme_sim.simulation import Simulation
from tests.kit.nvme_sim.trial import IMAGE, Trial

SHARED = (
    *("submission_queue", "completion_queue", "submission_doorbell", "completion_doorbell"),
    "prp_lists",
)
_STATE = ("tail", "head", "phase", "in_flight", "fault")


class GpuKernel:
    """As HostKernel, by the launcher of the backend xnvme-bam."""

    def __init__(self, launcher: Any) -> None:
        self._launcher = launcher
        self._places: list[tuple[int, int, int]] = []  # host address, bytes, address on the GPU
        self._launches: weakref.WeakKeyDictionary[Simulation, Any] = weakref.WeakKeyDictionary()

    def allocate(self, nbytes: int) -> HostBuffer:
        """Zeros in page-locked memory, for a Simulation."""
        memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        self._places.append((address_of(memory), nbytes, self._launcher.map_memory(memory)))
        return memory

    def prepare(
        self,
        simulation: Simulation,
        reads: Reads,
        *,
        share: int = layout.LANES,
        patience_s: float = 60.0,
    ) -> Callable[[], Any]:
        """What launches the kernel; it returns the Launches of these queue pairs."""
        if simulation not in self._launches:
            self._launches[simulation] = self._make_launches(simulation)
        launches = self._launches[simulation]
        batch, columns = simulation.batch(reads, share, patience_s)

        def launch() -> Any:
            launches.start(batch, **columns)
            return launches

        return launch

    def run(self, simulation: Simulation, reads: Reads, **options: Any) -> np.ndarray:
        """Submit reads; `options` are those of `prepare()`. Their statuses: uint32[n]."""
        launches = self.prepare(simulation, reads, **options)()
        status: np.ndarray = launches.wait()
        for name in _STATE:
            simulation.queues[name] = launches.pairs[name]
        return status

    def _make_launches(self, simulation: Simulation) -> Any:
        setup = simulation.setup
        pairs = layout.queue_pairs(setup.queues, setup.depth)
        for name in SHARED:
            pairs[name] = [self._on_gpu(address) for address in simulation.queues[name].tolist()]
        column = ctypes.c_uint64 * setup.depth
        lists = [column.from_address(each) for each in simulation.queues["prp_list_bus"].tolist()]
        return self._launcher.launches(pairs, np.array(lists, np.uint64))

    def _on_gpu(self, address: int) -> int:
        """The address on the GPU. The last place wins: memory that was freed may come again."""
        for start, nbytes, there in reversed(self._places):
            if start <= address < start + nbytes:
                return there + address - start
        raise KeyError(address)


class GpuTrial(Trial):
    """The trials of a GpuKernel."""

    kernel: GpuKernel  # type: ignore[assignment]

    def simulate(self, setup: Setup, arena_bytes: int) -> Simulation:
        return Simulation(
            self.controller,
            setup,
            image=IMAGE,
            arena_bytes=arena_bytes,
            allocate=self.kernel.allocate,
        )


def small_reads(count: int, seed: int = 1) -> tuple[Reads, int]:
    """Reads of 4 KiB from random blocks of 512 bytes, to 4096 places; and the bytes of these."""
    page, places = layout.PAGE, 4096
    slba = np.random.default_rng(seed).integers(0, IMAGE.size // 512 - 8 + 1, count)
    return Reads(slba, np.full(count, 8), np.arange(count) % places * page), places * page


def make_trial(launcher: Any, controller: Path) -> GpuTrial:
    return GpuTrial(GpuKernel(launcher), controller)  # type: ignore[arg-type]
