"""xnvme-bam without a GPU: its kernel runs on the processor, on the queues of a controller."""

import ctypes
import os
from pathlib import Path

import numpy as np

from dali_storage.contract._types import HostBuffer, address_of
from tests.kit.nvme_sim.host_launches import HostLaunches
from tests.nvme_vm.guest import vram


class HostLauncher:
    """As `gpu.module.Launcher`."""

    def __init__(self, gpu: int) -> None:
        self.library = ctypes.CDLL(os.environ["HOST_KERNEL"])
        assert self.library.discard_lost_writes() == 0

    def map_memory(self, memory: HostBuffer) -> int:
        return address_of(memory)

    def map_registers(self, registers: HostBuffer) -> int:
        return address_of(registers)

    def launches(self, pairs: np.ndarray, prp_list_bus: np.ndarray) -> HostLaunches:
        if vram.VramMemory.machine is not None:  # a GPU reaches its memory by these addresses
            for pair in pairs:
                at, nbytes = int(pair["completion_queue"]), int(pair["depth"]) * 16
                ((_, there, _),) = vram.VramMemory.machine.parts(at, nbytes)
                pair["completion_queue"] = there
        return HostLaunches(self.library, pairs, prp_list_bus)


def registers_of_vfio(address: str) -> HostBuffer:
    """BAR0 of the only controller that this process has open by vfio-pci."""
    (line,) = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "vfio-device" in line
    ]
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    return np.frombuffer((ctypes.c_uint8 * (end - start)).from_address(start), np.uint8)
