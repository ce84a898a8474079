"""Handles and commands that the tests of libxnvme's bindings share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.xnvme.abi import COMMAND
from dali_storage.backends.xnvme.device import XnvmeDevice
from dali_storage.backends.xnvme.file_queue import FileQueue, FileReads, open_anonymous
from dali_storage.backends.xnvme.library import Library
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.backends.xnvme.read_commands import ReadCommands


def open_file(library: Library, path: object, **options: Any) -> XnvmeDevice:
    options = {"io": "emu", "sync": "psync", "file": True} | options
    return XnvmeDevice(library, os.fsencode(str(path)), **options)


def open_ramdisk(library: Library, io: str) -> XnvmeDevice:
    """A namespace in memory, which no process but this one sees."""
    main = {"nil": "ramdisk", "emu": "ramdisk_emu", "thrpool": "ramdisk_thrpool"}[io]
    return XnvmeDevice(library, b"1GB", be=main if library.version == "main" else "ramdisk", io=io)


def access_mode(fd: int) -> int:
    (line,) = [
        line
        for line in Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
        if "flags:" in line
    ]
    return int(line.split()[1], 8) & os.O_ACCMODE


def offers(xnvme: Library, io: str) -> bool:
    try:
        open_anonymous(xnvme, io).close()
        FileQueue(xnvme, io, 1).close()
    except OSError:
        return False
    return True


def require_io(xnvme: Library, io: str) -> None:
    """Skip the calling test if a libxnvme does not offer an implementation."""
    if not offers(xnvme, io):
        pytest.skip(f"this libxnvme does not offer {io} here")


@contextmanager
def offered(library: Library, io: str) -> Iterator[None]:
    require_io(library, io)
    yield


class Reads(ReadCommands):
    """Reads of blocks of 512 bytes, `nlb` each, that remember the order of their completions."""

    def __init__(self, queue: Queue, slba: np.ndarray, nlb: int, memory: np.ndarray) -> None:
        addresses = memory.ctypes.data + np.arange(slba.size) * nlb * 512
        lengths = np.full(slba.size, nlb * 512)
        options = {"lba_bytes": 512, "reports_length": False}
        super().__init__(queue, slba * 512, addresses, lengths, **options)
        self.ended: list[int] = []

    @property
    def commands(self) -> np.ndarray:
        return self._heads.view(COMMAND)

    def complete(self, indices: np.ndarray, results: np.ndarray, statuses: np.ndarray) -> list[int]:
        self.ended += indices.tolist()
        return super().complete(indices, results, statuses)


class Descriptors(FileReads):
    """Reads of open files."""

    def __init__(self, queue: FileQueue, fds: list[int], memory: np.ndarray) -> None:
        """`memory` is uint8[n, size]."""
        addresses = memory.ctypes.data + np.arange(len(fds)) * memory.strides[0]
        sizes = np.full(len(fds), memory.shape[1])
        super().__init__(queue, fds, addresses, sizes)
        self.ended: list[int] = []
        self.waits = 0

    def end(self, numbers: list[int]) -> None:
        self.ended += numbers

    def will_wait(self) -> None:
        self.waits += 1
