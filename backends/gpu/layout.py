"""The structures of submit.cu as numpy types, with initial values and limits, and its source.

The kernel uses addresses; the controller uses bus addresses.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray

QUEUE_PAIR = np.dtype(
    [
        # Addresses of memory shared with the controller. The queues are zeros at first.
        ("submission_queue", "<u8"),  # u64[depth, 8]
        ("completion_queue", "<u8"),  # u32[depth, 4]
        ("submission_doorbell", "<u8"),  # u32, a register
        ("completion_doorbell", "<u8"),  # u32, a register
        ("prp_lists", "<u8"),  # u64[depth, 512]; each list is aligned to its 4096 bytes
        # Addresses of memory used by the kernel only.
        ("prp_list_bus", "<u8"),  # u64[depth], the bus address of each list
        ("commands", "<u8"),  # u32[depth], the index of the command in each slot
        ("identifiers", "<u8"),  # u32[depth], its command identifier
        ("free", "<u8"),  # u32[depth], a stack of identifiers
        # The state, updated by the kernel at its end.
        ("depth", "<u4"),  # entries of both queues
        ("tail", "<u4"),  # the entry of the next command
        ("head", "<u4"),  # the entry of the next completion
        ("phase", "<u4"),  # the phase tag of the next completion
        ("in_flight", "<u4"),  # commands left in flight, if there was a fault
        ("fault", "<u4"),  # one of FAULTS, or NO_FAULT
    ]
)
BATCH = np.dtype(
    [
        # Addresses.
        ("slba", "<u8"),  # u64[count], the first logical block of each command
        ("blocks", "<u8"),  # u32[count], its logical blocks, at least 1
        ("offset", "<u8"),  # u64[count], bytes into the arena, multiples of 4
        ("status", "<u8"),  # u32[count], NOT_DONE at first; then DNR | SCT << 8 | SC, 0 is success
        ("next", "<u8"),  # u32, 0 at first: the next command not claimed by a queue pair
        ("page_bus", "<u8"),  # u64[pages], the bus address of each page of the arena
        ("stop", "<u8"),  # u32, 0 at first: if the host makes it 1, the kernel returns
        # Values.
        ("patience_ns", "<u8"),  # a queue pair gives up after so long without a completion
        ("count", "<u4"),  # commands
        ("page_shift", "<u4"),  # a page of the arena has 1 << page_shift bytes
        ("block_shift", "<u4"),  # a logical block has 1 << block_shift bytes
        ("nsid", "<u4"),  # the namespace
        ("share", "<u4"),  # the most commands that a queue pair claims at once
        ("padding", "<u4"),
    ]
)

PAGE = 4096  # bytes of the controller's memory pages
LANES = 32  # threads of a block; there is one block per queue pair
MIN_DEPTH, MAX_DEPTH = 2, 1024
MAX_COMMANDS = 1 << 31
MAX_BYTES = 513 * PAGE  # of the pages of a command: the first, and a PRP list of one page
MAX_BLOCKS = 1 << 16
NOT_DONE = 0xFFFF  # in the status column: the command has not completed
DNR = 0x4000  # in the status column: do not retry
NO_COMMAND = 0xFFFFFFFF
NO_FAULT, TIMED_OUT, STOPPED, UNKNOWN_IDENTIFIER = range(4)
FAULTS = {
    TIMED_OUT: "the controller has stopped answering",
    STOPPED: "the reads were stopped",
    UNKNOWN_IDENTIFIER: "the controller completed a command that was not in flight",
}


def queue_pairs(count: int, depth: int) -> np.ndarray:
    """Make QUEUE_PAIR[count], unused and without addresses."""
    if not MIN_DEPTH <= depth <= MAX_DEPTH:
        raise ValueError(f"depth={depth}: must be {MIN_DEPTH} to {MAX_DEPTH}")
    made = np.zeros(count, QUEUE_PAIR)
    made["depth"], made["phase"] = depth, 1
    return made


def first_columns(depth: int) -> dict[str, npt.NDArray[np.uint32]]:
    """Make the columns `commands`, `identifiers` and `free` of an unused queue pair."""
    return {
        "commands": np.full(depth, NO_COMMAND, np.uint32),
        "identifiers": np.zeros(depth, np.uint32),
        "free": np.arange(depth, dtype=np.uint32),
    }


def batch(
    *, count: int, page_shift: int, block_shift: int, nsid: int, share: int, patience_s: float
) -> np.ndarray:
    """Make a BATCH without addresses, of shape ().

    Args:
        count: commands, at most MAX_COMMANDS.
        page_shift: the arena's pages have 1 << page_shift bytes; at least 12.
        block_shift: the logical blocks have 1 << block_shift bytes; at least 9.
        nsid: the namespace, from 1.
        share: the most commands that a queue pair claims at once; 1 to 32.
        patience_s: seconds without a completion after which a queue pair gives up, more than 0.
    """
    limits = {
        "count": (count, 0, MAX_COMMANDS),
        "page_shift": (page_shift, 12, 63),
        "block_shift": (block_shift, 9, 31),
        "nsid": (nsid, 1, 0xFFFFFFFE),
        "share": (share, 1, LANES),
    }
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise ValueError(f"{name}={value}: must be {low} to {high}")
    if not 0 < patience_s < 1e9:
        raise ValueError(f"patience_s={patience_s}: must be more than 0, and less than 1e9")
    made = np.zeros((), BATCH)
    for name, (value, _, _) in limits.items():
        made[name] = value
    made["patience_ns"] = round(patience_s * 1e9)
    return made


def check_reads(blocks: IntArray, offset: IntArray, *, block_shift: int, arena_bytes: int) -> None:
    """Refuse commands that the kernel cannot build, or that do not fit into the arena.

    With such a command, the controller would write to memory outside of the arena.

    Args:
        blocks: int64[n], the logical blocks of each command.
        offset: int64[n], the destination of each command, in bytes into the arena.
        block_shift: a logical block has 1 << block_shift bytes.
        arena_bytes: bytes of the arena.

    Raises:
        ValueError: names the first such command.
    """
    nbytes = blocks << block_shift
    wrong = (blocks < 1) | (blocks > MAX_BLOCKS) | (offset % PAGE + nbytes > MAX_BYTES)
    wrong |= (offset < 0) | (offset % 4 != 0) | (offset > arena_bytes - nbytes)
    if wrong.any():
        index = int(wrong.argmax())
        raise ValueError(
            f"command {index}: {blocks[index]} blocks of {1 << block_shift} bytes to offset"
            f" {offset[index]} of an arena of {arena_bytes} bytes; at most {MAX_BYTES} bytes"
            f" from the start of the first page and {MAX_BLOCKS} blocks, within the arena, to a"
            " multiple of 4"
        )


def source() -> str:
    """The CUDA source of the kernel; does not compile if sizes or constants differ from here."""
    folder = Path(__file__).parent
    text = (folder / "submit.cu").read_text()
    text = text.replace('#include "machine.h"\n', (folder / "machine.h").read_text())
    return "\n".join([text, *(f'static_assert({claim}, "layout.py");' for claim in _CLAIMS), ""])


_CLAIMS = [
    f"sizeof(QueuePair) == {QUEUE_PAIR.itemsize}",
    f"sizeof(Batch) == {BATCH.itemsize}",
    f"PAGE == {PAGE} && (1 + LIST_ENTRIES) * PAGE == {MAX_BYTES}",
    f"SLOTS == {MAX_DEPTH}",
    f"NO_COMMAND == {NO_COMMAND}",
    f"NO_FAULT == {NO_FAULT} && TIMED_OUT == {TIMED_OUT}",
    f"STOPPED == {STOPPED} && UNKNOWN_IDENTIFIER == {UNKNOWN_IDENTIFIER}",
]
