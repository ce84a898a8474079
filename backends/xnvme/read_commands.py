"""NVMe reads by a queue of libxnvme: commands computed as numpy columns."""

import errno
from itertools import repeat

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from .abi import COMMAND, CONTEXT, READ
from .bus import BusMemory
from .prp import PrpLists, prps
from .queue import Commands, Queue
from .status import describe_status


class ReadCommands(Commands):
    """Reads of ranges of a namespace.

    Attributes:
        results: int64[n], what the asynchronous implementation reports; for most of them, bytes.
        statuses: uint16[n], SCT << 8 | SC; 0 is success.
        errors: int64[n], the errno of a command that could not be submitted; else 0.
    """

    def __init__(
        self,
        queue: Queue,
        offsets: IntArray,
        memory: IntArray,
        lengths: IntArray,
        *,
        lba_bytes: int,
        reports_length: bool,
    ) -> None:
        """Prepare the commands for a queue. `Device.geometry()` must have been called before.

        Args:
            queue: runs them.
            offsets: int64[n], bytes into the namespace; like `lengths`, multiples of `lba_bytes`.
            memory: int64[n], addresses to read to.
            lengths: int64[n], bytes; at most MAX_BLOCKS blocks.
            lba_bytes: bytes of a logical block.
            reports_length: a successful command reports how many bytes were read.
        """
        self.count = len(lengths)
        self.results = np.zeros(self.count, np.int64)
        self.statuses = np.zeros(self.count, np.uint16)
        self.errors = np.zeros(self.count, np.int64)
        self._queue = queue
        self._pass = queue.functions.xnvme_cmd_pass
        self._memory: list[int] = memory.tolist()
        self._nbytes: list[int] = lengths.tolist()
        self._lengths = lengths if reports_length else None
        commands = np.zeros(self.count, COMMAND)
        commands["opcode"], commands["nsid"] = READ, queue.device.nsid
        commands["slba"] = offsets // lba_bytes
        commands["nlb"] = lengths // lba_bytes - 1  # as NVMe counts blocks
        self._heads = commands.view(CONTEXT["head"])

    def submit(self, indices: list[int], contexts: list[int]) -> list[int]:
        self._queue.heads[contexts] = self._heads[indices]
        pointers = [self._queue.pointers[context] for context in contexts]
        memory = [self._memory[index] for index in indices]
        nbytes = [self._nbytes[index] for index in indices]
        return list(map(self._pass, pointers, memory, nbytes, repeat(None), repeat(0)))

    def complete(
        self, indices: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        self.results[indices] = results
        self.statuses[indices] = statuses
        return []

    def reject(self, index: int, error: int) -> None:
        self.errors[index] = error

    def will_wait(self) -> None:
        pass

    def failures(self) -> dict[int, tuple[int, str]]:
        """The errno of each command that failed or was short, and what happened, by its index."""
        failed = (self.statuses != 0) | (self.errors != 0)
        if self._lengths is not None:
            failed |= self.results != self._lengths
        return {index: self._reason(index) for index in np.flatnonzero(failed).tolist()}

    def _reason(self, index: int) -> tuple[int, str]:
        nbytes = self._nbytes[index]
        if self.errors[index]:
            return int(self.errors[index]), f"cannot submit a read of {nbytes} bytes"
        if self.statuses[index]:
            number, status = describe_status(int(self.statuses[index]), self._queue.device.io)
            return number, f"{status and status + ': '}cannot read {nbytes} bytes"
        return errno.EIO, f"short read: {self.results[index]} of {nbytes} bytes"


class PeerReadCommands(ReadCommands):
    """Reads to memory that libxnvme does not know, by PRPs of our own.

    Without a buffer, xnvme_cmd_pass() of the backend "upcie" leaves the PRPs of a command as they
    are.
    """

    def __init__(
        self,
        queue: Queue,
        offsets: IntArray,
        memory: IntArray,
        lengths: IntArray,
        *,
        lba_bytes: int,
        bus: BusMemory,
        lists: PrpLists,
    ) -> None:
        """Prepare the commands, as `ReadCommands`; at most 2 MiB each.

        `bus` is the memory that they read to, and `lists` are those of the queue.
        """
        super().__init__(queue, offsets, memory, lengths, lba_bytes=lba_bytes, reports_length=False)
        self._prps, self._lists = prps(bus, memory, lengths), lists
        self._heads.view(COMMAND)["prp1"] = self._prps.first

    def submit(self, indices: list[int], contexts: list[int]) -> list[int]:
        heads = self._heads[indices]
        heads.view(COMMAND)["prp2"] = self._lists.write(self._prps, indices, contexts)
        self._queue.heads[contexts] = heads
        pointers = [self._queue.pointers[context] for context in contexts]
        return list(map(self._pass, pointers, repeat(None), repeat(0), repeat(None), repeat(0)))
