"""Lookup of the device or image with a mapped file system, and its comparison with the map."""

import os
import stat
from collections.abc import Callable
from typing import Protocol, TypeVar

from bmap_tools import file_system
from bmap_tools.device import UnsupportedStorage
from bmap_tools.extent_map import Device, ExtentMap

from ...contract._types import PathLike
from ...contract.errors import LIMITS, BackendUnavailable, os_error
from ..linux.storage import Storage, attach_remedy
from .map import LoadedMap

_SECTOR = 512  # bytes; the unit of a block device's size


class MappedDevice(Protocol):
    """An open device or image."""

    @property
    def storage(self) -> Storage:
        """Properties of the device or image."""

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read `nbytes` from `offset`; both are multiples of the alignment."""

    def close(self) -> None:
        """Close the device or image."""


Opened = TypeVar("Opened", bound=MappedDevice)


def open_mapped(
    uri: PathLike | None, loaded: LoadedMap, root: bytes, opener: Callable[[str], Opened]
) -> tuple[Opened, int]:
    """Open the device with the mapped file system; also return where that starts (bytes).

    `uri` is the path of a device or image; None: try the likely ones, and raise the error of the
    first if none is right. `root` is a directory of the file system, where mounted.
    """
    refusals: list[Exception] = []
    for path in _likely_paths(loaded.map, root) if uri is None else [_path_of(uri)]:
        try:
            source = opener(path)
            try:
                return source, locate(source, loaded)
            except BaseException:
                source.close()
                raise
        except (OSError, ValueError, BackendUnavailable) as refusal:
            refusals.append(refusal)
    raise refusals.pop(0)  # a cycle of list and traceback would keep the device alive


def locate(source: MappedDevice, loaded: LoadedMap) -> int:
    """Compare a device or image with the map; return where the file system starts on it (bytes)."""
    storage = source.storage
    start = storage.offset + _require_same_device(storage, loaded)
    _require_alignment(storage, start, loaded)
    try:
        head = source.read(start, file_system.SUPERBLOCK_BYTES)
        _, uuid = file_system.identify(head, start)
    except UnsupportedStorage as reason:
        raise loaded.other_device(storage.path, str(reason)) from None
    if uuid != loaded.map.file_system.uuid:
        what = f"its file system is {uuid}, the mapped one is {loaded.map.file_system.uuid}"
        raise loaded.other_device(storage.path, what)
    return start


def _require_same_device(storage: Storage, loaded: LoadedMap) -> int:
    """Return where the file system starts on the storage (bytes), or refuse another device."""
    there = loaded.map.device
    wwids = storage.wwids
    if storage.may_have_uuid and (there.wwid or "").startswith("uuid."):
        wwids = ()
    properties = (
        ("logical_block_size", [storage.logical_block_size], there.logical_block_size),
        ("serial", [storage.serial], there.serial),
        ("wwid", wwids, there.wwid),
    )
    for name, found, then in properties:
        known = [value for value in found if value is not None]
        if known and then is not None and then not in known:
            now = " or ".join(map(str, known))
            raise loaded.other_device(storage.path, f"its {name} is {now} and was {then}")
    # The whole disk, or the device of the file system. An image may have an odd end.
    starts = {there.disk_size: there.start, there.size: 0}
    start = starts.get(storage.size // _SECTOR * _SECTOR)
    if start is None:
        mapped = f"the mapped device {there.size}, its disk {there.disk_size}"
        raise loaded.other_device(storage.path, f"it has {storage.size} bytes, {mapped}")
    return start


def _require_alignment(storage: Storage, start: int, loaded: LoadedMap) -> None:
    physical = loaded.map.extents[:, 1]
    if start % storage.alignment or (physical[physical >= 0] % storage.alignment).any():
        what = f"{storage.path} is read in blocks of {storage.alignment} bytes"
        remedy = attach_remedy(storage.path)
        raise BackendUnavailable(f"{what}, and the mapped files are not aligned to them", remedy)


def _path_of(uri: PathLike) -> str:
    try:
        return os.fsdecode(uri)
    except TypeError:
        raise TypeError(f"uri must be the path of a device or an image, not {uri!r}") from None


def _likely_paths(mapped: ExtentMap, root: bytes) -> list[str]:
    """List the devices that may have the mapped file system, most likely first.

    For a mounted file system, at `root` or at the root of the map: only its device. Otherwise: the
    device with its UUID, or the path of the mapped device or image.
    """
    for directory in (root, mapped.root):
        on = mounted_device(mapped, directory)
        if isinstance(on, Device):
            return [on.path]
    there = mapped.device
    candidates = [f"/dev/disk/by-uuid/{mapped.file_system.uuid}", there.path, there.backing_file]
    known = [path for path in candidates if path is not None and os.path.exists(path)]
    return known or [there.path]


def mounted_device(mapped: ExtentMap, root: bytes) -> Device | str:
    """The device of the mapped file system if `root` is on it; else the reason why not."""
    try:
        found, on = file_system.find(root)
    except (OSError, UnsupportedStorage) as reason:
        if isinstance(reason, OSError) and reason.errno in LIMITS:
            raise os_error(reason.errno, root) from None
        return str(reason)
    if found.uuid != mapped.file_system.uuid or on.size != mapped.device.size:
        return f"{os.fsdecode(root)!r} is on another file system, on {on.path}"
    return on


def require_mounted_from(on: Device, root: bytes, storage: Storage, loaded: LoadedMap) -> None:
    """Refuse storage other than the source of `root`'s mount, such as a copy: copies go stale."""
    paths = [path for path in (on.path, on.disk, on.backing_file) if path is not None]
    if not any(_is_same_file(path, alias) for path in paths for alias in storage.aliases):
        what = f"{os.fsdecode(root)!r} is mounted from {on.path}, not from {storage.path}"
        raise loaded.other_device(storage.path, what)


def _is_same_file(one: str, other: str) -> bool:
    try:
        a, b = os.stat(one), os.stat(other)
    except OSError:
        return one == other  # known to sysfs, without a node here
    both_nodes = stat.S_ISBLK(a.st_mode) and stat.S_ISBLK(b.st_mode)
    return a.st_rdev == b.st_rdev if both_nodes else os.path.samestat(a, b)
