"""NVMe reads by a queue of libxnvme: the commands are computed as numpy columns."""

from __future__ import annotations

from itertools import repeat

import numpy as np
import numpy.typing as npt

from ..reader import IntArray
from ._xnvme_queue import CONTEXT, Queue, Work

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
    """Reads of n ranges of a namespace.

    Attributes:
        results: int64[n], what the implementation reports; most of them, bytes.
        statuses: uint16[n], SCT << 8 | SC of the last try; 0 is success.
        errors: int64[n], the errno of what could not even be submitted; else 0.
    """

    def __init__(
        self,
        queue: Queue,
        slba: IntArray,
        nlb: IntArray,
        memory: IntArray,
        lba_bytes: int,
        *,
        retries: int = 0,
    ) -> None:
        """Begin nothing yet.

        Args:
            queue: what will run them.
            slba: int64[n], first logical blocks.
            nlb: int64[n], how many blocks: 1 to MOST_BLOCKS.
            memory: int64[n], addresses.
            lba_bytes: of a logical block. libxnvme must have been asked for the geometry before.
            retries: how often a command that has failed is submitted again.
        """
        self.count = slba.size
        self.results = np.zeros(self.count, np.int64)
        self.statuses = np.zeros(self.count, np.uint16)
        self.errors = np.zeros(self.count, np.int64)
        self._queue = queue
        self._pass = queue.functions.xnvme_cmd_pass
        self._memory: list[int] = memory.tolist()
        self._nbytes: list[int] = (nlb * lba_bytes).tolist()
        commands = np.zeros(self.count, COMMAND)
        commands["opcode"], commands["nsid"] = READ, queue.device.nsid
        commands["slba"], commands["nlb"] = slba, nlb - 1  # as NVMe counts blocks
        self._heads = commands.view(CONTEXT["head"])
        self._tries_left = np.full(self.count, retries)

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
        if not statuses.any():
            return []
        failed = numbers[(statuses != 0) & (self._tries_left[numbers] > 0)]
        self._tries_left[failed] -= 1
        again: list[int] = failed.tolist()
        return again

    def refuse(self, number: int, error: int) -> None:
        self.errors[number] = error

    def waiting(self) -> None:
        pass
