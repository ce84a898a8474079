"""Measures the kernel on the host: reads of 4 KiB by the simulated controller.

    python -m tests.kit.nvme_sim

The kernel, the controller and its copies share the processors of this machine.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dali_storage.backends.gpu.layout import PAGE
from tests.kit.nvme_sim.build import build_controller, build_kernel
from tests.kit.nvme_sim.host_kernel import HostKernel
from tests.kit.nvme_sim.reads import Setup, place
from tests.kit.nvme_sim.simulation import Simulation

COMMANDS, RUNS = 100_000, 5


def main() -> None:
    image = np.random.default_rng(0).integers(0, 256, 64 << 20, np.uint8)
    print("lanes  queues  depth  commands/s, best of", RUNS)
    with TemporaryDirectory() as folder:
        controller = build_controller(Path(folder, "controller"))
        kernel = HostKernel(build_kernel(Path(folder, "kernel"), 1))
        for queues, depth in ((1, 2), (1, 64), (2, 64), (2, 256), (4, 256)):
            setup = Setup(queues=queues, depth=depth, delay=0)
            rate = max(measure(kernel, controller, setup, image) for _ in range(RUNS))
            print(f"{1:5}  {queues:6}  {depth:5}  {rate:,.0f}")


def measure(kernel: HostKernel, controller: Path, setup: Setup, image: np.ndarray) -> float:
    """Commands per second of one run."""
    random = np.random.default_rng(setup.seed)
    blocks = np.full(COMMANDS, PAGE >> setup.block_shift)
    reads, arena_bytes = place(random, blocks, setup, image.size)
    with Simulation(controller, setup, image=image, arena_bytes=arena_bytes) as simulation:
        start = time.perf_counter()
        status = kernel.run(simulation, reads)
        taken = time.perf_counter() - start
    assert not status.any()
    assert not simulation.refused()
    return COMMANDS / taken


if __name__ == "__main__":
    main()
