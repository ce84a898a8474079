"""Disks, partitions, loop devices and image files, read with O_DIRECT."""

import errno
import io
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bmap_tools import device
from bmap_tools.extent_map import Device

from ...contract.devices import DeviceStatus
from ...contract.errors import BackendUnavailable, named
from .sysfs import sysfs_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Properties of a device or image, to compare with a map.

    Attributes:
        path: the path of the device or image, for messages.
        aliases: paths with the same bytes: its node or the image, and the file behind a loop
            device. Empty if the kernel does not know the device.
        size: bytes.
        alignment: bytes; offsets, lengths and memory addresses of reads are multiples of this.
        offset: bytes, the start of this storage on the device being read; nonzero only for a
            partition read through its disk.
        logical_block_size: bytes; None for an image.
        serial: None if not known.
        wwids: world-wide names; empty if not known. Of several, the kernel would use one.
        may_have_uuid: the kernel might know the device by a UUID missing in `wwids`.
    """

    path: str
    aliases: tuple[str, ...]
    size: int
    alignment: int
    offset: int = 0
    logical_block_size: int | None = None
    serial: str | None = None
    wwids: tuple[str, ...] = ()
    may_have_uuid: bool = False


@dataclass(frozen=True, slots=True)
class DirectFile:
    """A device or image, open for reading with O_DIRECT."""

    storage: Storage
    file: io.FileIO

    def read(self, offset: int, nbytes: int) -> bytes:
        """Read up to `nbytes` from `offset`, both multiples of the alignment."""
        with mmap.mmap(-1, nbytes) as memory, named(os.fsencode(self.storage.path)):
            return memory[: os.preadv(self.file.fileno(), [memory], offset)]

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        self.file.close()


def open_direct(path: str) -> DirectFile:
    """Open a disk, a partition, a loop device or an image file."""
    mode = mode_of(path)
    if not stat.S_ISBLK(mode) and not stat.S_ISREG(mode):
        hint = "; NVMe character devices are for xnvme-block" if stat.S_ISCHR(mode) else ""
        raise ValueError(f"uri {path!r} is neither a block device nor an image file{hint}")
    file = _open(path)
    try:
        if stat.S_ISBLK(mode):
            return DirectFile(describe(path, device.examine(path)), file)
        alignment, size = _alignment_of_image(file.fileno(), path), os.fstat(file.fileno()).st_size
        return DirectFile(Storage(path=path, aliases=(path,), size=size, alignment=alignment), file)
    except BaseException:
        file.close()
        raise


def describe(path: str, found: Device) -> Storage:
    """Describe a block device by the path of its node; `found` is its description in sysfs."""
    return Storage(
        path=path,
        aliases=(path, *filter(None, [found.backing_file])),
        size=found.size,
        alignment=found.logical_block_size,
        logical_block_size=found.logical_block_size,
        serial=found.serial,
        wwids=() if found.wwid is None else (found.wwid,),
    )


def list_disks(root: str = "/") -> Iterator[DeviceStatus]:
    """List all whole disks with a medium; `root` is the directory with `sys` and `dev`."""
    for entry in sorted((Path(root) / "sys/class/block").glob("*")):
        kind = device.disk_kind(entry.name)
        size, hidden = (sysfs_text(entry / name) for name in ("size", "hidden"))
        if kind is None or size in ("", "0") or hidden == "1":  # hidden: a path of a multipath disk
            continue
        problem = node_problem(Path(root) / "dev" / entry.name)
        yield DeviceStatus(f"/dev/{entry.name}", kind, problem)


def node_problem(node: Path) -> BackendUnavailable | None:
    """The reason why a device cannot be opened for reading, found by a trial; None if it can."""
    pass_to_container = "pass it to the container (docker run --device)"
    try:
        os.close(os.open(node, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except FileNotFoundError:
        return BackendUnavailable("no node in /dev", pass_to_container)
    except OSError as error:
        if not os.access(node, os.R_OK):
            remedy = "run as root, or let this user read it (setfacl -m u:$USER:r DEVICE)"
            return BackendUnavailable("no permission to read it", remedy)
        remedy = pass_to_container if error.errno == errno.EPERM else ""
        return BackendUnavailable(f"permitted, but cannot be opened: {error.strerror}", remedy)
    return None


def mode_of(path: str) -> int:
    """The st_mode of the path in the option `uri`."""
    hint = "; give the device or image that holds the mapped files as the option uri"
    try:
        with named(os.fsencode(path), hint):
            return os.stat(path).st_mode
    except ValueError as error:  # a null character
        raise ValueError(f"uri {path!r}: {error}") from None


def no_permission(path: str) -> BackendUnavailable:
    """The error for a device or image that this process may not open."""
    allow = f"`setfacl -m u:$USER:r {path}` (or the group disk)"
    remedy = f"run as root, or let this user read it with {allow}, or give an image file as uri"
    if os.geteuid() == 0:
        remedy = "not even root may: use docker run --device, or give an image file as uri"
    return BackendUnavailable(f"no permission to read {path}", remedy)


def attach_remedy(path: str) -> str:
    """The remedy for an image without usable O_DIRECT: a loop device."""
    command = f"losetup --find --show --read-only {path}"
    return f"attach it with `{command}` and give the loop device as uri"


def _open(path: str) -> io.FileIO:
    try:
        with named(os.fsencode(path)):
            return io.FileIO(path, opener=lambda _, flags: os.open(path, flags | os.O_DIRECT))
    except PermissionError:
        raise no_permission(path) from None
    except OSError as error:
        if error.errno == errno.EINVAL:
            what = f"{path} is on a file system without O_DIRECT"
            raise BackendUnavailable(what, attach_remedy(path)) from None
        raise


def _alignment_of_image(fd: int, path: str) -> int:
    """Find the alignment for O_DIRECT in bytes, by trial: statx(2) reports it since Linux 6.1."""
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as memory, named(os.fsencode(path)):
        for alignment in (512, 1024, 2048, 4096):
            try:
                os.preadv(fd, [memoryview(memory)[alignment : 2 * alignment]], alignment)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            else:
                return alignment
    raise BackendUnavailable(f"{path}: O_DIRECT reads of 4096 bytes are not supported here")
