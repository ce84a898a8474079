"""Physical Region Pages (PRPs): the bus addresses of a command's pages.

A command has room for two, PRP1 and PRP2. For a read to more than two pages, PRP2 is the address of
a list: a page with the addresses of the second and all following pages.

Source: NVM Express Base Specification 2.0, section 4.1.1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...contract._types import IntArray, address_of
from .bus import PAGE_SHIFT, BusAddresses, BusMemory, allocate
from .device import XnvmeDevice

PAGE = 1 << PAGE_SHIFT  # bytes
_LIST_ENTRIES = PAGE // 8  # with PRP1 enough for 2 MiB that begin in the middle of a page


@dataclass(frozen=True, slots=True, eq=False)
class Prps:
    """The PRPs of n commands.

    Attributes:
        first: uint64[n], PRP1.
        second: uint64[n], PRP2 of a command for two pages, else 0.
        entries: uint64[k], the entries of all lists, one list after the other.
        starts: int64[n], the start of each command's list in `entries`.
        counts: int64[n], the length of each list; 0 for a command for one or two pages.
    """

    first: BusAddresses
    second: BusAddresses
    entries: BusAddresses
    starts: IntArray
    counts: IntArray


def prps(bus: BusMemory, memory: IntArray, lengths: IntArray) -> Prps:
    """Compute the PRPs of reads to `memory`, int64[n] addresses, of `lengths` bytes, at least 1."""
    pages = memory >> PAGE_SHIFT << PAGE_SHIFT
    count = (memory + lengths - 1 >> PAGE_SHIFT) - (memory >> PAGE_SHIFT) + 1
    second = np.zeros(memory.size, np.uint64)
    has_two, counts = count == 2, np.where(count > 2, count - 1, 0)
    second[has_two] = bus.addresses(pages[has_two] + PAGE)
    starts = np.cumsum(counts) - counts
    following = np.arange(1, counts.sum() + 1) - np.repeat(starts, counts)
    entries = bus.addresses(np.repeat(pages, counts) + following * PAGE)
    return Prps(bus.addresses(memory), second, entries, starts, counts)


class PrpLists:
    """A page for the PRP list of each command that can be in flight in a queue.

    The page belongs to the context of the command, so it is not written while the command is in
    flight. The memory must live as long as the queue.
    """

    def __init__(self, device: XnvmeDevice, depth: int) -> None:
        """Allocate the lists for a queue of `depth` commands; raises as `bus.allocate()`."""
        memory, bus = allocate(device, depth * PAGE)
        self._entries = memory.view(np.uint64)
        self._addresses = bus.addresses(address_of(memory) + np.arange(depth) * PAGE)

    def write(self, prps: Prps, indices: list[int], contexts: list[int]) -> BusAddresses:
        """Write the lists of some commands, each to the page of its context; return their PRP2."""
        counts, second = prps.counts[indices], prps.second[indices]
        listed = counts > 0
        if not listed.any():
            return second
        context = np.array(contexts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        to = np.repeat(context * _LIST_ENTRIES, counts) + within
        self._entries[to] = prps.entries[np.repeat(prps.starts[indices], counts) + within]
        second[listed] = self._addresses[context[listed]]
        return second
