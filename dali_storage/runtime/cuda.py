"""Memory and streams of NVIDIA GPUs, and page-locked host memory.

CuPy is imported on first use. Only the primary context of a GPU is used, shared with CuPy, DALI and
PyTorch. Every call is made with its GPU current: with another current GPU, a call could create a
context there, which costs GPU memory.

Sources: the CUDA Runtime API, "Memory Management", "Stream Management" and "Event Management"; the
CUDA Array Interface, version 3.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..contract._types import HostBuffer, address_of
from ..contract.errors import BackendUnavailable

_MAPPED = 3  # cudaHostRegisterPortable | cudaHostRegisterMapped: for all contexts, and for kernels
_IO_MEMORY = 4  # cudaHostRegisterIoMemory
_UNIT = 2 << 20  # bytes; GPU memory is exported to other devices in units of this size


def require(gpu: int = 0) -> Any:
    """Return the module `cupy`; require that GPU number `gpu` can be used.

    Raises:
        BackendUnavailable: CuPy, the driver or the GPU is missing; names the remedy.
    """
    try:
        import cupy

        runtime = cupy.cuda.runtime
    except Exception as error:  # of any kind, if it was built for another NumPy or CUDA
        from ..contract.families import install_dali

        what = f"GPU memory and page-locked memory need CuPy, which cannot be imported: {error}"
        raise BackendUnavailable(what, install_dali()) from None
    try:
        count = int(runtime.getDeviceCount())
    except RuntimeError as error:
        remedy = "install NVIDIA's driver; in a container, start it with --gpus all"
        raise BackendUnavailable(f"CUDA cannot be used: {error}", remedy) from None
    if not 0 <= gpu < count:
        remedy = f"choose one from 0 to {count - 1}, or see CUDA_VISIBLE_DEVICES"
        raise BackendUnavailable(f"there is no GPU {gpu}", remedy)
    return cupy


class DeviceBuffer:
    """One-dimensional memory of a GPU; a `Buffer`.

    DALI and CuPy accept the buffer and its slices by the CUDA Array Interface. Copies and fills are
    complete when the call returns.

    Attributes:
        address: the address of the first byte, for CUDA kernels and DMA of the GPU.
        nbytes: the length.
        gpu: the number of the GPU.
    """

    __slots__ = ("__weakref__", "_owner", "address", "gpu", "nbytes")

    def __init__(self, address: int, nbytes: int, gpu: int, owner: object) -> None:
        """Wrap memory, which stays allocated as long as `owner` lives."""
        self.address = address
        self.nbytes = nbytes
        self.gpu = gpu
        self._owner = owner

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        data = self.address, False  # not read-only
        return {"data": data, "shape": (self.nbytes,), "typestr": "|u1", "version": 3}

    def __len__(self) -> int:
        return self.nbytes

    def __getitem__(self, part: slice) -> DeviceBuffer:
        taken = range(self.nbytes)[part]
        if taken.step != 1:
            raise ValueError(f"a slice of GPU memory has no step: {part}")
        return DeviceBuffer(self.address + taken.start, len(taken), self.gpu, self)

    def __setitem__(self, part: slice, value: Any) -> None:
        to = self[part]
        if isinstance(value, int):
            to._queue("memsetAsync", to.address, value, to.nbytes)
            return
        host = np.frombuffer(value, np.uint8)
        if host.nbytes != to.nbytes:
            raise ValueError(f"cannot copy {host.nbytes} bytes to {to.nbytes} bytes")
        to._copy(to.address, address_of(host), "memcpyHostToDevice")

    def tobytes(self) -> bytes:
        """Copy to host memory."""
        host = np.empty(self.nbytes, np.uint8)
        self._copy(address_of(host), self.address, "memcpyDeviceToHost")
        return host.tobytes()

    def _copy(self, to: int, source: int, kind: str) -> None:
        runtime = require(self.gpu).cuda.runtime
        self._queue("memcpyAsync", to, source, self.nbytes, getattr(runtime, kind))

    def _queue(self, function: str, *arguments: int) -> None:
        """Run the runtime's `function` on these bytes; wait until it is done."""
        if not self.nbytes:
            return
        cupy = require(self.gpu)
        with cupy.cuda.Device(self.gpu):
            stream = _copies(cupy, self.gpu)
            start = partial(getattr(cupy.cuda.runtime, function), *arguments, stream.ptr)
            # One bytecode instruction: after a Ctrl-C in between, the GPU would still write.
            deque(map(operator.call, (start, stream.synchronize)), 0)


@functools.cache
def _copies(cupy: Any, gpu: int) -> Any:
    """Return the stream of our copies, which does not wait for kernels of the default stream.

    cudaMemcpy is not an alternative: it may return before the GPU has the bytes.
    """
    with cupy.cuda.Device(gpu):
        return cupy.cuda.Stream(non_blocking=True)


