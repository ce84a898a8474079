"""The kernel of submit.cu on a GPU: compilation, launch, wait and stop, by CuPy."""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...contract._types import HostBuffer, address_of
from ...contract.errors import BackendUnavailable
from ...runtime import cuda
from ..xnvme.bus import BusAddresses
from . import layout

_CAPABILITY = 70  # Volta: __nanosleep, and atomics and fences of the whole system
_STATUS = np.dtype("<u4")

Statuses = npt.NDArray[np.uint32]


class Launcher:
    """The kernel compiled for a GPU, with the means to launch it.

    Attributes:
        gpu: the number of the GPU.
    """

    def __init__(self, gpu: int) -> None:
        """Compile the kernel.

        Raises:
            BackendUnavailable: no CuPy, no such GPU, or the kernel cannot be compiled for it.
        """
        self.gpu = gpu
        self.cupy = cuda.require(gpu)
        device = self.cupy.cuda.Device(gpu)
        capability = str(device.compute_capability)
        if int(capability) < _CAPABILITY:
            what = f"GPU {gpu} has compute capability {capability[:-1]}.{capability[-1]}"
            remedy = "use a GPU of compute capability 7.0 (Volta) or later, or xnvme-block"
            raise BackendUnavailable(f"{what}, too low to submit NVMe commands", remedy)
        try:
            with device:
                module = self.cupy.RawModule(code=layout.source(), options=("--std=c++17",))
                module.compile()
                self.kernel = module.get_function("submit_reads")
        except Exception as error:  # of CuPy's compiler, of CUDA's driver, or no NVRTC
            what = f"the kernel cannot be compiled for GPU {gpu} (sm_{capability}): {error}"
            remedy = "install CuPy, NVRTC and headers of CUDA's runtime in versions for this GPU"
            raise BackendUnavailable(what, remedy) from None

    def map_memory(self, memory: HostBuffer) -> int:
        """Page-lock host memory until freed; return its address for the kernel."""
        return cuda.device_address(cuda.page_lock(memory, self.gpu), self.gpu)

    def map_registers(self, registers: HostBuffer) -> int:
        """Register mapped registers of another device; return their address for the kernel."""
        return cuda.device_address(cuda.map_registers(registers, self.gpu), self.gpu)

    def launches(self, pairs: npt.NDArray[np.void], prp_list_bus: BusAddresses) -> Launches:
        """Prepare launches of the kernel that drive some queue pairs, one after the other."""
        return Launches(self, pairs, prp_list_bus)


