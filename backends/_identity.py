"""Whether a device is the one that a map was made of, and where on it the file system begins."""

from __future__ import annotations

import os

from bmap_tools import device
from bmap_tools.device import UnsupportedStorage
from bmap_tools.extent_map import Device, ExtentMap

from ..errors import BackendUnavailable, StaleMapError

_SECTOR = 512  # bytes; the unit of a block device's size


def place_on_device(path: str, here: Device, mapped: ExtentMap, remedy: str) -> int:
    """Where the file system begins on a device that sysfs describes, in bytes.

    Raises:
        StaleMapError: it is another device than the mapped one.
    """
    there = mapped.device
    for name in ("logical_block_size", "serial", "wwid"):
        now, then = getattr(here, name), getattr(there, name)
        if now != then and now is not None and then is not None:
            raise other_device(path, f"its {name} is {now} and was {then}", remedy)
    if here.size == there.size:
        return 0
    if here.path == here.disk and here.size == there.disk_size:
        return there.start
    raise other_device(path, _sizes(here.size, mapped), remedy)


def place_by_size(path: str, size: int, mapped: ExtentMap, remedy: str) -> int:
    """Where the file system begins, in bytes, on what only the size is known of.

    Raises:
        StaleMapError: nothing of that size was mapped.
    """
    there = mapped.device
    whole = size // _SECTOR * _SECTOR  # as a loop device has it
    if whole == there.disk_size:
        return there.start
    if whole == there.size:
        return 0
    raise other_device(path, _sizes(size, mapped), remedy)


def _sizes(size: int, mapped: ExtentMap) -> str:
    there = mapped.device
    return f"it has {size} bytes, the mapped one {there.size}, its disk {there.disk_size}"


def require_file_system(head: bytes, path: str, start: int, mapped: ExtentMap, remedy: str) -> None:
    """Refuse a device on which there is another file system than the mapped one.

    Args:
        head: the first `device.SUPERBLOCK_BYTES` of the file system on it.
        path: of the device.
        start: bytes, where that is.
        mapped: the map.
        remedy: what a user is told to do.

    Raises:
        StaleMapError: it is another one.
    """
    try:
        _, uuid = device.identify(head, start)
    except UnsupportedStorage as reason:
        raise other_device(path, str(reason), remedy) from None
    if uuid != mapped.file_system.uuid:
        what = f"its file system is {uuid}, the mapped one {mapped.file_system.uuid}"
        raise other_device(path, what, remedy)


def require_alignment(path: str, start: int, block: int, mapped: ExtentMap) -> None:
    """Refuse an image that is read in larger blocks than the mapped device.

    Raises:
        BackendUnavailable: the files do not lie at multiples of `block` bytes.
    """
    places = mapped.extents[mapped.extents[:, 1] >= 0] % block
    if start % block or places.any():
        raise BackendUnavailable(
            f"{path} is read in blocks of {block} bytes, and the mapped files do not lie at "
            f"multiples of that: attach it with `losetup --find --show --read-only {path}` and "
            "give the loop device as uri"
        )


def other_device(path: str, what: str, remedy: str) -> StaleMapError:
    """What to raise where a device is not the mapped one; `what` says why."""
    return StaleMapError(os.fsencode(path), f"this is not the mapped device: {what}", remedy)
