"""What the mapped file system is on, opened by libxnvme: a device, its address, or an image."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from bmap_tools import extent_map
from bmap_tools.extent_map import ExtentMap

from .. import controllers
from ..errors import BackendUnavailable
from . import _devices, _identity, _xnvme_nodes, _xnvme_ways
from ._devices import Storage
from ._maps import PathLike
from ._xnvme import Library
from ._xnvme_blocks import MOST_BLOCKS
from ._xnvme_claims import Claim
from ._xnvme_devices import Device, Geometry
from ._xnvme_identify import identify
from ._xnvme_ways import Way

_PAGE = 4096  # bytes
_LONGEST_URI = 383  # bytes: libxnvme would not open it, and does not say why


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
        return _xnvme_ways.refusal(
            self.device.library, self.way, self.storage.path, self.device.io, error, doing
        )


def open_namespace(
    library: Library, uri: PathLike, io: str | None, nsid: int, mapped: ExtentMap, remedy: str
) -> Namespace:
    """Open what the mapped file system is on, and compare all but the file system with the map.

    Args:
        library: libxnvme.
        uri: a block device, an NVMe character device, a PCI address or an image.
        io: libxnvme's asynchronous implementation; None: the usual one.
        nsid: at a PCI address, which namespace.
        mapped: the map.
        remedy: what a user is told to do about another device.

    Raises:
        ValueError: no such thing can be read, or not with this `io`.
        StaleMapError: it is another device than the mapped one.
        BackendUnavailable: it cannot be read here.
        OSError: it cannot be opened.
    """
    path = _devices.path_of(uri)
    if address := controllers.address_of(path):
        return _open_pci(library, address, io, nsid, mapped, remedy)
    if nsid != 1:
        raise ValueError(
            f"xnvme-block: nsid {nsid} is for PCI addresses; the device {path!r} is a namespace"
        )
    if stat.S_ISCHR(_devices.mode_of(path)):
        return _open_node(library, path, io, mapped, remedy)
    storage = _devices.open_storage(path, mapped, remedy)
    os.close(storage.fd)
    if not stat.S_ISBLK(_devices.mode_of(path)):
        return _open(library, _xnvme_ways.IMAGE, storage, io, remedy)
    return _open(library, _xnvme_ways.BLOCK, _xnvme_nodes.on_disk(storage), io, remedy)


def _open_node(
    library: Library, path: str, io: str | None, mapped: ExtentMap, remedy: str
) -> Namespace:
    """Open /dev/ngXnY. What sysfs says of nvmeXnY, the same namespace, tells whether it is it."""
    node, here = _xnvme_nodes.character_device(path)
    start = _identity.place_on_device(path, here, mapped, remedy)
    storage = Storage(node, (here.path,), start, here.logical_block_size)
    return _open(library, _xnvme_ways.NODE, storage, io, remedy)


def _open_pci(
    library: Library, address: str, io: str | None, nsid: int, mapped: ExtentMap, remedy: str
) -> Namespace:
    """Open a controller that the kernel does not know. Only itself tells what it is."""
    if library.version != "main":
        raise BackendUnavailable(
            f"libxnvme {library.version} ({library.path}) cannot read from a PCI address: use one "
            "of the main branch (back end upcie), or give a block device as uri"
        )
    _xnvme_ways.PCI.choose(io)
    controllers.require_user_space_driver(address)
    opened = _device(library, _xnvme_ways.PCI, address, None, nsid)
    try:
        geometry = _geometry_of_namespace(opened, address, nsid)
        _require_plain(geometry, address)
        if what := _difference(opened, geometry, mapped.device):
            raise _identity.other_device(address, what, remedy)
        start = _identity.place_by_size(address, geometry.size, mapped, remedy)
        storage = Storage(address, (), start, geometry.lba_bytes)
        return _checked(_xnvme_ways.PCI, opened, geometry, storage, remedy)
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


def _open(library: Library, way: Way, storage: Storage, io: str | None, remedy: str) -> Namespace:
    opened = _device(library, way, storage.path, way.choose(io))
    try:
        try:
            geometry = opened.geometry()
        except OSError as reason:
            raise _xnvme_ways.refusal(library, way, storage.path, opened.io, reason) from None
        _require_plain(geometry, storage.path)
        return _checked(way, opened, geometry, storage, remedy)
    except BaseException:
        opened.close()
        raise


def _device(library: Library, way: Way, path: str, io: str | None, nsid: int = 1) -> Device:
    name = os.fsencode(path)
    if len(name) > _LONGEST_URI:
        raise ValueError(f"uri {path!r} is longer than libxnvme takes, {_LONGEST_URI} bytes")
    claim = Claim(path) if way is _xnvme_ways.PCI else None
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
        if way is _xnvme_ways.PCI:
            raise _xnvme_ways.refusal(library, way, path, io, error) from None
        raise _devices.no_permission(path) from None
    except OSError as error:
        raise _xnvme_ways.refusal(library, way, path, io, error) from None
    if claim:
        claim.keep()
    return opened


def _checked(
    way: Way, opened: Device, geometry: Geometry, storage: Storage, remedy: str
) -> Namespace:
    """What was opened, if its blocks are as they must be.

    Raises:
        BackendUnavailable: a command cannot ask for a whole one.
        StaleMapError: libxnvme sees other blocks than the kernel.
    """
    lba = geometry.lba_bytes
    if way is not _xnvme_ways.IMAGE and lba != storage.block:
        what = f"libxnvme sees logical blocks of {lba} bytes, the kernel of {storage.block}"
        raise _identity.other_device(storage.path, what, remedy)
    most = min(_most_bytes(way, geometry, storage), MOST_BLOCKS * lba)
    unit = max(lba, _PAGE) if most >= _PAGE else lba
    if most < unit:
        raise _xnvme_ways.refusal(
            opened.library, way, storage.path, opened.io, OSError(f"it takes {most} bytes at once")
        )
    return Namespace(way, opened, storage, lba, most // unit * unit)


def _most_bytes(way: Way, geometry: Geometry, storage: Storage) -> int:
    """That a command can ask for."""
    if way is _xnvme_ways.BLOCK:
        return _xnvme_nodes.max_transfer(storage.path)
    if way is _xnvme_ways.IMAGE:
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