class Launches:
    """Launches of the kernel for the same queue pairs, one at a time, on a stream of their own.

    All methods raise an OSError if the GPU has failed, and a MemoryError if memory runs out.

    Attributes:
        pairs: QUEUE_PAIR[k], their state after the last launch, in page-locked memory.
    """

    def __init__(
        self, launcher: Launcher, pairs: npt.NDArray[np.void], prp_list_bus: BusAddresses
    ) -> None:
        """Prepare launches for unused queue pairs.

        Args:
            launcher: has the kernel.
            pairs: QUEUE_PAIR[k], with the addresses of memory shared with the controller.
            prp_list_bus: uint64[k, depth], the bus addresses of their PRP lists.
        """
        self._launcher = launcher
        self._cupy = launcher.cupy
        with self._on_gpu():
            self._stream = self._cupy.cuda.Stream(non_blocking=True)
            self._event = self._cupy.cuda.Event(block=True, disable_timing=True)
            gpu, stop = self._launcher.gpu, self._page_locked(4)
            self._stop, self._stop_address = stop.view(_STATUS), cuda.device_address(stop, gpu)
            self._device = cuda.allocate(1, gpu)  # for the columns of a batch
            self._host = self._page_locked(self._device.nbytes)
            self._status = slice(0, 0)
            self._rows = self._page_locked(pairs.nbytes)
            self.pairs = self._rows.view(layout.QUEUE_PAIR)
            self.pairs[:] = pairs
            columns: dict[tuple[int, str], npt.NDArray[Any]] = {}
            for index, bus_addresses in enumerate(prp_list_bus):
                named = layout.first_columns(bus_addresses.size).items()
                columns[index, "prp_list_bus"] = bus_addresses
                columns |= {(index, name): column for name, column in named}
            places, nbytes = _pack([self.pairs, *columns.values()])
            self._own = cuda.allocate(nbytes, gpu)  # the kernel's own
            for (index, name), place in zip(columns, places[1:], strict=True):
                self.pairs[name][index] = self._own.address + place.start
            for place, column in zip(places, [self.pairs, *columns.values()], strict=True):
                self._own[place] = _bytes(column)

    def start(self, batch: npt.NDArray[np.void], **columns: npt.NDArray[Any]) -> None:
        """Launch the kernel for a BATCH with the columns slba, blocks, offset and page_bus.

        After a failure, call `stop()`.
        """
        with self._on_gpu():
            columns["next"] = np.zeros(1, _STATUS)
            columns["status"] = np.full(int(batch["count"]), layout.NOT_DONE, _STATUS)
            places, nbytes = _pack(columns.values())
            if nbytes > self._device.nbytes:
                device = cuda.allocate(nbytes + nbytes // 8, self._launcher.gpu)
                self._host = self._page_locked(device.nbytes)
                self._device = device  # last: the other one may be longer
            for (name, column), place in zip(columns.items(), places, strict=True):
                self._host[place] = _bytes(column)
                batch[name] = self._device.address + place.start
            batch["stop"] = self._stop_address
            self._status = places[-1]
            self._stop[0] = 0
            self._copy("memcpyHostToDevice", self._device.address, address_of(self._host), nbytes)
            with self._stream:
                arguments = batch, np.uint64(self._own.address)
                self._launcher.kernel((self.pairs.size,), (layout.LANES,), arguments)
            status = self._host[self._status]
            source = self._device.address + self._status.start
            self._copy("memcpyDeviceToHost", address_of(status), source, status.nbytes)
            self._fetch_pairs()
            self._cupy.cuda.runtime.eventRecord(self._event.ptr, self._stream.ptr)

    def wait(self) -> Statuses:
        """Wait for the end of the kernel, without the interpreter lock; uint32[n], the statuses."""
        with self._on_gpu():
            self._event.synchronize()
        return self._host[self._status].view(_STATUS).copy()

    def stop(self) -> None:
        """Stop the kernel, even with commands in flight, and wait for its end; updates `pairs`."""
        self._stop[0] = 1
        with self._on_gpu():
            self._stream.synchronize()
            self._fetch_pairs()
            self._stream.synchronize()

    @contextlib.contextmanager
    def _on_gpu(self) -> Iterator[None]:
        """Make the GPU current, and turn errors of CUDA and its driver into OSErrors."""
        try:
            with self._cupy.cuda.Device(self._launcher.gpu):
                yield
        except RuntimeError as error:  # the base class of both in CuPy
            what = f"GPU {self._launcher.gpu} has failed to submit commands: {error}"
            raise OSError(errno.EIO, what) from None

    def _copy(self, kind: str, to: int, source: int, nbytes: int) -> None:
        """Queue a copy; `kind` is the name of a cudaMemcpyKind."""
        runtime = self._cupy.cuda.runtime
        runtime.memcpyAsync(to, source, nbytes, getattr(runtime, kind), self._stream.ptr)

    def _fetch_pairs(self) -> None:
        nbytes = self.pairs.nbytes
        self._copy("memcpyDeviceToHost", address_of(self._rows), self._own.address, nbytes)

    def _page_locked(self, nbytes: int) -> HostBuffer:
        """Allocate whole pages of page-locked memory; return the first `nbytes`."""
        memory = np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8)
        return cuda.page_lock(memory, self._launcher.gpu)[:nbytes]


def _pack(columns: Any) -> tuple[list[slice], int]:
    """Lay out columns one after the other, at multiples of 8 bytes; also return the total bytes."""
    ends = np.cumsum([-(-column.nbytes // 8) * 8 for column in columns]).tolist()
    starts = [0, *ends[:-1]]
    return [
        slice(start, start + column.nbytes) for start, column in zip(starts, columns, strict=True)
    ], ends[-1]


def _bytes(column: npt.NDArray[Any]) -> HostBuffer:
    return np.ascontiguousarray(column).reshape(-1).view(np.uint8)
