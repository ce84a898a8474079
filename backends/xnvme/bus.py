"""Memory with bus addresses, for DMA by a controller at a PCI address."""

from __future__ import annotations

import os
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import repeat
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...contract._types import Buffer, HostBuffer, IntArray, address_of
from .device import XnvmeDevice

BusAddresses: TypeAlias = npt.NDArray[np.uint64]

PAGE_SHIFT = 12
"""Of a controller's pages, 4 KiB: libxnvme sets CC.MPS to 0."""

_PAGE_SHIFTS = (21, 16, PAGE_SHIFT)  # of a hugepage, of a page of a GPU, of a controller's page


@dataclass(frozen=True, slots=True, eq=False)
class BusMemory:
    """Memory of the host or of a GPU, and the bus addresses of its pages.

    This object does not keep the memory alive.

    Attributes:
        address: the address of the first byte, for the processor or the GPU.
        nbytes: the length.
        pages: uint64[k], the bus address of each page of the memory, in order. The first page
            contains `address`.
        page_shift: the binary logarithm of a page's bytes: 21, 16 or 12.
    """

    address: int
    nbytes: int
    pages: BusAddresses
    page_shift: int

    @property
    def origin(self) -> int:
        """The address of the first page; `address` may be in the middle of this page."""
        return self.address >> self.page_shift << self.page_shift

    def addresses(self, memory: IntArray) -> BusAddresses:
        """Translate addresses in this memory, int64[n], to bus addresses, uint64[n]."""
        offsets = memory - self.origin
        mask = (1 << self.page_shift) - 1
        found: BusAddresses = self.pages[offsets >> self.page_shift]
        return found + (offsets & mask).astype(np.uint64)


def paged(address: int, nbytes: int, pages: BusAddresses) -> BusMemory:
    """Describe memory by the bus addresses of its 4-KiB pages, in pages as large as possible.

    `address` is a multiple of 4 KiB.
    """
    memory = address + (np.arange(pages.size, dtype=np.int64) << PAGE_SHIFT)
    for shift in _PAGE_SHIFTS:
        page = memory >> shift
        firsts = np.flatnonzero(np.diff(page, prepend=-1))
        starts = pages - (memory & ((1 << shift) - 1)).astype(np.uint64)
        if (starts == starts[firsts][page - page[0]]).all():
            break
    return BusMemory(address, nbytes, starts[firsts], shift)


def allocate(device: XnvmeDevice, nbytes: int) -> tuple[HostBuffer, BusMemory]:
    """Allocate as `XnvmeDevice.allocate()`, with the bus addresses; OSError if these are unknown.

    Only for the backend "upcie".
    """
    memory = device.allocate(nbytes)
    address = address_of(memory)
    count = -(-memory.nbytes >> PAGE_SHIFT)
    pages = np.zeros(count, np.uint64)
    each = range(address, address + memory.nbytes, 1 << PAGE_SHIFT)
    results = range(address_of(pages), address_of(pages) + pages.nbytes, pages.itemsize)
    translate = device.library.with_gil.xnvme_buf_vtophys  # reads a table: no system call
    errors = set(map(translate, repeat(device.pointer), each, results))
    if errors != {0}:
        number = -min(errors)
        raise OSError(number, f"libxnvme has no bus addresses for memory: {os.strerror(number)}")
    return memory, paged(address, memory.nbytes, pages)


class BusMap:
    """The memory of a reader with bus addresses. An entry is removed when its memory dies."""

    def __init__(self) -> None:
        # A deque, because its operations are atomic: memory may die in any thread, and in this one
        # in the middle of a method, when the garbage collector runs.
        self._known: deque[BusMemory] = deque()

    def add(self, memory: Buffer, bus: BusMemory) -> None:
        """Remember the bus addresses of memory until the memory and all its slices are gone."""
        owner = memory.base if isinstance(memory, np.ndarray) else memory
        # The newest comes first, and wins if the address of freed memory is reused.
        self._known.appendleft(bus)
        weakref.finalize(owner, self._known.remove, bus).atexit = False

    def find(self, memory: Buffer) -> BusMemory:
        """Find the reader's memory that contains `memory`, perhaps a slice; else ValueError."""
        start = address_of(memory)
        for bus in self._known.copy():
            if bus.address <= start and start + memory.nbytes <= bus.address + bus.nbytes:
                return bus
        raise ValueError("the buffer is not from Reader.allocate(): it has no bus addresses")
