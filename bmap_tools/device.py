"""The block device of a directory, as the kernel's mount table and sysfs describe it.

Sources: proc_pid_mountinfo(5); the kernel's Documentation/ABI/stable/sysfs-block; <linux/fs.h>;
the superblocks as in Documentation/filesystems/ext4/super.rst and fs/xfs/libxfs/xfs_format.h.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
import stat
import uuid

from . import mounts
from .extent_map import Device, FileSystem

_SECTOR = 512  # bytes, the unit of sysfs whatever the device's own
_GETFSUUID = 0x80111500  # FS_IOC_GETFSUUID: _IOR(0x15, 0, struct fsuuid2 {u8 len; u8 uuid[16]})
SUPERBLOCK_BYTES = 4096
"""As many from the beginning of a file system tell which one it is."""
_LARGEST_LOGICAL_BLOCK = 4096  # bytes

_PLAIN_DISK = re.compile(
    r"nvme\d+n\d+|sd[a-z]+|vd[a-z]+|xvd[a-z]+|mmcblk\d+|ram\d+|loop\d+",
)
_REMAPPING = {
    "dm-": "a device-mapper device (LVM, LUKS, multipath), which puts data elsewhere",
    "md": "a RAID (md), which spreads data over other disks",
    "bcache": "a bcache device, which keeps data on two other disks",
    "drbd": "a DRBD device, which lies on another disk",
    "nbd": "a network block device",
    "rbd": "a network block device (Ceph)",
    "zd": "a ZFS volume",
    "zram": "compressed memory",
}


class UnsupportedStorage(ValueError):  # noqa: N818 - the storage is, not the error
    """Extents cannot be read from what a directory is on; the message says why."""


def find(directory: str | bytes | os.PathLike[str]) -> tuple[FileSystem, Device]:
    """The file system that a directory is on, and the block device of that.

    Raises:
        UnsupportedStorage: extents there cannot be read from a plain block device; says why.
        OSError: there is no such directory, or it cannot be opened.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        mount = mounts.of(fd)
        if why := mounts.obstacle(mount):
            raise UnsupportedStorage(f"{os.fsdecode(directory)}: {why}")
        device = _describe(_sysfs_directory(os.fstat(fd).st_dev))
        if mounts.journals_data(mount, os.path.basename(device.path)):
            raise UnsupportedStorage(
                f"{os.fsdecode(directory)} is mounted with data=journal: new data lies in the "
                "journal first, and not where the extents say; mount it with data=ordered"
            )
        identity = _uuid(fd) or _uuid_of_superblock(device.path)
        return FileSystem(mount.type, identity, os.fstatvfs(fd).f_frsize), device
    finally:
        os.close(fd)


def examine(node: str) -> Device:
    """What sysfs says of a block device, given by any path to its node.

    Raises:
        UnsupportedStorage: not a block device, or none that is a plain disk or a partition of one.
        OSError: there is no such node, or sysfs does not describe it.
    """
    status = os.stat(node)
    if not stat.S_ISBLK(status.st_mode):
        raise UnsupportedStorage(f"{node} is not a block device")
    return _describe(_sysfs_directory(status.st_rdev))


def describe(name: str) -> Device:
    """The same of a block device by the kernel's name for it, "nvme0n1"; it may have no node here.

    Raises:
        UnsupportedStorage, OSError: as `examine()`.
    """
    return _describe(os.path.realpath(f"/sys/class/block/{name}"))


def _sysfs_directory(number: int) -> str:
    return os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")


def _describe(directory: str) -> Device:
    """The device whose directory in sysfs this is; that of a partition lies in its disk's."""
    start = _attribute(directory, "start")  # only partitions have one
    disk = directory if start is None else os.path.dirname(directory)
    path, name = _node(directory), os.path.basename(disk)
    if not _PLAIN_DISK.fullmatch(name):
        raise UnsupportedStorage(f"{path} is on {_what_it_is(name)}")
    logical_block_size = int(_required(disk, "queue/logical_block_size"))
    if logical_block_size > _LARGEST_LOGICAL_BLOCK:
        raise UnsupportedStorage(
            f"{path} has logical blocks of {logical_block_size} bytes; only devices whose logical "
            f"blocks have at most {_LARGEST_LOGICAL_BLOCK} bytes can be mapped"
        )
    return Device(
        path=path,
        size=int(_required(directory, "size")) * _SECTOR,
        logical_block_size=logical_block_size,
        disk=_node(disk),
        disk_size=int(_required(disk, "size")) * _SECTOR,
        start=int(start or 0) * _SECTOR,
        serial=_attribute(disk, "serial") or _attribute(disk, "device/serial"),
        wwid=_attribute(disk, "wwid") or _attribute(disk, "device/wwid"),
        backing_file=_attribute(disk, "loop/backing_file"),
    )


