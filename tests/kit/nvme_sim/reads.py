"""What a simulation reads, and how."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dali_storage.backends.gpu import layout
from dali_storage.backends.gpu.layout import PAGE
from dali_storage.contract._types import IntArray


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

    def __getitem__(self, which: npt.NDArray[np.intp]) -> "Reads":
        return Reads(self.slba[which], self.blocks[which], self.offset[which])

    def covers(self, block: int) -> npt.NDArray[np.bool_]:
        """The commands that read a block."""
        return (self.slba <= block) & (block < self.slba + self.blocks)


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
