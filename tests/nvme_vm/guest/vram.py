"""A GPU whose memory is libxnvme's hugepages, for production code that reads to GPU memory.

Only what makes GPU memory is replaced: CuPy, and the import of dma-bufs. As on a GPU, the processor
cannot read the memory by its address, and its pages are anywhere on the bus: in a random order.
"""

import ctypes
import mmap
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage.backends import xnvme_block
from dali_storage.backends.gpu.dmabuf import PeerMemory
from dali_storage.backends.xnvme import bus
from dali_storage.backends.xnvme.bus import BusMap
from dali_storage.backends.xnvme.namespace import Namespace, open_namespace
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract._types import address_of
from dali_storage.contract.reader import Reader
from dali_storage.runtime import cuda
from tests.kit.fake_cuda import Cuda, install

_PAGE = 64 << 10  # bytes
_UNIT = 2 << 20  # bytes
_PROT_NONE = 0


class Vram(Cuda):
    """CUDA whose GPU memory is in pages of 64 KiB of host memory.

    Attributes:
        pages: address -> the host addresses of the pages of GPU memory.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[int, np.ndarray] = {}

    def memcpyAsync(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:  # noqa: N802
        self.check()
        self._require(to if kind == 1 else source, nbytes)

        def copy() -> None:
            for done, here, part in self.parts(to if kind == 1 else source, nbytes):
                there = (to if kind == 2 else source) + done
                ctypes.memmove(*((here, there) if kind == 1 else (there, here)), part)

        self.queue(stream, copy)

    def memsetAsync(self, to: int, value: int, nbytes: int, stream: int) -> None:  # noqa: N802
        self.check()
        self._require(to, nbytes)

        def fill() -> None:
            for _, here, part in self.parts(to, nbytes):
                ctypes.memset(here, value, part)

        self.queue(stream, fill)

    def parts(self, address: int, nbytes: int) -> list[tuple[int, int, int]]:
        """GPU memory in host memory: bytes before each part, its address, its bytes."""
        ((start, pages),) = [
            (start, pages)
            for start, pages in self.pages.items()
            if start <= address < start + pages.size * _PAGE
        ]
        parts, done = [], 0
        while done < nbytes:
            page, within = divmod(address + done - start, _PAGE)
            part = min(_PAGE - within, nbytes - done)
            parts.append((done, int(pages[page]) + within, part))
            done += part
        return parts


class VramMemory(PeerMemory):
    """GPU memory of a `Vram`; takes hugepages from the namespace that was opened last."""

    machine: ClassVar[Vram | None] = None
    namespace: ClassVar[Namespace | None] = None
    flushes: ClassVar[int] = 0

    def __init__(self, gpu: int, controller: str) -> None:
        cuda.require(gpu)
        self._gpu, self._known = gpu, BusMap()

    def allocate(self, nbytes: int) -> cuda.DeviceBuffer:
        nbytes = -(-max(nbytes, 1) // _UNIT) * _UNIT
        machine, namespace = self.machine, self.namespace
        assert machine is not None
        assert namespace is not None
        memory, found = bus.allocate(namespace.device, nbytes + _PAGE)
        order = np.random.default_rng(nbytes).permutation(nbytes // _PAGE)
        pages = -(-address_of(memory) // _PAGE) * _PAGE + order * _PAGE
        # Addresses only: whoever reads or writes there is killed.
        addresses = np.frombuffer(mmap.mmap(-1, nbytes + _UNIT, prot=_PROT_NONE), np.uint8)
        address = -(-address_of(addresses) // _UNIT) * _UNIT
        machine.pages[address] = pages
        machine.allocated[address] = self._gpu, nbytes
        buffer = cuda.DeviceBuffer(address, nbytes, self._gpu, (addresses, memory))
        weakref.finalize(buffer, self._free, machine, address).atexit = False
        each = (pages[:, None] + np.arange(0, _PAGE, 4096)).reshape(-1)
        self._known.add(buffer, bus.paged(address, nbytes, found.addresses(each)))
        return buffer

    def flush(self) -> None:
        type(self).flushes += 1

    @staticmethod
    def _free(machine: Vram, address: int) -> None:
        del machine.pages[address], machine.allocated[address]


@contextmanager
def in_use(
    product: ModuleType = xnvme_block, backend: type[Reader] = XnvmeBlockReader
) -> Iterator[None]:
    """Readers of a backend, of the module `product`, that are opened here read to GPU memory."""
    if VramMemory.machine is not None:
        yield
        return
    original: Any = backend.__init__

    def init(reader: Reader, *arguments: Any, **options: Any) -> None:
        original(reader, *arguments, mem="gpu", **options)

    def remember(*arguments: Any, **options: Any) -> Namespace:
        VramMemory.namespace = opened = open_namespace(*arguments, **options)
        return opened

    with pytest.MonkeyPatch.context() as patch:
        machine = Vram()
        install(patch, machine)
        patch.setattr(VramMemory, "machine", machine)
        patch.setattr(product, "PeerMemory", VramMemory)
        patch.setattr(product, "open_namespace", remember)
        patch.setattr(backend, "__init__", init)
        yield
        VramMemory.namespace = None  # or its device would stay open
