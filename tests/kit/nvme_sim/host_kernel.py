"""The kernel on the host, with numpy."""

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dali_storage.backends.gpu import layout
from tests.kit.nvme_sim.reads import Reads
from tests.kit.nvme_sim.simulation import Simulation, pointer

_LIMIT_S = 300.0
BACKWARDS, STILL, DOORBELLS = 1, 2, 3
"""Clocks of the kernel, see host.h."""


class HostKernel:
    """The kernel, with a thread for each lane of each queue pair."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    @contextmanager
    def clock(self, kind: int) -> Iterator[None]:
        """The kernel measures its patience by another clock."""
        in_use = ctypes.c_uint32.in_dll(self._library, "clock_in_use")
        in_use.value = kind
        try:
            yield
        finally:
            in_use.value = 0

    def run(
        self,
        simulation: Simulation,
        reads: Reads,
        *,
        share: int = layout.LANES,
        patience_s: float = 120.0,
        stop: npt.NDArray[np.uint32] | None = None,
    ) -> npt.NDArray[np.uint32]:
        """Submit reads. Their statuses: uint32[n]. A kernel that does not end is stopped."""
        batch, columns = simulation.batch(reads, share, patience_s)
        status = np.full(reads.slba.size, layout.NOT_DONE, np.uint32)
        stop = np.zeros(1, np.uint32) if stop is None else stop
        columns |= {"status": status, "next": np.zeros(1, np.uint32), "stop": stop}
        for name, column in columns.items():
            batch[name] = column.ctypes.data
        limit = threading.Timer(_LIMIT_S, stop.fill, [1])
        limit.start()
        try:
            self.submit_reads(batch, simulation.queues)
        finally:
            limit.cancel()
        return status

    def submit_reads(self, batch: npt.NDArray[Any], queues: npt.NDArray[Any]) -> None:
        """What a launch on a GPU does with a BATCH and QUEUE_PAIR[n]; returns when it ends."""
        self._library.submit_reads(pointer(batch), pointer(queues), queues.size)
