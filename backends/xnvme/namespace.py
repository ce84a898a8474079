"""Targets of NVMe commands of libxnvme: block devices, images, NVMe namespaces, PCI addresses."""

import errno
import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np

from ...contract._types import IntArray
from ...contract.errors import BackendUnavailable, os_error
from ...contract.options import Option
from ...runtime.uninterrupted import run_uninterrupted
from ..linux.pci import address_of
from ..linux.storage import Storage, mode_of, no_permission
from .abi import MAX_BLOCKS
from .bus import BusMemory
from .device import Geometry, XnvmeDevice
from .device_kinds import BLOCK_DEVICE, CHARACTER_DEVICE, IMAGE, PCI_ADDRESS, DeviceKind
from .library import Library
from .prp import PrpLists
from .queue import Queue
from .read_commands import ReadCommands

Nsid: TypeAlias = Annotated[int, Option(range(1, 0xFFFFFFFF))]

_PAGE = 4096  # bytes
_FORMAT = "format it without metadata (`nvme format`, which erases it)"
_MAX_URI = 383  # bytes; for longer ones, libxnvme fails without a reason


@dataclass(frozen=True, slots=True, eq=False)
class Namespace:
    """A device whose logical blocks are read by NVMe commands, with its queues.

    Attributes:
        device: the device to read, which also allocates the memory for reads.
        storage: properties of the device.
        lba_bytes: bytes of a logical block.
        max_transfer: bytes of the largest read command.
    """

    _kind: DeviceKind
    device: XnvmeDevice
    _queues: list[Queue]
    _lists: list[PrpLists]
    storage: Storage
    lba_bytes: int
    max_transfer: int

    def transfer(self, backend: str, wanted: int | None, default: int) -> int:
        """The bytes of one command for the option `max_transfer`. None: `default`, if possible."""
        most = self.max_transfer
        if wanted is None:
            return min(most, default)
        if wanted > most or wanted % self.lba_bytes:
            limit = f"at most {most}, the largest read command of {self.storage.path}"
            what = f"max_transfer must be a multiple of {self.lba_bytes} and {limit}"
            raise ValueError(f"{backend}: {what}, not {wanted}")
        return wanted

    def submit(
        self,
        queue: int,
        offsets: IntArray,
        memory: IntArray,
        lengths: IntArray,
        owner: object,
        bus: BusMemory | None = None,
    ) -> dict[int, tuple[int, str]]:
        """Read ranges, given as for `ReadCommands`, by a queue; return their `failures()`.

        `owner` owns the memory, and is leaked on purpose if the device stops answering. `bus` has
        the bus addresses of memory not allocated by `device`. A queue is for one thread at a time.
        Raises an OSError with the path of a device that does not answer or has another driver.
        """
        runner = self._queues[queue]
        try:
            runner.require_usable()  # after closing, the device and the lists may be gone
            peer = None if bus is None else (bus, self._lists[queue])
            columns, reports = (runner, offsets, memory, lengths), self._kind.reports_length
            commands = ReadCommands(
                *columns, lba_bytes=self.lba_bytes, reports_length=reports, peer=peer
            )
            runner.run(commands, (owner, peer[1]) if peer else owner)
        except OSError as error:
            number, what = error.errno or errno.EIO, error.strerror or str(error)
            raise OSError(number, what, self.storage.path) from None
        return commands.failures()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read at most `max_transfer` bytes, by the first queue."""
        memory = self.device.allocate(nbytes)
        start, address, length = np.array([[offset], [memory.ctypes.data], [nbytes]], np.int64)
        if failures := run_uninterrupted(lambda: self.submit(0, start, address, length, memory)):
            number, what = failures[0]
            if number in (errno.EACCES, errno.EPERM):
                raise no_permission(self.storage.path)
            lba = offset // self.lba_bytes
            raise os_error(number, os.fsencode(self.storage.path), f": {what} at LBA {lba}")
        return memory[:nbytes].tobytes()

    def close(self) -> None:
        """End the queues and close the device. Closing twice is fine."""
        for queue in self._queues:
            queue.close()
        self._lists.clear()
        self.device.close()


def open_namespace(
    library: Library,
    uri: str,
    *,
    io: str | None,
    nsid: int,
    queues: int,
    queue_depth: int,
    spin: bool,
    peer: bool = False,
) -> Namespace:
    """Open a device with its queues; options and errors are as for `XnvmeBlockReader`.

    `peer`: `submit()` can read to memory not allocated by the device. Only at a PCI address.
    """
    kind, path = _kind_of(library, uri, nsid)
    async_impl = kind.choose_async_impl(io, queue_depth)
    found, made = kind.find(path), list[Queue]()
    with ExitStack() as opened:
        device = _open_device(library, kind, found.path, async_impl, nsid)
        opened.callback(device.close)
        geometry = _geometry(kind, device, found.path, nsid)
        storage = kind.identify(device, geometry, found)
        max_transfer = _max_transfer(kind, device, geometry, storage)
        doing = f"cannot create {queues} queues of depth {queue_depth}"
        hint = "; the device may support fewer or shallower ones"
        with kind.explain_failures(library, found.path, device.io, doing, hint):
            for _ in range(queues):
                made.append(Queue(device, queue_depth, spin=spin, timeout_s=kind.timeout_s))
                opened.callback(made[-1].close)
        lists = [PrpLists(device, queue_depth) for _ in made if peer]
        opened.pop_all()
    return Namespace(kind, device, made, lists, storage, geometry.lba_bytes, max_transfer)


def _kind_of(library: Library, uri: str, nsid: int) -> tuple[DeviceKind, str]:
    if address := address_of(uri):
        if library.version != "main":
            remedy = "use a libxnvme of the main branch (with upcie), or give a block device as uri"
            raise BackendUnavailable(f"{library} cannot read from a PCI address", remedy)
        return PCI_ADDRESS, address
    if nsid != 1:
        what = f"is for PCI addresses; the device {uri!r} is a namespace"
        raise ValueError(f"xnvme-block: nsid {nsid} {what}")
    mode = mode_of(uri)
    if stat.S_ISCHR(mode):
        return CHARACTER_DEVICE, uri
    return (BLOCK_DEVICE if stat.S_ISBLK(mode) else IMAGE), uri


def _open_device(
    library: Library, kind: DeviceKind, path: str, async_impl: str | None, nsid: int
) -> XnvmeDevice:
    name = os.fsencode(path)
    if len(name) > _MAX_URI:
        raise ValueError(f"uri {path!r} is longer than libxnvme supports, {_MAX_URI} bytes")
    ownership = kind.take(path) if kind.take else None
    with kind.explain_failures(library, path, async_impl):
        device = XnvmeDevice(
            library,
            name,
            io=async_impl,
            be=kind.backend,
            sync=kind.sync_impl,
            direct=kind.direct,
            nsid=nsid,
            is_ours=ownership.is_ours if ownership else None,
        )
    if ownership:
        ownership.register()
    return device


def _geometry(kind: DeviceKind, device: XnvmeDevice, path: str, nsid: int) -> Geometry:
    with kind.explain_failures(device.library, path, device.io):
        try:
            geometry = device.geometry()
        except OSError as reason:
            if kind is not PCI_ADDRESS:
                raise
            what = f"{path} has no such namespace, or an inactive one ({reason})"
            raise ValueError(f"nsid {nsid}: {what}") from None
    if geometry.kind != "conventional":
        what = f"is a {geometry.kind} namespace; only conventional ones can be read"
        raise ValueError(f"uri {path!r} {what}")
    if geometry.has_metadata:
        what = "has metadata between its logical blocks (extended LBAs)"
        raise ValueError(f"uri {path!r} {what}; {_FORMAT}")
    if geometry.metadata_bytes and kind in (CHARACTER_DEVICE, PCI_ADDRESS):
        # Our commands have no address for metadata: the controller would write to bus address 0.
        what = "has metadata beside its logical blocks; read it by its block device"
        raise ValueError(f"uri {path!r} {what}, or {_FORMAT}")
    return geometry


def _max_transfer(
    kind: DeviceKind, device: XnvmeDevice, geometry: Geometry, storage: Storage
) -> int:
    """The bytes of the largest read command: whole pages or, below one page, whole blocks."""
    limit = min(kind.max_transfer(geometry, storage), MAX_BLOCKS * geometry.lba_bytes)
    unit = max(geometry.lba_bytes, _PAGE) if limit >= _PAGE else geometry.lba_bytes
    if limit < unit:
        what = f"one command reads only {limit} bytes, less than a block"
        raise BackendUnavailable(f"{device.library} cannot read {storage.path}: {what}")
    return limit // unit * unit
