"""The memory of batches for pipelines with a GPU: page-locked host memory, or memory of the GPU.

The plugs of `reading.slots.Memory`, imported only if a pipeline or a backend has a GPU.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali.tensors import TensorGPU, TensorListGPU

from ..contract._types import HostBuffer
from ..contract.errors import BackendUnavailable, NotPageLocked
from ..contract.reader import Reader
from ..contract.views import Contents
from ..reading.buffers import BufferPool, Lease, Room
from ..reading.opening import host_memory
from ..reading.slots import Memory
from ..runtime import cuda
from .compat import SEPARATE
from .hold import Hold


def choose(
    name: str, reader: Reader, gpu: int | None, pinned: bool | None
) -> Callable[[Room], Memory]:
    """Return what makes the memory of a reader's batches.

    `name` is the reader's name in messages; `gpu` that of the pipeline, if it has one; `pinned` the
    argument of `readers.file`. What is returned raises BackendUnavailable or MemoryError if pinned
    is True and memory cannot be page-locked, or if CUDA cannot be used for GPU memory.

    Raises:
        ValueError: the backend uses another GPU than the pipeline, or `pinned` is wrong for them.
    """
    if reader.gpu is not None and reader.gpu != gpu:
        has = "no GPU" if gpu is None else f"GPU {gpu}"
        raise ValueError(
            f"{name}: the reader uses GPU {reader.gpu}, and the pipeline has {has}; set 'gpu' "
            "in backend_options and the pipeline's device_id to the same GPU"
        )
    if pinned and reader.device == "gpu":
        raise ValueError(
            f"{name}: pinned=True is for host memory; leave out pinned if device='gpu'"
        )
    if pinned and gpu is None:
        raise ValueError(f"{name}: pinned=True needs a pipeline with a GPU; set its device_id")
    if gpu is not None and reader.device == "gpu":
        return partial(OnGpu, reader, gpu)
    if gpu is not None and reader.pinned:
        return lambda room: PageLocked(BufferPool(reader.allocate, room))
    if gpu is None or pinned is False:
        return host_memory(name, reader, gpu)
    return partial(_page_locked, name, reader, gpu, must=bool(pinned))


def _page_locked(name: str, reader: Reader, gpu: int, room: Room, *, must: bool) -> Memory:
    """Make page-locked memory, or host memory with a warning if it `must` not be page-locked."""

    def allocate(nbytes: int) -> HostBuffer:
        memory: Any = reader.allocate(nbytes)
        return cuda.page_lock(memory, gpu)

    try:
        allocate(1)  # CUDA may refuse this kind of memory
    except (BackendUnavailable, MemoryError) as error:
        if must:
            raise
        what = f"{name}: its buffers are not page-locked, so DALI copies every sample"
        remedy = "pinned=False silences this warning"
        warnings.warn(f"{what} that goes to the GPU: {error}; {remedy}", NotPageLocked, 2)
        return Memory(BufferPool(reader.allocate, room))
    return PageLocked(BufferPool(allocate, room))


class PageLocked(Memory):
    """Page-locked host memory, which a GPU may read after DALI has dropped it."""

    kind = "pinned"

    def why_not_views(self, reader: Reader, views: Collection[int]) -> str:
        """See Memory."""
        return "its buffers are page-locked for the GPU, unless pinned=False"

    def current(self, gpu: int) -> AbstractContextManager[object]:
        """See Memory; DALI assumes the current GPU for page-locked memory."""
        return cuda.current(gpu)

    def hold(self, executor: Any, gpu: int) -> Callable[[Sequence[Contents]], object]:
        """See Memory."""
        return Hold(executor, gpu).add

    def page_locked(self, contents: Contents) -> bool:
        """See Memory; a format may put samples into new memory, which is not page-locked."""
        if isinstance(contents, np.ndarray):
            return _is_leased(contents)
        # Slices of one buffer have one owner, so few need a check: 6 us for 64 slices, not 40.
        owners = {id(owner): owner for owner in [getattr(it, "obj", it) for it in contents]}
        return all(map(_is_leased, owners.values()))


def _is_leased(content: Any) -> bool:
    """Return whether memory is part of the buffer of its batch, not new memory of a format."""
    leased = False
    while isinstance(content, (memoryview, np.ndarray)):
        leased = leased or isinstance(content, Lease)
        content = content.obj if isinstance(content, memoryview) else content.base
    # A copy of a part of a lease is also a Lease, but in numpy's own memory.
    return leased and content is not None


class OnGpu(Memory):
    """Memory of a GPU, which DALI copies on a stream; buffers are reused after these copies.

    Attributes:
        stream: the stream.
    """

    kind = "gpu"

    def __init__(self, reader: Reader, gpu: int, room: Room) -> None:
        """Make the stream; raises as `cuda.require()`."""
        self.stream = cuda.CudaStream(gpu)
        super().__init__(BufferPool(reader.allocate, room, self.stream.fence))

    def why_not_views(self, reader: Reader, views: Collection[int]) -> str:
        """See Memory."""
        return "batches are in GPU memory"

    def current(self, gpu: int) -> AbstractContextManager[object]:
        """See Memory; DALI takes a stream for one of the current GPU."""
        return cuda.current(gpu)

    def copied(self, contents: Contents) -> tuple[Any, Any, bool]:
        """See Memory."""
        tensors = [TensorGPU(it, "", self.stream.gpu) for it in contents]
        # Not an int, which DALI silently interprets as the default stream.
        stream = ctypes.c_void_p(self.stream.pointer)
        return TensorListGPU(tensors, **SEPARATE), stream, True
