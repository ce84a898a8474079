"""The simulated controller and the kernel on the host, with numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dali_storage._types import Buffer, IntArray
from dali_storage.backends.gpu import layout
from dali_storage.backends.gpu.layout import PAGE

NEVER, TWICE, FOREIGN = 0x10000, 0x20000, 0x30000
"""Faults other than a status: see controller.cpp."""

COUNTERS = (
    *("commands", "bytes", "in_flight", "rounds"),
    *("bad_doorbells", "bad_fields", "bad_identifiers", "bad_pointers"),
)
UNTOUCHED = 0xEE


def aligned(nbytes: int) -> Buffer:
    """Zeros at a multiple of PAGE."""
    memory = np.zeros(nbytes + PAGE, np.uint8)
    skip = -memory.ctypes.data % PAGE
    return memory[skip : skip + nbytes]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A controller, its queues and the arena.

    Attributes:
        seed: of all that is random.
        queues: queue pairs.
        depth: of the queues.
        block_shift: a logical block has 1 << block_shift bytes.
        page_shift: a page of the arena has 1 << page_shift bytes.
        max_bytes: of a command.
        delay: a command is passed over up to so many times before it completes.
    """

    seed: int = 1
    queues: int = 1
    depth: int = 16
    block_shift: int = 9
    page_shift: int = 16
    max_bytes: int = 1 << 16
    delay: int = 5


@dataclass(frozen=True)
class Reads:
    """Commands: int64[n] each, as in Batch of submit.cu."""

    slba: IntArray
    blocks: IntArray
    offset: IntArray

    def __getitem__(self, which: npt.NDArray[np.intp]) -> Reads:
        return Reads(self.slba[which], self.blocks[which], self.offset[which])

    def covers(self, block: int) -> npt.NDArray[np.bool_]:
        """The commands that read a block."""
        return (self.slba <= block) & (block < self.slba + self.blocks)


class Simulation:
    """A controller with queue pairs, an image that it reads, and an arena that it writes to.

    Attributes:
        setup: what was asked for.
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
        image: Buffer,
        arena_bytes: int,
        allocate: Callable[[int], Buffer] = aligned,
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

    def _map(self, memory: Buffer, page: int) -> npt.NDArray[np.uint64]:
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

    def __enter__(self) -> Simulation:
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


class HostKernel:
    """The kernel, with a thread for each lane of each queue pair."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    def run(
        self,
        simulation: Simulation,
        reads: Reads,
        *,
        share: int = layout.LANES,
        patience_s: float = 60.0,
        stop: npt.NDArray[np.uint32] | None = None,
    ) -> npt.NDArray[np.uint32]:
        """Submit reads. Their statuses: uint32[n]."""
        setup, count = simulation.setup, reads.slba.size
        status = np.full(count, layout.NOT_DONE, np.uint32)
        layout.check_reads(
            reads.blocks,
            reads.offset,
            block_shift=setup.block_shift,
            arena_bytes=simulation.arena.size,
        )
        batch = layout.batch(
            count=count,
            page_shift=setup.page_shift,
            block_shift=setup.block_shift,
            nsid=1,
            share=share,
            patience_s=patience_s,
        )
        columns = {
            "slba": reads.slba.astype(np.uint64),
            "blocks": reads.blocks.astype(np.uint32),
            "offset": reads.offset.astype(np.uint64),
            "status": status,
            "next": np.zeros(1, np.uint32),
            "page_bus": simulation.page_bus,
            "stop": np.zeros(1, np.uint32) if stop is None else stop,
        }
        for name, column in columns.items():
            batch[name] = column.ctypes.data
        self.submit_reads(batch, simulation.queues)
        return status

    def submit_reads(self, batch: npt.NDArray[Any], queues: npt.NDArray[Any]) -> None:
        """What a launch on a GPU does with a BATCH and QUEUE_PAIR[n]; returns when it ends."""
        self._library.submit_reads(pointer(batch), pointer(queues), queues.size)


def pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def random_reads(
    random: np.random.Generator, count: int, setup: Setup, image_bytes: int
) -> tuple[Reads, int]:
    """Reads of random blocks to places of an arena, which are not in order; and its bytes.

    Half of them have at most 4 pages.
    """
    block = 1 << setup.block_shift
    most = np.where(random.random(count) < 0.5, min(4 * PAGE, setup.max_bytes), setup.max_bytes)
    return place(random, random.integers(1, most // block + 1), setup, image_bytes)


def place(
    random: np.random.Generator, blocks: IntArray, setup: Setup, image_bytes: int
) -> tuple[Reads, int]:
    """Reads of so many blocks each, from random places to places that are not in order.

    Half of them begin in the middle of a page, if they fit into their pages then.
    """
    slba = random.integers(0, (image_bytes >> setup.block_shift) - blocks + 1)
    nbytes = blocks << setup.block_shift
    skipped = random.integers(0, PAGE // 4, blocks.size) * 4
    skipped[(random.random(blocks.size) < 0.5) | (skipped + nbytes > layout.MAX_BYTES)] = 0
    room = -(-(skipped + nbytes) // PAGE) * PAGE
    order = random.permutation(blocks.size)
    offset = np.empty_like(blocks)
    offset[order] = np.cumsum(room[order]) - room[order]
    return Reads(slba, blocks, offset + skipped), int(room.sum())