def allocate(nbytes: int, gpu: int) -> DeviceBuffer:
    """Allocate at least `nbytes` of GPU memory by cudaMalloc: the only exportable kind.

    The memory is freed with its last slice. The length is a multiple of 2 MiB.
    """
    cupy = require(gpu)
    nbytes = -(-max(nbytes, 1) // _UNIT) * _UNIT
    with cupy.cuda.Device(gpu):
        try:
            memory = cupy.cuda.Memory(nbytes)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            what = f"GPU {gpu} cannot allocate {nbytes} bytes ({error})"
            raise MemoryError(
                f"{what}: use smaller batches or a smaller prefetch_queue_depth"
            ) from None
    return DeviceBuffer(memory.ptr, nbytes, gpu, memory)


def page_lock(buffer: HostBuffer, gpu: int) -> HostBuffer:
    """Page-lock host memory until the returned array dies.

    Returns `buffer`, or an array on the same memory if `buffer` owns the memory. A GPU reads
    page-locked memory by DMA, without a copy by the processor.

    Raises:
        BackendUnavailable: as `require()`.
        MemoryError: CUDA cannot page-lock it.
    """
    runtime = require(gpu).cuda.runtime
    try:
        return _register(buffer, gpu, _MAPPED)
    except runtime.CUDARuntimeError as error:
        what = f"CUDA cannot page-lock {buffer.nbytes} bytes: {error}"
        raise MemoryError(f"{what}; use smaller batches, or pinned=False or another mem") from None


def map_registers(registers: HostBuffer, gpu: int) -> HostBuffer:
    """Let a GPU write to mapped registers of another device until the returned array dies.

    Raises:
        BackendUnavailable: as `require()`; or CUDA cannot map the registers on this machine.
    """
    runtime = require(gpu).cuda.runtime
    try:
        return _register(registers, gpu, _MAPPED | _IO_MEMORY)
    except runtime.CUDARuntimeError as error:
        what = f"CUDA does not map the registers of another device for GPU {gpu}: {error}"
        remedy = "run as root, with the open kernel modules of NVIDIA's driver"
        raise BackendUnavailable(what, remedy) from None


def _register(memory: HostBuffer, gpu: int, flags: int) -> HostBuffer:
    """Register memory with CUDA until the returned array dies."""
    cupy = require(gpu)
    runtime, address = cupy.cuda.runtime, address_of(memory)
    if memory.base is None:  # it owns the memory, which nothing else could keep
        memory = np.frombuffer(memory.data, np.uint8)
    # It keeps the owner of the memory: since numpy 2.5, an array gives up its base before it calls
    # its weak references. A weak reference to an mmap would not do: it is called after munmap.
    # It is made first: after a Ctrl-C, CUDA would take the next mapping there for this one.
    owner = memory.base
    finalizer = weakref.finalize(memory, _unregister, os.getpid(), cupy, gpu, address, owner)
    finalizer.atexit = False
    try:
        with cupy.cuda.Device(gpu):
            runtime.hostRegister(address, memory.nbytes, flags)
    except runtime.CUDARuntimeError:  # perhaps it was known already, for somebody else
        finalizer.detach()
        raise
    return memory


def device_address(buffer: HostBuffer, gpu: int) -> int:
    """Return the address of page-locked memory or mapped registers for kernels of a GPU."""
    cupy = require(gpu)
    with cupy.cuda.Device(gpu):
        return int(cupy.cuda.runtime.pointerGetAttributes(address_of(buffer)).devicePointer)


def _unregister(process: int, cupy: Any, gpu: int, address: int, owner: object) -> None:
    """Unregister memory before `owner` frees it."""
    if os.getpid() == process:  # CUDA does not work in a fork
        # The driver is shutting down, or a Ctrl-C came before it was registered.
        with contextlib.suppress(cupy.cuda.runtime.CUDARuntimeError), cupy.cuda.Device(gpu):
            cupy.cuda.runtime.hostUnregister(address)


def current(gpu: int) -> contextlib.AbstractContextManager[Any]:
    """Make a GPU the current one of this thread."""
    device: contextlib.AbstractContextManager[Any] = require(gpu).cuda.Device(gpu)
    return device


def synchronize(gpu: int) -> None:
    """Block, without the GIL, until a GPU has done all queued work."""
    require(gpu).cuda.Device(gpu).synchronize()


class CudaStream:
    """A stream on which DALI copies out of GPU memory.

    Attributes:
        gpu: the number of its GPU.
        pointer: its cudaStream_t.
    """

    def __init__(self, gpu: int) -> None:
        """Create the stream; raises as `require()`."""
        cupy = require(gpu)
        self.gpu = gpu
        self._process = os.getpid()
        with cupy.cuda.Device(gpu):
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self.pointer = int(self._stream.ptr)

    def fence(self) -> Callable[[], None]:
        """Mark the copies queued so far; the result blocks until they are done, without the GIL."""
        if os.getpid() != self._process:  # CUDA does not work in a fork
            return lambda: None
        return fence(self.pointer, self.gpu)


def fence(stream: int, gpu: int) -> Callable[[], None]:
    """Mark the work queued on a stream (a cudaStream_t); the result blocks until it is done.

    The interpreter lock (GIL) is released meanwhile.
    """
    cupy = require(gpu)
    with cupy.cuda.Device(gpu):
        event = cupy.cuda.Event(block=True, disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, stream)

    def wait() -> None:
        with cupy.cuda.Device(gpu):
            event.synchronize()

    return wait
