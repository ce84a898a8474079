"""I/O queue pairs that belong to this process, not to libxnvme, on a controller at a PCI address.

libxnvme opens the controller, allocates the memory and runs the admin commands that create and
delete the queues. Nothing else of it touches them, so anything that can write to the doorbells can
submit commands: a GPU, for example.

Source: NVM Express Base Specification 2.0, "Controller Properties" (CAP, doorbells), "Create I/O
Completion Queue" and the following commands, "Number of Queues" (feature 07h).
"""

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..._types import Buffer, HostBuffer, IntArray, address_of
from ...errors import BackendUnavailable
from ..gpu import layout
from . import bus
from .abi import ADMIN_COMMAND, PHASE_BITS, SCT_AND_SC
from .bus import BusMemory
from .device import LIBRARY_LOCK, Device
from .status import describe_status

_DELETE_SQ, _CREATE_SQ, _DELETE_CQ, _CREATE_CQ, _GET_FEATURES = 0, 1, 4, 5, 10  # admin opcodes
_NUMBER_OF_QUEUES = 7  # feature identifier
_CONTIGUOUS = 1
_INVALID_QUEUE_IDENTIFIER = 0x101  # SCT << 8 | SC
_DOORBELLS = 0x1000  # offset in BAR0
_SQ_ENTRY, _CQ_ENTRY = 64, 16  # bytes
_PAGE, _HUGEPAGE = layout.PAGE, 512  # bytes, pages

COMPLETION_BYTES = layout.MAX_DEPTH * _CQ_ENTRY
"""Bytes of a completion queue that is not in host memory."""

_leaked_on_purpose: list[Any] = []  # queue pairs, with their memory, that could not be deleted


class AdminCommand:
    """An admin command of a device. It keeps its completion even if a Ctrl-C interrupts `run()`."""

    def __init__(self, device: Device, opcode: int, **fields: int) -> None:
        """Prepare it; `fields` are those of ADMIN_COMMAND."""
        self._device = device
        self._context = np.zeros(1, ADMIN_COMMAND)
        self._context["opcode"], self._context["device"] = opcode, device.pointer
        self._context["status"] = 0xFFFF  # no controller completes a command with it
        for name, value in fields.items():
            self._context[name] = value

    @property
    def status(self) -> int:
        """SCT << 8 | SC of its completion: 0 is success."""
        return int(self._context["status"][0] >> PHASE_BITS & SCT_AND_SC)

    @property
    def result(self) -> int:
        """Dword 0 of its completion."""
        return int(self._context["result"][0])

    def run(self) -> int:
        """Submit it and wait; return its status.

        Raises:
            OSError: the controller does not answer; it is given up.
        """
        with LIBRARY_LOCK:
            if self._device.is_gone:
                raise OSError(errno.ENODEV, "the controller must not be touched any more")
            run = self._device.library.xnvme_cmd_pass_admin
            error = run(self._context.ctypes.data, None, 0, None, 0)
        if error and int(self._context["status"][0]) == 0xFFFF:
            self._device.lost = True
            raise OSError(errno.ETIMEDOUT, "the controller does not answer an admin command")
        return self.status


class Registers:
    """The registers of a controller, mapped into this process.

    Attributes:
        doorbells: uint8[n], the pages with the doorbells. The mapping lives as long as this array.
            To touch it is a SIGBUS once the controller is gone.
        max_depth: entries that a queue can have.
    """

    def __init__(self, address: str, granted: int) -> None:
        """Map the registers of the controller at a PCI address, with `granted` I/O queue pairs.

        Raises:
            BackendUnavailable: the kernel does not allow it.
            OSError: they cannot be mapped, or the controller does not answer.
        """
        memory = map_registers(address)
        start = address_of(memory)
        low, high = (ctypes.c_uint32.from_address(start + at).value for at in (0, 4))
        if low == high == 0xFFFFFFFF:
            raise OSError(errno.ENODEV, "its registers cannot be read", address)
        self.max_depth = (low & 0xFFFF) + 1  # CAP.MQES
        self._stride = 4 << (high & 15)  # CAP.DSTRD
        # Nothing else of it is for the GPU to write to.
        self.doorbells = memory[_DOORBELLS:][: _pages(2 * (granted + 1) * self._stride) * _PAGE]

    def offsets(self, qid: int) -> tuple[int, int]:
        """Where in `doorbells` those of a submission queue and its completion queue are."""
        first = 2 * qid * self._stride
        return first, first + self._stride


