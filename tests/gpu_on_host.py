"""Runs the tests of `make test-gpu` without a GPU: CUDA in host memory, lanes that are threads.

    python -m tests.gpu_on_host KERNEL [arguments of pytest]

KERNEL is the library of the kernel for the host.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from typing import Any

import numpy as np
import pytest

from dali_storage._types import HostBuffer, address_of
from dali_storage.backends.gpu import driver, layout, module
from dali_storage.errors import BackendUnavailable

from .fake_cuda import FastCopies
from .gpu import test_kernel
from .gpu.kernel import SHARED
from .nvme_sim.simulation import pointer


class HostLaunches:
    """As `module.Launches`."""

    def __init__(self, library: Any, pairs: np.ndarray, prp_list_bus: np.ndarray) -> None:
        self._library, self.pairs = library, pairs
        self._stop = np.zeros(1, np.uint32)
        self._columns: list[dict[str, np.ndarray]] = []
        for pair, bus_addresses in zip(pairs, prp_list_bus, strict=True):
            columns = {"prp_list_bus": bus_addresses, **layout.first_columns(bus_addresses.size)}
            self._columns.append(columns)
            for name, column in columns.items():
                pair[name] = column.ctypes.data

    def start(self, batch: np.ndarray, **columns: np.ndarray) -> None:
        self._stop[0] = 0
        self._status = np.full(int(batch["count"]), layout.NOT_DONE, np.uint32)
        columns |= {"status": self._status, "next": np.zeros(1, np.uint32), "stop": self._stop}
        for name, column in columns.items():
            batch[name] = column.ctypes.data
        self._thread = threading.Thread(target=self._run, args=(batch, columns))
        self._thread.start()

    def _run(self, batch: np.ndarray, columns: dict[str, np.ndarray]) -> None:
        self._library.submit_reads(pointer(batch), pointer(self.pairs), self.pairs.size)

    def wait(self) -> np.ndarray:
        self._thread.join()
        return self._status

    def stop(self) -> None:
        self._stop[0] = 1
        self._thread.join()


class HostLauncher:
    """As `module.Launcher`; its addresses differ from those of the host, as a GPU's may."""

    library: Any

    def __init__(self, gpu: int) -> None:
        self._kept: list[HostBuffer] = []

    def map_memory(self, memory: HostBuffer) -> int:
        return address_of(memory) + 1

    def launches(self, pairs: np.ndarray, prp_list_bus: np.ndarray) -> HostLaunches:
        for name in pairs.dtype.names or ():
            if name in SHARED:
                pairs[name] -= np.uint64(1)
        return HostLaunches(self.library, pairs, prp_list_bus)


def main(kernel: str, *arguments: str) -> int:
    HostLauncher.library = ctypes.CDLL(kernel)
    cuda = FastCopies().module()
    runtime = cuda.cuda.runtime
    runtime.getDeviceProperties = lambda gpu: {"name": b"no GPU"}
    runtime.driverGetVersion = runtime.runtimeGetVersion = lambda: 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cupy", cuda)
        patch.setattr(module, "Launcher", HostLauncher)
        patch.setattr(driver, "attribute", lambda gpu, number: 0)
        patch.setattr(driver, "export", refuse)
        patch.setattr(test_kernel, "COMMANDS", 500)
        return int(pytest.main([*arguments]))


def refuse(buffer: object) -> int:
    raise BackendUnavailable("cuMemGetHandleForAddressRange: no GPU")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
