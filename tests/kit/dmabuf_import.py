"""The kernel module dmabuf_import and the driver API of CUDA, as stand-ins."""

import errno
import fcntl
import os
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.gpu import driver
from tests.kit.fake_cuda import Cuda

ATTACH, DETACH, GET_MAP = 0xC0087547, 0x40047548, 0xC0087549
FLUSH_OPTIONS, ORDERING, DMA_BUF = 117, 118, 124  # attributes of a GPU
BAR1, BAR1_SIZE = 0x38_0000_0000, 64 << 20
ARENA = 4 << 20  # bytes

Segments = list[tuple[int, int]]


class Module:
    """dmabuf_import 0.8.1, as far as its ioctls can be seen: one list for all processes.

    Attributes:
        segments: where the next dma-buf is: bus addresses and bytes.
        fails: request -> errno, or an exception.
        locks: whether its file was locked, at each ATTACH.
        verifies: as after 0.8.1: it refuses a number that is attached for another dma-buf.
        buffers: descriptor number -> inode of the dma-buf.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments: Segments = [(BAR1, ARENA)]
        self.attached: dict[int, Segments] = {}
        self.calls: list[tuple[int, int]] = []
        self.fails: dict[int, int | BaseException] = {}
        self.locks: list[bool] = []
        self.verifies = False
        self.buffers: dict[int, int] = {}
        monkeypatch.setattr(fcntl, "ioctl", self.ioctl)

    def ioctl(self, fd: int, request: int, argument: Any) -> int:
        head = np.frombuffer(argument, np.int32)
        number = int(head[0])
        self.calls.append((request, number))
        fails = self.fails.get(request)
        if fails is not None and not (request == GET_MAP and number not in self.attached):
            raise OSError(fails, "") if isinstance(fails, int) else fails
        is_known = self.verifies and request != DETACH and number in self.attached
        if is_known and os.fstat(number).st_ino != self.buffers[number]:
            raise OSError(errno.ESTALE, "")
        if request == ATTACH:
            self.buffers[number] = os.fstat(number).st_ino  # it is open
            self.locks.append(is_locked(fd))
            segments = self.attached.setdefault(number, self.segments)
            np.frombuffer(argument, np.uint32)[1] = len(segments)
        elif request == GET_MAP:
            if number not in self.attached:
                raise OSError(errno.EINVAL, "")
            room = int(head[1]) + 1  # old versions write one too many
            written = np.array(self.attached[number][:room], np.uint64).reshape(-1)
            np.frombuffer(argument, np.uint64)[1 : 1 + written.size] = written
        elif self.attached.pop(number, None) is None:
            raise OSError(errno.EINVAL, "")
        return 0


def is_locked(fd: int) -> bool:
    """Whether somebody who opens the same file cannot lock it."""
    with open(f"/proc/self/fd/{fd}", "rb") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Driver:
    """libcuda."""

    def __init__(self, machine: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        self.attributes = {DMA_BUF: 1, ORDERING: 100, FLUSH_OPTIONS: 1}
        self.code = 0
        self.flushed: list[tuple[int, int]] = []
        self.exported: list[tuple[int, int, int]] = []
        monkeypatch.setattr(driver, "_library", lambda: self)

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = 40 + ordinal
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:  # noqa: N802
        if number not in self.attributes:
            return 1
        assert device.value == 40
        value._obj.value = self.attributes[number]
        return 0

    def cuMemGetHandleForAddressRange(  # noqa: N802
        self, fd: Any, start: Any, length: Any, kind: int, flags: Any
    ) -> int:
        if self.code or self.machine.context is None:
            return self.code or 201
        self.exported.append((start.value, length.value, kind))
        fd._obj.value = os.memfd_create("dma-buf")
        return 0

    def cuFlushGPUDirectRDMAWrites(self, target: int, scope: int) -> int:  # noqa: N802
        if self.machine.context is None:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        self.flushed.append((target, scope))
        return self.code

    def cuGetErrorName(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_OF_A_TEST"
        return 0
