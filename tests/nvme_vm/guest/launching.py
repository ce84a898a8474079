"""xnvme-bam without a GPU: its kernel runs on the processor, on the queues of a controller."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage._types import HostBuffer, address_of
from dali_storage.backends import xnvme_bam
from dali_storage.backends.gpu import layout, module
from dali_storage.backends.xnvme import queue_pairs

from . import vram
from .controllers import user_space_driver


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


class HostLaunches:
    """As `gpu.module.Launches`."""

    def __init__(self, library: Any, pairs: np.ndarray, prp_list_bus: np.ndarray) -> None:
        self._library, self.pairs = library, pairs
        self._stop = np.zeros(1, np.uint32)
        self._launch = np.zeros(4, np.uint64)  # struct Launch
        self._columns: list[dict[str, np.ndarray]] = []
        for pair, bus_addresses in zip(pairs, prp_list_bus, strict=True):
            columns = {"prp_list_bus": bus_addresses, **layout.first_columns(bus_addresses.size)}
            self._columns.append(columns)
            for name, column in columns.items():
                pair[name] = column.ctypes.data

    def start(self, batch: np.ndarray, **columns: np.ndarray) -> None:
        self._stop[0] = 0
        status = np.full(int(batch["count"]), layout.NOT_DONE, np.uint32)
        columns |= {"status": status, "next": np.zeros(1, np.uint32), "stop": self._stop}
        for name, column in columns.items():
            batch[name] = column.ctypes.data
        self._batch, self._status, self._used = batch, status, columns
        self._launch[:3] = batch.ctypes.data, self.pairs.ctypes.data, self.pairs.size
        self._library.launch_reads(ctypes.c_void_p(self._launch.ctypes.data))

    def wait(self) -> np.ndarray:
        while self._launch[3]:
            time.sleep(1e-4)
        return self._status

    def stop(self) -> None:
        self._stop[0] = 1
        while self._launch[3]:
            time.sleep(1e-4)


@pytest.fixture
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel runs on the processor; with vfio-pci, on registers that libxnvme has mapped."""
    monkeypatch.setattr(module, "Launcher", HostLauncher)
    if user_space_driver() == "vfio-pci":
        monkeypatch.setattr(xnvme_bam, "require_access", lambda address: None)
        monkeypatch.setattr(queue_pairs, "map_registers", registers_of_vfio)


def registers_of_vfio(address: str) -> HostBuffer:
    """BAR0 of the only controller that this process has open by vfio-pci."""
    (line,) = [
        line for line in Path("/proc/self/maps").read_text().splitlines() if "vfio-device" in line
    ]
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    return np.frombuffer((ctypes.c_uint8 * (end - start)).from_address(start), np.uint8)
