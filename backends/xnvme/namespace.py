"""What the mapped file system is on, opened by libxnvme: a device, its address, or an image."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

import numpy as np

from bmap_tools import extent_map

from ..._types import PathLike
from ...errors import BackendUnavailable, os_error
from ..extents import device as _devices
from ..extents.device import Storage
from ..extents.map import LoadedMap
from ..extents.plan import Reads
from . import implementations, nodes, pci
from .blocks import MOST_BLOCKS, BlockReads
from .claims import Claim
from .device import Device, Geometry
from .file_queue import IOS
from .identify import identify
from .implementations import shortage
from .library import Library
from .queue import Queue

_PAGE = 4096  # bytes
_LONGEST_URI = 383  # bytes: libxnvme would not open it, and does not say why
_PATIENCE = 30.0  # seconds, the kernel's own for a command: nvme_core.io_timeout
_NODE_NEEDS = (
    "io_uring_cmd needs Linux 5.19, and io_uring to be allowed (sysctl kernel.io_uring_disabled)"
)


@dataclass(frozen=True, slots=True)
class Way:
    """How libxnvme is to open a kind of device.

    Attributes:
        what: the kind, for messages.
        be: the back end.
        sync: the synchronous implementation.
        ios: the asynchronous ones; the first is the default. None: the back end's own.
        direct: with O_DIRECT.
        tells_length: a completed read tells how many bytes have come.
        patience: seconds, as of `Queue`.
        most_bytes: that one command can ask for, whatever the device can do; None: no such limit.
        deepest: the most commands that a queue can have under way.
    """

    what: str
    be: str
    sync: str | None
    ios: tuple[str | None, ...]
    direct: bool = True
    tells_length: bool = True
    patience: float | None = None
    most_bytes: int | None = None
    deepest: int = 2048

    def choose(self, io: str | None) -> str | None:
        """The implementation that is to be used where the option is `io`."""
        if io is not None and io not in self.ios:
            names = [name for name in self.ios if name is not None] or ["left out"]
            raise ValueError(
                f"xnvme-block: io must be one of {', '.join(names)} for {self.what}, not {io!r}"
            )
        return self.ios[0] if io is None else io


BLOCK = Way("a block device", "linux", "block", IOS)
IMAGE = Way("an image file", "linux", "psync", IOS)
NODE = Way(
    "an NVMe character device",
    "linux",
    "nvme",
    ("io_uring_cmd",),  # the others tell an errno as if it were the status of NVMe
    direct=False,
    tells_length=False,
    most_bytes=516_096,  # 126 pages: a command has 127 segments, and memory may begin in a page
)
PCI = Way(
    "a PCI address",
    "upcie",
    None,
    (None,),
    direct=False,
    tells_length=False,
    patience=_PATIENCE,
    # Neither is looked after by upcie itself: beyond one page of a PRP list, and beyond the 1024
    # entries that it allocates for a queue, it writes over what comes next.
    most_bytes=2 << 20,
    deepest=512,
)


@dataclass(frozen=True, slots=True)
class Namespace:
    """Logical blocks that libxnvme reads. Whoever has it closes `device`.

    Attributes:
        way: how it was opened.
        device: open for reading.
        storage: what it is, and where the mapped file system begins on it.
        lba_bytes: bytes of a logical block.
        max_transfer: bytes, the most that one command may ask for.
    """

    way: Way
    device: Device
    storage: Storage
    lba_bytes: int
    max_transfer: int

    def refusal(self, error: OSError, doing: str) -> Exception:
        """What to raise where libxnvme fails at `doing` something with it."""
        return refusal(
            self.device.library, self.way, self.storage.path, self.device.io, error, doing
        )

    def commands(self, queue: Queue, reads: Reads) -> BlockReads:
        """The NVMe commands for some reads."""
        return BlockReads(queue, reads, self.lba_bytes, tells_length=self.way.tells_length)

    def read(self, queue: Queue, position: int, nbytes: int) -> bytes:
        """Some bytes, no more than one command may ask for.

        Raises:
            OSError, BackendUnavailable: they cannot be read; names the path.
        """
        memory = self.device.allocate(nbytes)
        columns = np.array([[position], [memory.ctypes.data], [nbytes]], np.int64)
        reads = self.commands(queue, Reads(*columns))
        queue.run(reads, memory)
        if reads.failed()[0]:
            number, what = reads.reason(0)
            if number in (errno.EACCES, errno.EPERM):
                raise _devices.no_permission(self.storage.path)
            hint = f": {what}, {nbytes} bytes at LBA {position // self.lba_bytes}"
            raise os_error(number, os.fsencode(self.storage.path), hint)
        return memory[:nbytes].tobytes()


def open_namespace(
    library: Library, uri: PathLike, io: str | None, nsid: int, loaded: LoadedMap
) -> Namespace:
    """Open what the mapped file system is on, and compare all but the file system with the map.

    Args:
        library: libxnvme.
        uri: a block device, an NVMe character device, a PCI address or an image.
        io: libxnvme's asynchronous implementation; None: the usual one.
        nsid: at a PCI address, which namespace.
        loaded: the map.

    Raises:
        ValueError: no such thing can be read, or not with this `io`.
        StaleMapError: it is another device than the mapped one.
        BackendUnavailable: it cannot be read here.
        OSError: it cannot be opened.
    """
    path = _devices.path_of(uri)
    if address := pci.address_of(path):
        return _open_pci(library, address, io, nsid, loaded)
    if nsid != 1:
        raise ValueError(
            f"xnvme-block: nsid {nsid} is for PCI addresses; the device {path!r} is a namespace"
        )
    if stat.S_ISCHR(_devices.mode_of(path)):
        return _open_node(library, path, io, loaded)
    storage = _devices.open_storage(path, loaded)
    os.close(storage.fd)
    if not stat.S_ISBLK(_devices.mode_of(path)):
        return _open(library, IMAGE, storage, io, loaded)
    return _open(library, BLOCK, nodes.on_disk(storage), io, loaded)


def _open_node(library: Library, path: str, io: str | None, loaded: LoadedMap) -> Namespace:
    """Open /dev/ngXnY. What sysfs says of nvmeXnY, the same namespace, tells whether it is it."""
    node, here = nodes.character_device(path)
    start = _devices.place_on_device(path, here, loaded)
    storage = Storage(node, (here.path,), start, here.logical_block_size)
    return _open(library, NODE, storage, io, loaded)


def _open_pci(
    library: Library, address: str, io: str | None, nsid: int, loaded: LoadedMap
) -> Namespace:
    """Open a controller that the kernel does not know. Only itself tells what it is."""
    if library.version != "main":
        raise BackendUnavailable(
            f"libxnvme {library.version} ({library.path}) cannot read from a PCI address: use one "
            "of the main branch (back end upcie), or give a block device as uri"
        )
    PCI.choose(io)
    pci.require_user_space_driver(address)
    opened = _device(library, PCI, address, None, nsid)
    try:
        geometry = _geometry_of_namespace(opened, address, nsid)
        _require_plain(geometry, address)
        if what := _difference(opened, geometry, loaded.map.device):
            raise loaded.other_device(address, what)
        start = _devices.place_by_size(address, geometry.size, loaded)
        storage = Storage(address, (), start, geometry.lba_bytes)
        return _checked(PCI, opened, geometry, storage, loaded)
    except BaseException:
        opened.close()
        raise


def _geometry_of_namespace(opened: Device, address: str, nsid: int) -> Geometry:
    try:
        return opened.geometry()
    except OSError as reason:
        raise ValueError(
            f"xnvme-block: nsid {nsid}: {address} has no such namespace, or it is not active "
            f"({reason})"
        ) from None


def _difference(opened: Device, geometry: Geometry, there: extent_map.Device) -> str:
    """What tells a namespace from the mapped one; empty if nothing does."""
    if geometry.lba_bytes != there.logical_block_size:
        return f"its logical_block_size is {geometry.lba_bytes} and was {there.logical_block_size}"
    return identify(opened).difference(there.serial, there.wwid)


def _open(
    library: Library, way: Way, storage: Storage, io: str | None, loaded: LoadedMap
) -> Namespace:
    opened = _device(library, way, storage.path, way.choose(io))
    try:
        try:
            geometry = opened.geometry()
        except OSError as reason:
            raise refusal(library, way, storage.path, opened.io, reason) from None
        _require_plain(geometry, storage.path)
        return _checked(way, opened, geometry, storage, loaded)
    except BaseException:
        opened.close()
        raise


def _device(library: Library, way: Way, path: str, io: str | None, nsid: int = 1) -> Device:
    name = os.fsencode(path)
    if len(name) > _LONGEST_URI:
        raise ValueError(f"uri {path!r} is longer than libxnvme takes, {_LONGEST_URI} bytes")
    claim = Claim(path) if way is PCI else None
    try:
        opened = Device(
            library,
            name,
            io=io,
            be=way.be,
            sync=way.sync,
            direct=way.direct,
            nsid=nsid,
            is_ours=claim.holds if claim else None,
        )
    except PermissionError as error:
        if way is PCI:
            raise refusal(library, way, path, io, error) from None
        raise _devices.no_permission(path) from None
    except OSError as error:
        raise refusal(library, way, path, io, error) from None
    if claim:
        claim.keep()
    return opened


def _checked(
    way: Way, opened: Device, geometry: Geometry, storage: Storage, loaded: LoadedMap
) -> Namespace:
    """What was opened, if its blocks are as they must be.

    Raises:
        BackendUnavailable: a command cannot ask for a whole one.
        StaleMapError: libxnvme sees other blocks than the kernel.
    """
    lba = geometry.lba_bytes
    if way is not IMAGE and lba != storage.block:
        what = f"libxnvme sees logical blocks of {lba} bytes, the kernel of {storage.block}"
        raise loaded.other_device(storage.path, what)
    most = min(_most_bytes(way, geometry, storage), MOST_BLOCKS * lba)
    unit = max(lba, _PAGE) if most >= _PAGE else lba
    if most < unit:
        raise refusal(
            opened.library, way, storage.path, opened.io, OSError(f"it takes {most} bytes at once")
        )
    return Namespace(way, opened, storage, lba, most // unit * unit)


def _most_bytes(way: Way, geometry: Geometry, storage: Storage) -> int:
    """That a command can ask for."""
    if way is BLOCK:
        return nodes.max_transfer(storage.path)
    if way is IMAGE:
        return MOST_BLOCKS * geometry.lba_bytes
    return min(geometry.max_transfer, way.most_bytes or geometry.max_transfer)


def _require_plain(geometry: Geometry, path: str) -> None:
    """Refuse, by a ValueError, a namespace that has more than logical blocks of bytes."""
    if geometry.kind != "conventional":
        raise ValueError(
            f"uri {path!r} is a {geometry.kind} namespace; only conventional ones are read"
        )
    if geometry.has_metadata:
        raise ValueError(
            f"uri {path!r} has metadata between its logical blocks (extended LBAs); format "
            "it without (`nvme format`, which erases it)"
        )


def refusal(
    library: Library, way: Way, path: str, io: str | None, error: OSError, doing: str = ""
) -> Exception:
    """What to raise where libxnvme fails with the device at `path`, at `doing` something."""
    what = f"{doing}: {error.strerror or error}" if doing else error.strerror or str(error)
    if way is not PCI and (limit := shortage(error, path)):
        return limit
    if io in IOS:
        return implementations.refusal(library, io, f"{path}: {what}")
    needs = _needs_of_controller(path) if way is PCI else _NODE_NEEDS
    return BackendUnavailable(
        f"libxnvme {library.version} ({library.path}) cannot read {path}"
        f"{f' with io {io!r}' if io else ''}: {what}; {needs}"
    )


def _needs_of_controller(address: str) -> str:
    needs = pci.needs(address)
    if needs:
        return f"it needs {'; '.join(map(str, needs))}"
    return "another process may have it, or the hugepages (HugePages_Free in /proc/meminfo)"
