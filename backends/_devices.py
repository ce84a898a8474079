"""The device or image that a map's extents are read from: found, compared with the map, opened."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from dataclasses import dataclass

from bmap_tools import device
from bmap_tools.device import UnsupportedStorage
from bmap_tools.extent_map import Device, ExtentMap

from ..errors import BackendUnavailable, StaleMapError, os_error
from ._maps import PathLike

_SECTOR = 512  # bytes; the unit of a block device's size


@dataclass(frozen=True, slots=True)
class Storage:
    """An open device or image. Whoever has it closes `fd`.

    Attributes:
        path: of its node, or of the image.
        fd: open for reading, with O_DIRECT.
        start: bytes, where the mapped file system begins on it.
        block: bytes; positions, lengths and addresses of reads are multiples of it.
    """

    path: str
    fd: int
    start: int
    block: int


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
    """The device of the file system that `root` is on, if that is the mapped one; else why not."""
    try:
        file_system, on = device.find(root)
    except (OSError, UnsupportedStorage) as reason:
        return str(reason)
    if file_system.uuid != mapped.file_system.uuid or on.size != mapped.device.size:
        return f"{os.fsdecode(root)!r} is on another file system, of {on.path}"
    return on


def open_first(uris: list[str], mapped: ExtentMap, remedy: str) -> Storage:
    """The first that holds the mapped file system.

    Raises:
        What `open_storage()` says of the first, if none does.
    """
    refusals: list[Exception] = []
    for uri in uris:
        try:
            return open_storage(uri, mapped, remedy)
        except (OSError, ValueError, BackendUnavailable) as refusal:
            refusals.append(refusal)
    raise refusals[0]


def require_same(on: Device, root: bytes, storage: Storage, remedy: str) -> None:
    """Refuse storage that a directory is not mounted from, a copy perhaps.

    What is changed in the files of the one is not changed on the other.

    Raises:
        StaleMapError: it is another.
    """
    places = [place for place in (on.path, on.disk, on.backing_file) if place is not None]
    ours = [storage.path]
    if stat.S_ISBLK(os.stat(storage.path).st_mode):
        ours += filter(None, [device.examine(storage.path).backing_file])
    if not any(_is_same_file(place, our) for place in places for our in ours):
        what = f"{os.fsdecode(root)!r} is mounted from {on.path}, not from {storage.path}"
        raise StaleMapError(os.fsencode(storage.path), what, remedy)


def _is_same_file(one: str, other: str) -> bool:
    try:
        a, b = os.stat(one), os.stat(other)
    except OSError:
        return False
    both_nodes = stat.S_ISBLK(a.st_mode) and stat.S_ISBLK(b.st_mode)
    return a.st_rdev == b.st_rdev if both_nodes else os.path.samestat(a, b)


def open_storage(uri: PathLike, mapped: ExtentMap, remedy: str) -> Storage:
    """Open a disk, a partition, a loop device or an image that holds the mapped file system.

    Raises:
        StaleMapError: it is another one than that which was mapped.
        BackendUnavailable: it cannot be read here: no permission, no O_DIRECT, too large blocks.
        ValueError: it is neither a file nor a plain block device.
        OSError: it cannot be opened.
    """
    try:
        path = os.fsdecode(uri)
    except TypeError:
        raise TypeError(f"uri must be the path of a device or an image, not {uri!r}") from None
    mode = _stat(path).st_mode
    if not stat.S_ISBLK(mode) and not stat.S_ISREG(mode):
        hint = "; NVMe character devices are for xnvme-block" if stat.S_ISCHR(mode) else ""
        raise ValueError(f"uri {path!r} is neither a block device nor an image file{hint}")
    fd = _open(path)
    try:
        if stat.S_ISBLK(mode):
            start, block = _place_on_device(path, mapped, remedy)
        else:
            start, block = _place_on_image(path, mapped, remedy), _block_of_image(fd, path)
        _require_file_system(fd, path, start, mapped, remedy)
        _require_alignment(path, start, block, mapped)
    except BaseException:
        os.close(fd)
        raise
    return Storage(path, fd, start, block)


def _stat(path: str) -> os.stat_result:
    try:
        return os.stat(path)
    except OSError as error:
        hint = "; give the device or image that holds the mapped files as the option uri"
        raise os_error(error.errno or errno.EIO, os.fsencode(path), hint) from None


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except PermissionError:
        raise BackendUnavailable(f"no permission to read {path}: {_remedy(path)}") from None
    except OSError as error:
        if error.errno == errno.EINVAL:
            raise BackendUnavailable(
                f"{path} is on a file system without O_DIRECT: attach it with "
                f"`losetup --find --show --read-only {path}` and give the loop device as uri"
            ) from None
        raise os_error(error.errno or errno.EIO, os.fsencode(path)) from None


def _remedy(path: str) -> str:
    if os.geteuid() == 0:
        return "not even root may here; let the container have the device, or give an image as uri"
    return (
        "run as root, or let this user read it with "
        f"`setfacl -m u:$USER:r {path}` (or the group disk), or give an image file as uri"
    )


def _place_on_device(path: str, mapped: ExtentMap, remedy: str) -> tuple[int, int]:
    """Where the file system begins, and the device's block."""
    here, there = device.examine(path), mapped.device
    for name in ("logical_block_size", "serial", "wwid"):
        now, then = getattr(here, name), getattr(there, name)
        if now != then and now is not None and then is not None:
            raise _other_device(path, f"its {name} is {now} and was {then}", remedy)
    if here.size == there.size:
        return 0, here.logical_block_size
    if here.path == here.disk and here.size == there.disk_size:
        return there.start, here.logical_block_size
    raise _other_device(path, _sizes(here.size, mapped), remedy)


def _place_on_image(path: str, mapped: ExtentMap, remedy: str) -> int:
    size, there = os.stat(path).st_size, mapped.device
    whole = size // _SECTOR * _SECTOR  # as a loop device has it
    if whole == there.disk_size:
        return there.start
    if whole == there.size:
        return 0
    raise _other_device(path, _sizes(size, mapped), remedy)


def _sizes(size: int, mapped: ExtentMap) -> str:
    there = mapped.device
    return f"it has {size} bytes, the mapped one {there.size}, its disk {there.disk_size}"


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


def _require_file_system(fd: int, path: str, start: int, mapped: ExtentMap, remedy: str) -> None:
    try:
        _, uuid = device.superblock(fd, start)
    except UnsupportedStorage as reason:
        raise _other_device(path, str(reason), remedy) from None
    if uuid != mapped.file_system.uuid:
        what = f"its file system is {uuid}, the mapped one {mapped.file_system.uuid}"
        raise _other_device(path, what, remedy)


def _require_alignment(path: str, start: int, block: int, mapped: ExtentMap) -> None:
    places = mapped.extents[mapped.extents[:, 1] >= 0] % block
    if start % block or places.any():
        raise BackendUnavailable(
            f"{path} is read in blocks of {block} bytes, and the mapped files do not lie at "
            f"multiples of that: attach it with `losetup --find --show --read-only {path}` and "
            "give the loop device as uri"
        )


def _other_device(path: str, what: str, remedy: str) -> StaleMapError:
    return StaleMapError(os.fsencode(path), f"this is not the mapped device: {what}", remedy)
