"""NVMe reads by a queue of libxnvme: the commands are computed as numpy columns, and checked."""

from __future__ import annotations

import errno
from itertools import repeat

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from ..extents.plan import Reads
from .queue import CONTEXT, Queue, Work
from .status import explain

COMMAND = np.dtype(
    [
        ("opcode", "u1"),
        ("flags", "u1"),
        ("cid", "<u2"),
        ("nsid", "<u4"),
        ("cdw2", "V32"),
        ("slba", "<u8"),
        ("nlb", "<u2"),
        ("cdw12", "V14"),
        ("completion", "V16"),
    ]
)
"""A head of a context, with the fields of a read. It has no gaps: numpy would not copy those."""

READ = 2  # the opcode, NVM command set
MOST_BLOCKS = 1 << 16  # that one command can ask for


class BlockReads(Work):
    """Reads of ranges of a namespace.

    Attributes:
        results: int64[n], what the implementation reports; most of them, bytes.
        statuses: uint16[n], SCT << 8 | SC of the last try; 0 is success.
        errors: int64[n], the errno of what could not even be submitted; else 0.
    """

    def __init__(self, queue: Queue, reads: Reads, lba_bytes: int, *, tells_length: bool) -> None:
        """Begin nothing yet.

        Args:
            queue: what will run them.
            reads: positions and lengths are multiples of `lba_bytes`; none is longer than
                MOST_BLOCKS.
            lba_bytes: of a logical block. libxnvme must have been asked for the geometry before.
            tells_length: successful commands tell how many bytes have come.
        """
        self.count = len(reads)
        self.results = np.zeros(self.count, np.int64)
        self.statuses = np.zeros(self.count, np.uint16)
        self.errors = np.zeros(self.count, np.int64)
        self._queue = queue
        self._pass = queue.functions.xnvme_cmd_pass
        self._memory: list[int] = reads.memory.tolist()
        self._nbytes: list[int] = reads.lengths.tolist()
        self._lengths = reads.lengths if tells_length else None
        commands = np.zeros(self.count, COMMAND)
        commands["opcode"], commands["nsid"] = READ, queue.device.nsid
        commands["slba"] = reads.positions // lba_bytes
        commands["nlb"] = reads.lengths // lba_bytes - 1  # as NVMe counts blocks
        self._heads = commands.view(CONTEXT["head"])

    def submit(self, numbers: list[int], contexts: list[int]) -> list[int]:
        self._queue.heads[contexts] = self._heads[numbers]
        pointers = [self._queue.pointers[context] for context in contexts]
        memory = [self._memory[number] for number in numbers]
        nbytes = [self._nbytes[number] for number in numbers]
        return list(map(self._pass, pointers, memory, nbytes, repeat(None), repeat(0)))

    def finish(
        self, numbers: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        self.results[numbers] = results
        self.statuses[numbers] = statuses
        return []

    def refuse(self, number: int, error: int) -> None:
        self.errors[number] = error

    def waiting(self) -> None:
        pass

    def failed(self) -> npt.NDArray[np.bool_]:
        """Which of them have failed, when all are done: bool[n]."""
        failed: npt.NDArray[np.bool_] = (self.statuses != 0) | (self.errors != 0)
        if self._lengths is not None:
            failed |= self.results != self._lengths
        return failed

    def reason(self, number: int) -> tuple[int, str]:
        """Why one has failed: an errno, and what happened."""
        if self.errors[number]:
            return int(self.errors[number]), "cannot submit a read"
        if self.statuses[number]:
            code, text = explain(int(self.statuses[number]), self._queue.device.io)
            return code, f"cannot read{text.replace(': ', ', ', 1)}"
        return errno.EIO, f"only {self.results[number]} bytes came of"
