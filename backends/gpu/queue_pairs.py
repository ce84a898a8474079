"""I/O queue pairs owned by this process, not by libxnvme, on a controller at a PCI address.

libxnvme opens the controller, allocates the memory and runs the admin commands that create and
delete the queues, but does not use the queues. Any agent with access to the doorbells can submit
commands: a GPU, for example.

Source: NVM Express Base Specification 2.0, "Create I/O Completion Queue" and the three related
commands.
"""

import os
from typing import Any

import numpy as np

from ...contract._types import Buffer, IntArray
from ...contract.errors import BackendUnavailable
from ..xnvme import bus
from ..xnvme.bus import BusMemory
from ..xnvme.device import XnvmeDevice
from . import layout
from .admin import AdminCommand, refused

_DELETE_SQ, _CREATE_SQ, _DELETE_CQ, _CREATE_CQ = 0, 1, 4, 5  # admin opcodes
_CONTIGUOUS = 1
_INVALID_QUEUE_IDENTIFIER = 0x101  # SCT << 8 | SC
_SQ_ENTRY, _CQ_ENTRY = 64, 16  # bytes
_PAGE, _HUGEPAGE = layout.PAGE, 512  # bytes, pages

COMPLETION_BYTES = layout.MAX_DEPTH * _CQ_ENTRY
"""Bytes of a completion queue outside of host memory."""

_leaked_on_purpose: list[Any] = []  # queue pairs that could not be deleted, with their memory


class QueuePairs:
    """Queue pairs created together by `create()` and deleted by `close()`.

    Addresses are the processor's, except for completion queues outside of host memory.

    Attributes:
        qids: the queue identifiers.
        memory: uint8[n], host memory with the submission queues, the PRP lists and, unless placed
            elsewhere, the completion queues; zeros at first.
        submission_queues: int64[k], addresses.
        completion_queues: int64[k], addresses.
        prp_lists: int64[k], the address of the first of `depth` PRP lists, a page each.
        prp_list_bus: uint64[k, depth], the bus addresses of the PRP lists.
    """

    def __init__(
        self,
        device: XnvmeDevice,
        count: int,
        depth: int,
        *,
        granted: int,
        completions: tuple[Buffer, BusMemory] | None = None,
    ) -> None:
        """Allocate `count` queue pairs of `depth` entries, for the highest free identifiers.

        Args:
            device: open at a PCI address.
            count: queue pairs.
            depth: entries of each queue; a submission queue holds one command less.
            granted: the result of `count_granted()`, the largest identifier.
            completions: memory for the completion queues, COMPLETION_BYTES for each, and its bus
                addresses. None: in host memory.

        Raises:
            MemoryError: there is not enough memory for DMA.
        """
        self._device, self._process = device, os.getpid()
        self._completions = completions  # keeps the memory alive
        self._steps: list[tuple[AdminCommand, AdminCommand]] = []  # creations and their undoing
        self.qids: list[int] = []
        sizes = [-(-depth * entry // _PAGE) for entry in (_SQ_ENTRY, _CQ_ENTRY)]
        # A queue must not cross a gap on the bus: there may be one after each hugepage.
        spare = sizes[0] * (sum(sizes) * count // _HUGEPAGE + 2)
        total = sum(sizes) * count + spare + depth * count
        self.memory, memory_bus = bus.allocate(device, total * _PAGE)
        self.memory[:] = 0
        queues, end = _place(memory_bus, np.repeat(sizes, count).tolist(), depth * count)
        self.submission_queues, self.completion_queues = queues[:count], queues[count:]
        there = memory_bus
        if completions is not None:
            buffer, there = completions
            buffer[: buffer.nbytes] = 0
            self.completion_queues, _ = _place(there, [sizes[1]] * count, 0)
        self.prp_lists = end + np.arange(count) * depth * _PAGE
        lists = end + np.arange(count * depth) * _PAGE
        self.prp_list_bus = memory_bus.addresses(lists).reshape(count, depth)
        self._depth, self._granted = depth, granted
        self._submission_bus = memory_bus.addresses(self.submission_queues).tolist()
        self._completion_bus = there.addresses(self.completion_queues).tolist()

    def create(self) -> None:
        """Create the queue pairs. After any exception, `close()` deletes existing ones.

        Raises:
            BackendUnavailable: there are not enough free queues.
            OSError: the controller refuses a queue or does not answer.
        """
        granted = self._granted
        free = iter(range(granted, 0, -1))  # libxnvme uses the lowest first
        for index, (submission, completion) in enumerate(
            zip(self._submission_bus, self._completion_bus, strict=True)
        ):
            for qid in free:
                size = (self._depth - 1) << 16 | qid
                status = self._step(_CREATE_CQ, _DELETE_CQ, completion, size, _CONTIGUOUS)
                if status != _INVALID_QUEUE_IDENTIFIER:
                    break
            else:
                what = f"of the {granted} I/O queue pairs of the controller only {index} are free"
                raise BackendUnavailable(what, "use fewer queues, or close the other readers")
            if not status:
                self.qids.append(qid)
                shared = qid << 16 | _CONTIGUOUS  # its completion queue
                status = self._step(_CREATE_SQ, _DELETE_SQ, submission, size, shared)
            if status:
                what = f"create the I/O queue pair {qid} of {self._depth} entries"
                raise refused(what, status)

    def close(self) -> bool:
        """Delete the queue pairs; return whether the controller no longer uses the memory.

        Closing again continues an interrupted call. If the controller does not answer, or must not
        be touched, the memory is leaked on purpose. Does nothing in a forked process.
        """
        if os.getpid() != self._process:
            return True
        while self._steps:
            create, delete = self._steps[-1]
            if self._device.is_gone or not (create.status or _succeeds(delete)):
                self._device.lost = True
                _leaked_on_purpose.append(self)
                return False
            self._steps.pop()
        return True

    def _step(self, opcode: int, undo: int, prp1: int, cdw10: int, cdw11: int) -> int:
        """Create a queue by an admin command, to be undone by another; return its status."""
        create = AdminCommand(self._device, opcode, prp1=prp1, cdw10=cdw10, cdw11=cdw11)
        # Before the run: a Ctrl-C during the command is raised after its completion.
        self._steps.append((create, AdminCommand(self._device, undo, cdw10=cdw10 & 0xFFFF)))
        return create.run()


def _succeeds(delete: AdminCommand) -> bool:
    """Run an admin command unless already successful; return whether it has succeeded."""
    try:
        return not (delete.status and delete.run())
    except OSError:  # the controller does not answer
        return False


def _place(memory: BusMemory, sizes: list[int], after: int) -> tuple[IntArray, int]:
    """Place pieces of `sizes` pages, contiguous on the bus; return their addresses and the end.

    `after` more pages must fit after the last piece.
    """
    each = memory.address + np.arange(memory.nbytes // _PAGE) * _PAGE
    gaps = np.diff(memory.addresses(each).astype(np.int64)) != _PAGE
    before = np.concatenate(([0], np.cumsum(gaps)))
    starts, at = [], 0
    for size in sizes:
        while at + size <= each.size and before[at] != before[at + size - 1]:
            at += 1
        starts.append(at)
        at += size
    if at + after > each.size:
        raise MemoryError("the memory for queues is not contiguous on the bus; free hugepages")
    return memory.address + np.array(starts) * _PAGE, memory.address + at * _PAGE
