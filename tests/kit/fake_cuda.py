"""CUDA on host memory: the calls of CuPy that contract.cuda makes, and what they require.

Work that is queued on a stream is done as late as it may be: when somebody waits for it.
"""

import ctypes
import itertools
import mmap
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_storage.contract._types import Buffer
from dali_storage.contract.reader import Reader
from dali_storage.runtime import cuda

_RUNTIME = (
    *("eventRecord", "getDeviceCount", "hostRegister", "hostUnregister"),
    *("memcpyAsync", "memsetAsync"),
)
_LIBC = ctypes.CDLL(None, use_errno=True)


class CUDARuntimeError(RuntimeError):
    """What CuPy raises."""


class Cuda:
    """A machine with GPUs, whose memory is host memory.

    Attributes:
        count: how many GPUs it has; None: no driver.
        capacity: bytes that each GPU can still allocate.
        allocated: address -> (GPU, bytes) of GPU memory.
        registered: address -> bytes of page-locked host memory.
        used: the GPUs that were current in a call; each has a context, which takes memory.
        may_run: clear it to make whoever waits for a stream wait.
    """

    def __init__(self) -> None:
        self.count: int | None = 2
        self.capacity = 1 << 30
        self.allocated: dict[int, tuple[int, int]] = {}
        self.registered: dict[int, int] = {}
        self.used: set[int] = set()
        self.streams: dict[int, deque[Callable[[], object]]] = {}
        self.may_run = threading.Event()
        self.may_run.set()
        self.process = os.getpid()
        self.handles = itertools.count(1000)
        self.events: weakref.WeakValueDictionary[int, Event] = weakref.WeakValueDictionary()
        self.thread = threading.local()
        self._lock = threading.RLock()

    # What tests look at

    @property
    def current(self) -> int:
        """The GPU that is current in this thread."""
        return getattr(self.thread, "gpu", 0)

    @property
    def context(self) -> int | None:
        """The GPU whose context the driver API uses in this thread; a new thread has none."""
        return getattr(self.thread, "context", None)

    def contents(self, buffer: Buffer) -> bytes:
        """What is in GPU memory now, without waiting for any stream."""
        address = int(buffer.__cuda_array_interface__["data"][0])  # type: ignore[attr-defined]
        return ctypes.string_at(address, buffer.nbytes)

    def finish(self, stream: int, until: object = None) -> None:
        """Do the work of a stream, as far as one entry."""
        self.may_run.wait()
        with self._lock:
            queue = self.streams[stream]
            while queue and (until is None or until in queue):
                queue.popleft()()

    # What CuPy offers

    def module(self) -> ModuleType:
        module: Any = ModuleType("cupy")
        runtime = {name: getattr(self, name) for name in _RUNTIME}
        module.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                memcpyHostToDevice=1,
                memcpyDeviceToHost=2,
                **runtime,
            ),
            Device=partial(Device, self),
            Memory=partial(Memory, self),
            Stream=partial(Stream, self),
            Event=partial(Event, self),
        )
        return module

    def check(self, makes_context: bool = True) -> None:
        if os.getpid() != self.process:
            os._exit(77)  # CUDA's answer is undefined
        if self.count is None:
            raise CUDARuntimeError("cudaErrorInsufficientDriver")
        if makes_context:
            self.used.add(self.current)

    def getDeviceCount(self) -> int:  # noqa: N802
        self.check(makes_context=False)
        assert self.count is not None
        return self.count

    def hostRegister(self, address: int, nbytes: int, flags: int) -> None:  # noqa: N802
        self.check()
        if nbytes <= 0 or flags != 3 or not _is_mapped(address):
            raise CUDARuntimeError("cudaErrorInvalidValue")
        if address in self.registered:
            raise CUDARuntimeError("cudaErrorHostMemoryAlreadyRegistered")
        if nbytes > self.capacity:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        self.registered[address] = nbytes

    def hostUnregister(self, address: int) -> None:  # noqa: N802
        self.check()
        if not _is_mapped(address):
            os.abort()  # it was freed while a GPU could write to it
        if self.registered.pop(address, None) is None:
            raise CUDARuntimeError("cudaErrorHostMemoryNotRegistered")

    def memcpyAsync(self, to: int, source: int, nbytes: int, kind: int, stream: int) -> None:  # noqa: N802
        self.check()
        self._require(to if kind == 1 else source, nbytes)
        self.queue(stream, partial(ctypes.memmove, to, source, nbytes))

    def memsetAsync(self, to: int, value: int, nbytes: int, stream: int) -> None:  # noqa: N802
        self.check()
        self._require(to, nbytes)
        self.queue(stream, partial(ctypes.memset, to, value, nbytes))

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        self.check()
        recorded = self.events[event]
        recorded.stream, recorded.mark = stream, lambda: None
        self.queue(stream, recorded.mark)

    def queue(self, stream: int, work: Callable[[], object]) -> None:
        self.streams[stream].append(work)

    def _require(self, address: int, nbytes: int) -> None:
        """Refuse a range that is not within the current GPU's memory."""
        for start, (gpu, length) in list(self.allocated.items()):
            if start <= address and address + nbytes <= start + length and gpu == self.current:
                return
        raise CUDARuntimeError("cudaErrorInvalidValue")

    def free(self, address: int, memory: object) -> None:
        for stream in list(self.streams):  # cudaFree waits for the GPU
            self.finish(stream)
        self.capacity += self.allocated.pop(address)[1]