def map_registers(address: str, root: str = "/") -> HostBuffer:
    """Map BAR0 of a PCI function; raises as `Registers`."""
    path = Path(root) / "sys/bus/pci/devices" / address / "resource0"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8)
        finally:
            os.close(fd)
    except PermissionError as error:
        if error.errno == errno.EPERM:
            what = f"the kernel does not let user space map the registers of {address}"
            remedy = "switch Secure Boot off: kernel lockdown (/sys/kernel/security/lockdown)"
        else:
            what = f"no permission to map the registers of {address} ({path})"
            remedy = "run as root; a container needs a writable /sys (docker run --privileged)"
        raise BackendUnavailable(what, remedy) from None
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        what = f"the registers of {address} cannot be mapped: /sys is read-only"
        raise BackendUnavailable(what, "start the container with --privileged") from None


def count_granted(device: Device) -> int:
    """How many I/O queue pairs the controller grants, those of libxnvme included."""
    command = AdminCommand(device, _GET_FEATURES, cdw10=_NUMBER_OF_QUEUES)
    if status := command.run():
        raise _refused("tell its number of queues", status)
    return min(command.result & 0xFFFF, command.result >> 16) + 1


class QueuePairs:
    """Some queue pairs, created together. `close()` deletes them.

    Addresses are those that the processor uses, except for completion queues that are elsewhere.

    Attributes:
        qids: their queue identifiers.
        memory: uint8[n], host memory with the submission queues, the PRP lists and, unless they
            are elsewhere, the completion queues; zeros at first.
        submission_queues: int64[k], their addresses.
        completion_queues: int64[k], their addresses.
        prp_lists: int64[k], the address of the first of `depth` PRP lists, a page each.
        prp_list_bus: uint64[k, depth], the bus addresses of the PRP lists.
    """

    def __init__(
        self,
        device: Device,
        count: int,
        depth: int,
        *,
        granted: int,
        completions: tuple[Buffer, BusMemory] | None = None,
    ) -> None:
        """Create `count` queue pairs of `depth` entries, with the highest free identifiers.

        Args:
            device: open at a PCI address.
            count: queue pairs.
            depth: entries of each queue; a submission queue holds one command less.
            granted: what `count_granted()` returned: identifiers are 1 to this.
            completions: memory for the completion queues, COMPLETION_BYTES for each, and its bus
                addresses. None: they are in host memory.

        Raises:
            BackendUnavailable: there are not enough free queues.
            OSError: the controller refuses a queue or does not answer.
            MemoryError: there is not enough memory for DMA.
        """
        self._device, self._process = device, os.getpid()
        self._completions = completions  # keeps the memory alive
        self._steps: list[tuple[AdminCommand, AdminCommand]] = []  # creations and their undoing
        self.qids: list[int] = []
        sizes = [_pages(depth * _SQ_ENTRY), _pages(depth * _CQ_ENTRY)]
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
        try:
            self._create(
                depth,
                granted,
                memory_bus.addresses(self.submission_queues).tolist(),
                there.addresses(self.completion_queues).tolist(),
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> bool:
        """Delete them; return whether the controller no longer uses the memory.

        Closing again continues a call that was interrupted. If the controller does not answer, or
        must not be touched, the memory is leaked on purpose. In a forked process nothing is done.
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

    def _create(
        self, depth: int, granted: int, submission_bus: list[int], completion_bus: list[int]
    ) -> None:
        free = iter(range(granted, 0, -1))  # libxnvme takes the lowest first
        for index, (submission, completion) in enumerate(
            zip(submission_bus, completion_bus, strict=True)
        ):
            for qid in free:
                size = (depth - 1) << 16 | qid
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
                raise _refused(f"create the I/O queue pair {qid} of {depth} entries", status)

    def _step(self, opcode: int, undo: int, prp1: int, cdw10: int, cdw11: int) -> int:
        """Create a queue by an admin command that is undone by another one; return its status."""
        create = AdminCommand(self._device, opcode, prp1=prp1, cdw10=cdw10, cdw11=cdw11)
        # Before it runs: a Ctrl-C during the command is raised when it has completed.
        self._steps.append((create, AdminCommand(self._device, undo, cdw10=cdw10 & 0xFFFF)))
        return create.run()


def _succeeds(delete: AdminCommand) -> bool:
    """Run an admin command unless it has succeeded already; whether it has."""
    try:
        return not (delete.status and delete.run())
    except OSError:  # the controller does not answer
        return False


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE)


def _place(memory: BusMemory, sizes: list[int], after: int) -> tuple[IntArray, int]:
    """Pieces of so many pages each, contiguous on the bus: their addresses, and where they end.

    There must be room for so many pages `after` them.
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


def _refused(doing: str, status: int) -> OSError:
    number, what = describe_status(status, "upcie")
    return OSError(number, f"the controller does not {doing}: {what}")
