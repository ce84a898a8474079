"""The device or image that a map's extents are read from: found and opened."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from bmap_tools import device, file_system
from bmap_tools.device import UnsupportedStorage
from bmap_tools.extent_map import Device, ExtentMap

from ..._types import PathLike
from ...errors import LIMITS, BackendUnavailable, os_error
from .map import LoadedMap

_SECTOR = 512  # bytes; the unit of a block device's size

Opened = TypeVar("Opened")


@dataclass(frozen=True, slots=True)
class Storage:
    """A device or image that the mapped file system is on.

    Attributes:
        path: what users know it by: of its node, or of the image.
        places: paths of what has the same bytes: the node of its block device, or the image, and
            what is behind a loop device. Empty where the kernel does not know the device.
        start: bytes, where the mapped file system begins on it.
        block: bytes; positions, lengths and addresses of reads are multiples of it.
    """

    path: str
    places: tuple[str, ...]
    start: int
    block: int


@dataclass(frozen=True, slots=True)
class OpenStorage(Storage):
    """The same, open. Whoever has it closes `fd`.

    Attributes:
        fd: open for reading, with O_DIRECT.
    """

    fd: int


def find(mapped: ExtentMap, root: bytes) -> list[str]:
    """Where the mapped file system may be, most likely first.

    That is what it is mounted from, at `root` or where it was; else what has its UUID, or the name
    that its device or image had.
    """
    for directory in (root, mapped.root):
        on = mounted_device(mapped, directory)
        if isinstance(on, Device):
            return [on.path]
    there = mapped.device
    places = [f"/dev/disk/by-uuid/{mapped.file_system.uuid}", there.path, there.backing_file]
    known = [place for place in places if place is not None and os.path.exists(place)]
    return known or [there.path]


def mounted_device(mapped: ExtentMap, root: bytes) -> Device | str:
    """The device of the file system that `root` is on, if that is the mapped one; else why not.

    Raises:
        OSError: this process cannot open so many files.
    """
    try:
        found, on = file_system.find(root)
    except (OSError, UnsupportedStorage) as reason:
        if isinstance(reason, OSError) and reason.errno in LIMITS:
            raise os_error(reason.errno, root) from None
        return str(reason)
    if found.uuid != mapped.file_system.uuid or on.size != mapped.device.size:
        return f"{os.fsdecode(root)!r} is on another file system, of {on.path}"
    return on


def open_found(
    uri: PathLike | None, mapped: ExtentMap, root: bytes, opener: Callable[[PathLike], Opened]
) -> Opened:
    """What `opener` makes of the option `uri`; without it, of the first place that it accepts.

    Raises:
        What `opener` says, of the first place if it refuses all.
    """
    refusals: list[Exception] = []
    for place in find(mapped, root) if uri is None else [uri]:
        try:
            return opener(place)
        except (OSError, ValueError, BackendUnavailable) as refusal:
            refusals.append(refusal)
    raise refusals[0]


def require_same(on: Device, root: bytes, storage: Storage, loaded: LoadedMap) -> None:
    """Refuse storage that a directory is not mounted from, a copy perhaps.

    What is changed in the files of the one is not changed on the other.

    Raises:
        StaleMapError: it is another.
    """
    places = [place for place in (on.path, on.disk, on.backing_file) if place is not None]
    if not any(_is_same_file(place, our) for place in places for our in storage.places):
        what = f"{os.fsdecode(root)!r} is mounted from {on.path}, not from {storage.path}"
        raise loaded.stale(os.fsencode(storage.path), what)


def _is_same_file(one: str, other: str) -> bool:
    try:
        a, b = os.stat(one), os.stat(other)
    except OSError:
        return one == other  # sysfs knows it, and it has no node here
    both_nodes = stat.S_ISBLK(a.st_mode) and stat.S_ISBLK(b.st_mode)
    return a.st_rdev == b.st_rdev if both_nodes else os.path.samestat(a, b)


def open_storage(uri: PathLike, loaded: LoadedMap) -> OpenStorage:
    """Open a disk, a partition, a loop device or an image that holds the mapped file system.

    Raises:
        StaleMapError: it is another one than that which was mapped.
        BackendUnavailable: it cannot be read here: no permission, no O_DIRECT, too large blocks.
        ValueError: it is neither a file nor a plain block device.
        OSError: it cannot be opened.
    """
    path = path_of(uri)
    mode = mode_of(path)
    if not stat.S_ISBLK(mode) and not stat.S_ISREG(mode):
        hint = "; NVMe character devices are for xnvme-block" if stat.S_ISCHR(mode) else ""
        raise ValueError(f"uri {path!r} is neither a block device nor an image file{hint}")
    fd = _open(path)
    try:
        if stat.S_ISBLK(mode):
            here = device.examine(path)
            start = place_on_device(path, here, loaded)
            block, places = here.logical_block_size, (path, *filter(None, [here.backing_file]))
        else:
            start = place_by_size(path, os.fstat(fd).st_size, loaded)
            block, places = _block_of_image(fd, path), (path,)
        require_file_system(file_system.head(fd, start), path, start, loaded)
        require_alignment(path, start, block, loaded)
    except BaseException:
        os.close(fd)
        raise
    return OpenStorage(path, places, start, block, fd)


def path_of(uri: PathLike) -> str:
    """The option `uri` as a str."""
    try:
        return os.fsdecode(uri)
    except TypeError:
        raise TypeError(f"uri must be the path of a device or an image, not {uri!r}") from None


def mode_of(path: str) -> int:
    """The st_mode of what the option `uri` names."""
    try:
        return os.stat(path).st_mode
    except ValueError as error:  # a null character
        raise ValueError(f"uri {path!r}: {error}") from None
    except OSError as error:
        hint = "; give the device or image that holds the mapped files as the option uri"
        raise os_error(error.errno or errno.EIO, os.fsencode(path), hint) from None


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except PermissionError:
        raise no_permission(path) from None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise BackendUnavailable(
                f"{path} is on a file system without O_DIRECT: attach it with "
                f"`losetup --find --show --read-only {path}` and give the loop device as uri"
            ) from None
        raise os_error(error.errno or errno.EIO, os.fsencode(path)) from None


def no_permission(path: str) -> BackendUnavailable:
    """What to raise where a device may not be opened."""
    return BackendUnavailable(f"no permission to read {path}: {_remedy(path)}")


def _remedy(path: str) -> str:
    if os.geteuid() == 0:
        return "not even root may here; let the container have the device, or give an image as uri"
    return (
        "run as root, or let this user read it with "
        f"`setfacl -m u:$USER:r {path}` (or the group disk), or give an image file as uri"
    )


def _block_of_image(fd: int, path: str) -> int:
    """What O_DIRECT asks of addresses here, in bytes; before Linux 6.1 only a refusal tells."""
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory:
        for block in (512, 1024, 2048, 4096):
            try:
                os.preadv(fd, [memoryview(memory)[block : 2 * block]], block)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise os_error(error.errno or errno.EIO, os.fsencode(path)) from None
            else:
                return block
    raise BackendUnavailable(f"{path}: O_DIRECT reads of 4096 bytes are refused here")


def place_on_device(path: str, here: Device, loaded: LoadedMap) -> int:
    """Where the file system begins on a device that sysfs describes, in bytes.

    Raises:
        StaleMapError: it is another device than the mapped one.
    """
    there = loaded.map.device
    for name in ("logical_block_size", "serial", "wwid"):
        now, then = getattr(here, name), getattr(there, name)
        if now != then and now is not None and then is not None:
            raise loaded.other_device(path, f"its {name} is {now} and was {then}")
    if here.size == there.size:
        return 0
    if here.path == here.disk and here.size == there.disk_size:
        return there.start
    raise loaded.other_device(path, _sizes(here.size, loaded))


def place_by_size(path: str, size: int, loaded: LoadedMap) -> int:
    """Where the file system begins, in bytes, on what only the size is known of.

    Raises:
        StaleMapError: nothing of that size was mapped.
    """
    there = loaded.map.device
    whole = size // _SECTOR * _SECTOR  # as a loop device has it
    if whole == there.disk_size:
        return there.start
    if whole == there.size:
        return 0
    raise loaded.other_device(path, _sizes(size, loaded))


def _sizes(size: int, loaded: LoadedMap) -> str:
    there = loaded.map.device
    return f"it has {size} bytes, the mapped one {there.size}, its disk {there.disk_size}"


def require_file_system(head: bytes, path: str, start: int, loaded: LoadedMap) -> None:
    """Refuse a device on which there is another file system than the mapped one.

    Args:
        head: the first `file_system.SUPERBLOCK_BYTES` of the file system on it.
        path: of the device.
        start: bytes, where that is.
        loaded: the map.

    Raises:
        StaleMapError: it is another one.
    """
    try:
        _, uuid = file_system.identify(head, start)
    except UnsupportedStorage as reason:
        raise loaded.other_device(path, str(reason)) from None
    if uuid != loaded.map.file_system.uuid:
        what = f"its file system is {uuid}, the mapped one {loaded.map.file_system.uuid}"
        raise loaded.other_device(path, what)


def require_alignment(path: str, start: int, block: int, loaded: LoadedMap) -> None:
    """Refuse an image that is read in larger blocks than the mapped device.

    Raises:
        BackendUnavailable: the files do not lie at multiples of `block` bytes.
    """
    places = loaded.map.extents[loaded.map.extents[:, 1] >= 0] % block
    if start % block or places.any():
        raise BackendUnavailable(
            f"{path} is read in blocks of {block} bytes, and the mapped files do not lie at "
            f"multiples of that: attach it with `losetup --find --show --read-only {path}` and "
            "give the loop device as uri"
        )