class Device:
    def __init__(self, machine: Cuda, gpu: int) -> None:
        self.machine = machine
        self.gpu = gpu
        self.pci_bus_id = f"0000:C{gpu}:00.0"

    def __enter__(self) -> None:
        self.before = self.machine.current
        if self.before != self.gpu:  # as CuPy
            self.use()

    def __exit__(self, *exc_info: object) -> None:
        Device(self.machine, self.before).use()

    def use(self) -> None:
        self.machine.thread.gpu = self.machine.thread.context = self.gpu

    def synchronize(self) -> None:
        self.machine.check()
        for stream in list(self.machine.streams):
            self.machine.finish(stream)


class Memory:
    def __init__(self, machine: Cuda, nbytes: int) -> None:
        machine.check()
        if nbytes > machine.capacity:
            raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")
        memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        self.ptr = memory.ctypes.data
        machine.capacity -= nbytes
        machine.allocated[self.ptr] = machine.current, nbytes
        weakref.finalize(self, machine.free, self.ptr, memory).atexit = False


class Stream:
    def __init__(self, machine: Cuda, *, non_blocking: bool) -> None:
        machine.check()
        assert non_blocking, "it would wait for the kernels of the default stream"
        self.machine = machine
        self.ptr = next(machine.handles)
        machine.streams[self.ptr] = deque()

    def synchronize(self) -> None:
        self.machine.check()
        self.machine.finish(self.ptr)


class Event:
    def __init__(self, machine: Cuda, *, block: bool, disable_timing: bool) -> None:
        machine.check()
        assert block, "it would occupy a processor while it waits"
        assert disable_timing
        self.machine = machine
        self.ptr = next(machine.handles)
        self.mark: Callable[[], object] | None = None
        self.stream = 0
        machine.events[self.ptr] = self

    def synchronize(self) -> None:
        self.machine.check()
        if self.mark is not None:
            self.machine.finish(self.stream, self.mark)


def _is_mapped(address: int) -> bool:
    page = ctypes.c_void_p(address // mmap.PAGESIZE * mmap.PAGESIZE)
    return _LIBC.mincore(page, ctypes.c_size_t(1), ctypes.create_string_buffer(1)) == 0


class FastCopies(Cuda):
    """Copies at once, by functions in C like CuPy's: no Ctrl-C arrives within one."""

    def __init__(self) -> None:
        super().__init__()
        for name, function in (("memcpyAsync", _LIBC.memmove), ("memsetAsync", _LIBC.memset)):
            prototype = ctypes.CFUNCTYPE(*[ctypes.c_void_p] * (6 if name == "memcpyAsync" else 5))
            setattr(self, name, prototype(ctypes.cast(function, ctypes.c_void_p).value or 0))

    def queue(self, stream: int, work: Callable[[], object]) -> None:
        """Nothing is queued; the locks of a queue would not survive a Ctrl-C."""

    def finish(self, stream: int, until: object = None) -> None:
        """Nothing is left to do."""


def install(monkeypatch: pytest.MonkeyPatch, machine: Cuda | None = None) -> Cuda:
    """A machine whose CuPy is the one that is imported."""
    machine = machine or Cuda()
    monkeypatch.setitem(sys.modules, "cupy", machine.module())
    return machine


def put_on_gpu(reader: Reader, gpu: int = 0) -> Reader:
    """The reader, with its memory on a GPU."""
    reader.device, reader.gpu = "gpu", gpu
    reader.allocate = lambda nbytes: cuda.allocate(nbytes, gpu)  # type: ignore[method-assign]
    return reader