def _what_it_is(name: str) -> str:
    for beginning, what in _REMAPPING.items():
        if re.fullmatch(rf"{beginning}[a-z]?\d+", name):
            return f"{what}; only plain disks, their partitions and loop devices can be mapped"
    return (
        f"{name}, a kind of block device that is not known here; only plain disks (NVMe, SCSI, "
        "SATA, virtio, Xen, MMC, RAM), their partitions and loop devices can be mapped"
    )


def _node(directory: str) -> str:
    match = re.search(r"^DEVNAME=(.+)$", _required(directory, "uevent"), re.MULTILINE)
    return f"/dev/{match[1] if match else os.path.basename(directory)}"


def _attribute(directory: str, name: str) -> str | None:
    """A file of sysfs, without the white space around; None where there is none or it is empty."""
    try:
        with open(os.path.join(directory, name), errors="surrogateescape") as file:
            return file.read().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        # A device may have the file and no answer, and a stranger may not be told.
        if error.errno in (errno.EACCES, errno.EINVAL, errno.ENXIO, errno.EOPNOTSUPP):
            return None
        raise


def _required(directory: str, name: str) -> str:
    value = _attribute(directory, name)
    if value is None:
        raise FileNotFoundError(errno.ENOENT, "sysfs does not describe the block device", directory)
    return value


def _uuid(fd: int) -> str | None:
    """The UUID of the file system that a file is on; None before Linux 6.9."""
    answer = bytearray(17)
    try:
        fcntl.ioctl(fd, _GETFSUUID, answer)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
            return None
        raise
    return str(uuid.UUID(bytes=bytes(answer[1:])))


def _uuid_of_superblock(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY)
    except PermissionError:
        raise UnsupportedStorage(
            f"the UUID of the file system on {path} cannot be read: before Linux 6.9 that needs "
            "root, or the right to read the device"
        ) from None
    try:
        return superblock(fd)[1]
    finally:
        os.close(fd)


def superblock(fd: int, offset: int = 0) -> tuple[str, str]:
    """The file system in an open device or image: its family, "ext" or "xfs", and its UUID.

    Args:
        fd: what to read; O_DIRECT is fine.
        offset: bytes into it where the file system begins; a multiple of its logical block.

    Raises:
        UnsupportedStorage: there is neither of the two.
        OSError: it cannot be read.
    """
    return identify(head(fd, offset), offset)


def head(fd: int, offset: int) -> bytes:
    """The first SUPERBLOCK_BYTES of a file system; fewer where the device ends before.

    Args:
        fd: as of `superblock()`.
        offset: as of `superblock()`.

    Raises:
        OSError: it cannot be read.
    """
    with mmap.mmap(-1, SUPERBLOCK_BYTES) as block:  # O_DIRECT wants aligned memory
        got = os.preadv(fd, [block], offset)
        return block[:got]


def identify(head: bytes, offset: int) -> tuple[str, str]:
    """The same from the first SUPERBLOCK_BYTES of a file system, which were read at `offset`.

    Raises:
        UnsupportedStorage: as `superblock()`.
    """
    if len(head) == SUPERBLOCK_BYTES and head[:4] == b"XFSB":
        return "xfs", str(uuid.UUID(bytes=head[32:48]))
    if len(head) == SUPERBLOCK_BYTES and head[1024 + 0x38 : 1024 + 0x3A] == b"\x53\xef":
        return "ext", str(uuid.UUID(bytes=head[1024 + 0x68 : 1024 + 0x78]))
    raise UnsupportedStorage(f"no ext2, ext3, ext4 or XFS file system at byte {offset}")
