"""The part of CUDA's driver API that DMA by other devices needs and CuPy lacks.

Source: the CUDA Driver API, "Memory Management", "Device Management" and "Event Management".
"""

import ctypes
import functools
from typing import Any

from ...contract.errors import BackendUnavailable
from ...runtime import cuda

RDMA_FLUSH_OPTIONS, RDMA_ORDERING, DMA_BUF = 117, 118, 124
"""Attributes of a GPU: CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
_GPU_DIRECT_RDMA_WRITES_ORDERING and _DMA_BUF_SUPPORTED."""

HOST_FLUSH = 1  # a bit of RDMA_FLUSH_OPTIONS: `flush_writes()` works
OWNER = 100  # a value of RDMA_ORDERING: GPU work sees the writes of devices before its start

_LIBRARY = "libcuda.so.1"
_DMA_BUF_FD = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_CURRENT_CONTEXT = 0  # CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX


def attribute(gpu: int, number: int) -> int:
    """Query an attribute of a GPU; 0 if the driver does not know the attribute."""
    device, value = ctypes.c_int(), ctypes.c_int()
    _call(gpu, "cuDeviceGet", ctypes.byref(device), gpu)
    try:
        _call(gpu, "cuDeviceGetAttribute", ctypes.byref(value), number, device)
    except BackendUnavailable:  # CUDA_ERROR_INVALID_VALUE, of a driver before CUDA 11.7
        return 0
    return value.value


def export(buffer: cuda.DeviceBuffer) -> int:
    """Export GPU memory as a dma-buf; the caller closes the descriptor. Or BackendUnavailable."""
    fd = ctypes.c_int(-1)
    start, length = ctypes.c_uint64(buffer.address), ctypes.c_size_t(buffer.nbytes)
    name, flags = "cuMemGetHandleForAddressRange", ctypes.c_uint64(0)
    _call(buffer.gpu, name, ctypes.byref(fd), start, length, _DMA_BUF_FD, flags)
    return fd.value


def flush_writes(gpu: int) -> None:
    """Wait until GPU work sees all writes of devices to its memory."""
    _call(gpu, "cuFlushGPUDirectRDMAWrites", _CURRENT_CONTEXT, OWNER)


@functools.cache
def _library() -> Any:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError as error:
        remedy = "install NVIDIA's driver; in a container, start it with --gpus all"
        raise BackendUnavailable(f"CUDA's driver cannot be loaded: {error}", remedy) from None


def _call(gpu: int, name: str, *arguments: Any) -> None:
    """Call a driver function with the GPU's primary context."""
    library, device = _library(), cuda.require(gpu).cuda.Device(gpu)
    with device:
        device.use()  # `with` alone gives a new thread no context for its initial GPU
        code = getattr(library, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorName(code, ctypes.byref(text))
        why = (text.value or b"unknown error").decode()
        raise BackendUnavailable(f"CUDA's driver on GPU {gpu}: {name}: {why} ({code})")
