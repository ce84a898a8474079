"""Readers whose buffers are in the memory of a GPU."""

from importlib.metadata import EntryPoint

import pytest

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract import registry
from dali_storage.contract._types import Buffer
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.reader import Batch
from dali_storage.runtime import cuda

NAME = "overwriting"


class DeviceReader(MemoryReader):
    """Copies samples into the memory of GPU number `gpu`; None: into host memory."""

    def __init__(self, catalog: Catalog, *, gpu: int | None = None) -> None:
        super().__init__(catalog)
        self.gpu = gpu
        self.device = "cpu" if gpu is None else "gpu"

    def allocate(self, nbytes: int) -> Buffer:
        return super().allocate(nbytes) if self.gpu is None else cuda.allocate(nbytes, self.gpu)


class OverwritingReader(DeviceReader):
    """Overwrites a buffer as soon as it may be used again: whoever still reads it gets 0xEE."""

    def read(self, batch: Batch, lane: int) -> None:
        batch.buffer[:] = 0xEE
        super().read(batch, lane)


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it and `memory` the only backends."""
    ours = EntryPoint(NAME, f"{__name__}:OverwritingReader", registry.GROUP)
    memory = EntryPoint("memory", "dali_storage.backends.memory:MemoryReader", registry.GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: [ours, memory])
