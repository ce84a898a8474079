"""An executor of DALI for pipelines with a GPU that records what it is given.

DALI makes no list of GPU tensors and no page-locked tensor where there is no GPU, so these are
records, too. The executor does what DALI's documentation and headers say: it queues its reads of
GPU memory on the stream that it is given, and its reads of page-locked memory until the outputs
are taken.
"""

import ctypes
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali.tensors import TensorGPU

from dali_storage.dali import group, hold
from dali_storage.runtime import cuda
from tests.kit.fake_cuda import Cuda

BATCH = 4


class Tensor:
    """A page-locked tensor of DALI."""

    def __init__(self, piece: Any, layout: str = "", is_pinned: bool = False) -> None:
        self.memory = np.frombuffer(piece, np.uint8)
        self.is_pinned = is_pinned


class TensorList(list[Any]):
    """A list of tensors of DALI, or an array of which they are the rows."""

    def __init__(self, tensors: Any, contiguous: bool = True, is_pinned: bool = False) -> None:
        self.copied = contiguous and isinstance(tensors, list)
        if isinstance(tensors, np.ndarray):
            tensors = [group.TensorCPU(row, "", is_pinned) for row in tensors]
        super().__init__(tensors)


class Executor:
    """The executor of a pipeline.

    Attributes:
        delivered: the samples' bytes of each batch, as the GPU has read them.
        labels: the labels of each batch.
    """

    def __init__(self, machine: Cuda) -> None:
        self.machine = machine
        self.delivered: list[list[bytes]] = []
        self.labels: list[list[int]] = []
        self.pending: deque[Callable[[], None]] = deque()
        self.fails = False
        self.own_stream = cuda.CudaStream(1).pointer

    def SetExternalTLInput(  # noqa: N802
        self, name: str, tensors: Any, stream: Any, use_copy_kernel: bool
    ) -> None:
        if name.endswith("[1]"):
            assert (stream, use_copy_kernel) == (None, False)
            self.labels.append(np.asarray(tensors.as_array()).ravel().tolist())
        elif isinstance(tensors[0], TensorGPU):
            self._copy(tensors, stream, use_copy_kernel)
        else:
            self._share(tensors, stream)

    def _copy(self, tensors: TensorList, stream: Any, use_copy_kernel: bool) -> None:
        assert not tensors.copied, "it would be copied on DALI's stream"
        assert use_copy_kernel
        assert self.machine.current == 1, "DALI takes the stream for one of the current GPU"
        assert type(stream) is ctypes.c_void_p, "DALI takes all else for the default stream"
        parts = [(tensor.data_ptr(), tensor.shape()[0]) for tensor in tensors]
        self.machine.queue(stream.value or 0, partial(deliver, self.delivered, parts))

    def _share(self, tensors: TensorList, stream: Any) -> None:
        assert (stream, tensors.copied) == (None, False)
        assert all(tensor.is_pinned for tensor in tensors)
        parts = [(tensor.memory.ctypes.data, tensor.memory.size) for tensor in tensors]
        self.pending.append(partial(deliver, self.delivered, parts))

    @hold.watched
    def Outputs(self, stream: Any = None) -> None:  # noqa: N802
        read = self.pending.popleft()
        if self.fails:
            self.machine.queue(self.own_stream, read)
            raise RuntimeError("an operator failed")
        if stream is None:
            read()
        else:
            self.machine.queue(stream.value or 0, read)


def deliver(delivered: list[list[bytes]], parts: list[tuple[int, int]]) -> None:
    """What a GPU does: it knows addresses, and keeps nothing alive."""
    delivered.append([ctypes.string_at(address, nbytes) for address, nbytes in parts])


class FakePipeline:
    """What a `ReaderGroup` uses of a pipeline on GPU 1."""

    max_batch_size, num_threads, device_id = BATCH, 1, 1
    _enable_checkpointing, _api_type, _checkpoint = False, None, None
    _batches_to_consume, prefetch_queue_depth = 0, 2
    _graph_outputs: tuple[Any, ...] = ()

    def __init__(self, machine: Cuda, reader: group.ReaderGroup, nodes: list[Any]) -> None:
        self.executor = self._pipe = Executor(machine)
        self._ops = [node.source for node in nodes]
        self._input_callbacks = [reader]

    def get_batch(self) -> group.Delivery:
        """Ask for a batch, as DALI does before it feeds any."""
        reader: Any = self._input_callbacks[0]
        delivery: group.Delivery = reader.get_batch(self, BATCH, 0)
        return delivery

    def run(self, batches: int = 1) -> None:
        for _ in range(batches):
            self.get_batch().feed()

    def take(self, stream: int | None = None) -> None:
        """Take outputs, on a stream if it is given."""
        self.executor.Outputs(None if stream is None else ctypes.c_void_p(stream))
