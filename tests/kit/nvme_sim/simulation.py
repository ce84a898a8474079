"""The simulated controller, with numpy."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dali_storage.backends.gpu import layout
from dali_storage.backends.gpu.layout import PAGE
from dali_storage.contract._types import HostBuffer
from tests.kit.nvme_sim.reads import Reads, Setup

NEVER, TWICE, FOREIGN = 0x10000, 0x20000, 0x30000
"""Faults other than a status: see controller.cpp."""

COUNTERS = (
    *("commands", "bytes", "in_flight", "rounds"),
    *("bad_doorbells", "bad_fields", "bad_identifiers", "bad_pointers"),
)
UNTOUCHED = 0xEE


def aligned(nbytes: int) -> HostBuffer:
    """Zeros at a multiple of PAGE."""
    memory = np.zeros(nbytes + PAGE, np.uint8)
    skip = -memory.ctypes.data % PAGE
    return memory[skip : skip + nbytes]


class Simulation:
    """A controller with queue pairs, an image that it reads, and an arena that it writes to.

    Attributes:
        queues: QUEUE_PAIR[setup.queues].
        columns: of each queue pair, the memory at its addresses, by their names in QUEUE_PAIR.
        image: uint8[n], the bytes of the namespace.
        arena: uint8[n], with UNTOUCHED at first.
        page_bus: uint64[pages], the bus address of each page of the arena; not in order.
        counters: of the controller, by the names in COUNTERS, after the `with` statement.
    """

    def __init__(
        self,
        library: Path,
        setup: Setup,
        *,
        image: HostBuffer,
        arena_bytes: int,
        allocate: Callable[[int], HostBuffer] = aligned,
    ) -> None:
        self.setup, self.image = setup, image
        self.counters: dict[str, int] = {}
        self.random = np.random.default_rng(setup.seed)
        self._library = ctypes.CDLL(str(library))
        self._library.controller_new.restype = ctypes.c_void_p
        self._allocate = allocate
        self.columns: list[dict[str, npt.NDArray[Any]]] = []
        self._bus = 1 << 40
        blocks = image.size >> setup.block_shift
        self._controller = ctypes.c_void_p(
            self._library.controller_new(
                pointer(image),
                ctypes.c_uint64(blocks),
                *(setup.block_shift, setup.max_bytes, setup.delay, setup.seed),
            )
        )
        page = 1 << setup.page_shift
        self.arena = allocate(-(-arena_bytes // page) * page)
        self.arena[:] = UNTOUCHED
        self.page_bus = self._map(self.arena, page)
        self.queues = layout.queue_pairs(setup.queues, setup.depth)
        for number in range(setup.queues):
            self._add_queue(self.queues[number])

    def _map(self, memory: HostBuffer, page: int) -> npt.NDArray[np.uint64]:
        """Bus addresses for the pages of a memory, out of order and with gaps between them."""
        count = memory.size // page
        pages = self._bus + 2 * page * self.random.permutation(count)
        self._bus += 2 * page * count
        for number, address in enumerate(pages.tolist()):
            part = memory[number * page : (number + 1) * page]
            self._call("map", ctypes.c_uint64(address), pointer(part), ctypes.c_uint64(page))
        return pages.astype(np.uint64)

    def _add_queue(self, queue: Any) -> None:
        depth = self.setup.depth
        lists, doorbells = self._allocate(PAGE * depth), self._allocate(PAGE)
        columns = {
            "submission_queue": self._allocate(64 * depth),
            "completion_queue": self._allocate(16 * depth),
            "submission_doorbell": doorbells[:4],
            "completion_doorbell": doorbells[64:68],
            "prp_lists": lists,
            "prp_list_bus": self._map(lists, PAGE),
            **layout.first_columns(depth),
        }
        # Beyond the depth it looks as if commands were in flight. The kernel must not read there.
        for name, beyond in (("commands", 0), ("identifiers", np.arange(depth, layout.MAX_DEPTH))):
            columns[name] = np.resize(columns[name], layout.MAX_DEPTH)
            columns[name][depth:] = beyond
        for name, column in columns.items():
            queue[name] = column.ctypes.data
        self.columns.append(columns)
        shared = [pointer(column) for column in list(columns.values())[:4]]
        self._call("queue", *shared, depth)

    def fault(self, block: int, what: int, times: int = -1) -> None:
        """What happens to the next `times` reads of a block; negative: to all of them."""
        self._call("fault", ctypes.c_uint64(block), ctypes.c_uint32(what), times)

    def batch(
        self, reads: Reads, share: int, patience_s: float
    ) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        """A BATCH without addresses, and its columns that hold commands and bus addresses."""
        setup = self.setup
        layout.check_reads(
            reads.blocks,
            reads.offset,
            block_shift=setup.block_shift,
            arena_bytes=self.arena.size,
        )
        made = layout.batch(
            count=reads.slba.size,
            page_shift=setup.page_shift,
            block_shift=setup.block_shift,
            nsid=1,
            share=share,
            patience_s=patience_s,
        )
        return made, {
            "slba": reads.slba.astype(np.uint64),
            "blocks": reads.blocks.astype(np.uint32),
            "offset": reads.offset.astype(np.uint64),
            "page_bus": self.page_bus,
        }

    def wrong_bytes(self, reads: Reads, status: npt.NDArray[np.uint32]) -> int:
        """How many bytes of the arena differ from what reads must have left there.

        Those of failed reads may have any value; the controller may still write them.
        """
        found = self.arena.copy()
        expected = np.full(found.size, UNTOUCHED, np.uint8)
        shift = self.setup.block_shift
        for index, (slba, blocks, offset) in enumerate(
            zip(reads.slba.tolist(), reads.blocks.tolist(), reads.offset.tolist(), strict=True)
        ):
            source = found[offset:] if status[index] else self.image[slba << shift :]
            expected[offset : offset + (blocks << shift)] = source[: blocks << shift]
        return int(np.count_nonzero(found != expected))

    def __enter__(self) -> "Simulation":
        self._call("start")
        return self

    def __exit__(self, *exception: object) -> None:
        counters = np.zeros(len(COUNTERS), np.uint64)
        self._call("stop", pointer(counters))
        self.counters = dict(zip(COUNTERS, counters.tolist(), strict=True))

    def refused(self) -> dict[str, int]:
        """What a real controller would have refused, and how often."""
        return {name: n for name, n in self.counters.items() if name.startswith("bad_") and n}

    def _call(self, name: str, *arguments: object) -> None:
        getattr(self._library, f"controller_{name}")(self._controller, *arguments)


def pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)
