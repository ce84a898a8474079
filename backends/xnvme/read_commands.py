"""NVMe read commands for a queue of libxnvme, computed as numpy columns."""

import errno
from itertools import repeat

import numpy as np

from ...contract._types import IntArray
from .abi import COMMAND, CONTEXT, READ
from .bus import BusMemory
from .prp import PrpLists, prps
from .queue import Commands, Queue, Statuses
from .status import describe_status


class ReadCommands(Commands):
    """Reads of ranges of a namespace.

    Attributes:
        results: int64[n], the values reported by the asynchronous implementation, mostly bytes.
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
        peer: tuple[BusMemory, PrpLists] | None = None,
    ) -> None:
        """Prepare the commands for a queue. `Device.geometry()` must be called earlier.

        Args:
            queue: runs the commands.
            offsets: int64[n], bytes into the namespace; like `lengths`, multiples of `lba_bytes`.
            memory: int64[n], destination addresses.
            lengths: int64[n], bytes; at most MAX_BLOCKS blocks.
            lba_bytes: bytes of a logical block.
            reports_length: a successful command reports the number of bytes read.
            peer: destination memory unknown to libxnvme, addressed by PRPs of our own, at most
                2 MiB per command; and the lists of the queue.
        """
        self.count = len(lengths)
        self.results = np.zeros(self.count, np.int64)
        self.statuses = np.zeros(self.count, np.uint16)
        self.errors = np.zeros(self.count, np.int64)
        self._queue = queue
        self._pass = queue.functions.xnvme_cmd_pass
        self._nbytes: list[int] = lengths.tolist()
        self._buffers = list[int | None](memory.tolist()), self._nbytes
        self._lengths = lengths if reports_length else None
        commands = np.zeros(self.count, COMMAND)
        commands["opcode"], commands["nsid"] = READ, queue.device.nsid
        commands["slba"] = offsets // lba_bytes
        commands["nlb"] = lengths // lba_bytes - 1  # as NVMe counts blocks
        self._prps = None
        if peer:
            self._prps, self._lists = prps(peer[0], memory, lengths), peer[1]
            commands["prp1"] = self._prps.first
            # Without a buffer, the backend "upcie" leaves the PRPs of a command as they are.
            self._buffers = [None] * self.count, [0] * self.count
        self._heads = commands.view(CONTEXT["head"])

    def submit(self, indices: list[int], contexts: list[int]) -> list[int]:
        heads = self._heads[indices]
        if self._prps is not None:
            heads.view(COMMAND)["prp2"] = self._lists.write(self._prps, indices, contexts)
        self._queue.heads[contexts] = heads
        pointers = [self._queue.pointers[context] for context in contexts]
        memory, nbytes = ([column[index] for index in indices] for column in self._buffers)
        return list(map(self._pass, pointers, memory, nbytes, repeat(None), repeat(0)))

    def complete(self, indices: IntArray, results: IntArray, statuses: Statuses) -> list[int]:
        self.results[indices], self.statuses[indices] = results, statuses
        return []

    def reject(self, index: int, error: int) -> None:
        self.errors[index] = error

    def failures(self) -> dict[int, tuple[int, str]]:
        """Errno and text for each command that failed or was short, by its index."""
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
