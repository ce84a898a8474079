"""Launches of the kernel on the host, as of that on a GPU."""

import time
from typing import Any

import numpy as np

from dali_storage.backends.gpu import layout
from tests.kit.nvme_sim.simulation import pointer


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
        self._library.launch_reads(pointer(self._launch))

    def wait(self) -> np.ndarray:
        while self._launch[3]:
            time.sleep(1e-4)
        return self._status

    def stop(self) -> None:
        self._stop[0] = 1
        while self._launch[3]:
            time.sleep(1e-4)
