"""Runs the tests of `make test-gpu` without a GPU: CUDA in host memory, lanes that are threads.

    python -m tests.kit.gpu_on_host KERNEL [arguments of pytest]

KERNEL is the library of the kernel for the host.
"""

import ctypes
import sys
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.gpu import driver, module
from dali_storage.contract._types import HostBuffer, address_of
from dali_storage.contract.errors import BackendUnavailable
from tests.gpu import test_kernel
from tests.gpu.kernel import SHARED
from tests.kit.fake_cuda import FastCopies
from tests.kit.nvme_sim.host_launches import HostLaunches


class HostLauncher:
    """As `module.Launcher`; its addresses differ from those of the host, as a GPU's may."""

    library: Any

    def __init__(self, gpu: int) -> None:
        pass

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
