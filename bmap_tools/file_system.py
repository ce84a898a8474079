"""The file system of a directory: its mount, its UUID, and its support for maps.

Sources: proc_pid_mountinfo(5); <linux/fs.h>; for the superblocks, the kernel's
Documentation/filesystems/ext4/super.rst and fs/xfs/libxfs/xfs_format.h.
"""

import errno
import fcntl
import mmap
import os
import re
import uuid
from contextlib import suppress
from typing import NamedTuple

from . import device
from .device import UnsupportedStorage
from .extent_map import Device, FileSystem

SUPERBLOCK_BYTES = 4096
"""Bytes at the beginning of a file system that are enough to identify it."""

_GETFSUUID = 0x80111500  # FS_IOC_GETFSUUID: _IOR(0x15, 0, struct fsuuid2 {u8 len; u8 uuid[16]})
_SUPPORTED = ("ext2", "ext3", "ext4", "xfs")
_IN_MEMORY = "is in memory, not on a block device"
_NETWORK = "is a network file system, its blocks are on another machine"
_VIRTUAL = "belongs to the host of this virtual machine"
_UNSUPPORTED = {
    "btrfs": "reports addresses in a logical space of its own, not those on the device",
    "overlay": "combines other file systems; give the directory on the lower or upper one",
    "zfs": "does not report where on the disks of its pool data is",
    "bcachefs": "spreads its data over several devices",
    **dict.fromkeys(("tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"), _IN_MEMORY),
    **dict.fromkeys(("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "afs"), _NETWORK),
    **dict.fromkeys(("beegfs", "pvfs2", "gfs2", "ocfs2"), _NETWORK),
    **dict.fromkeys(("9p", "virtiofs", "vboxsf"), _VIRTUAL),
}


class Mount(NamedTuple):
    """A mounted file system: its type and its options except defaults, as in mountinfo."""

    type: str
    options: str


def find(directory: str | bytes | os.PathLike[str]) -> tuple[FileSystem, Device]:
    """Find the file system of a directory, and the block device below.

    Raises:
        UnsupportedStorage: extents cannot be read from a plain block device; names the reason.
        OSError: the directory is missing or cannot be opened.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        mount = mount_of(fd)
        if reason := unsupported_reason(mount):
            raise UnsupportedStorage(f"{os.fsdecode(directory)}: {reason}")
        number = os.fstat(fd).st_dev
        found = device.of_sysfs(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
        if _journals_data(mount, os.path.basename(found.path)):
            raise UnsupportedStorage(
                f"{os.fsdecode(directory)} is mounted with data=journal: new data goes to the "
                "journal first, not to its extents; mount it with data=ordered"
            )
        identity = _uuid(fd) or _uuid_of_device(found.path)
        return FileSystem(mount.type, identity, os.fstatvfs(fd).f_frsize), found
    finally:
        os.close(fd)


def mount_of(fd: int) -> Mount:
    """Find the mount through which an open file was reached; O_PATH is enough.

    Raises:
        OSError: /proc does not list the mount (a container may not see it).
    """
    with open(f"/proc/self/fdinfo/{fd}") as file:
        match = re.search(r"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
    with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
        for line in lines:
            if match and line.startswith(f"{match[1]} "):
                kind, _, options = line.rstrip("\n").partition(" - ")[2].split(" ", 2)
                return Mount(kind, options)
    raise FileNotFoundError(
        errno.ENOENT, "the mount of the directory is not listed", "/proc/self/mountinfo"
    )


def unsupported_reason(mount: Mount) -> str | None:
    """The reason why this type of file system cannot be read by extents; None if it can."""
    if mount.type in _SUPPORTED:
        return None
    default = "is an unknown type of file system"
    if mount.type.startswith("fuse"):
        default = "is a user-space file system (FUSE), and only its program can locate data"
    return (
        f"{mount.type} {_UNSUPPORTED.get(mount.type, default)}; "
        "extents can be read from ext2, ext3, ext4 and XFS"
    )


def _journals_data(mount: Mount, device_name: str) -> bool:
    """Test if new data goes to the journal first: ext3 or ext4 with data=journal."""
    options = mount.options.split(",")
    # mountinfo omits defaults set in the superblock (tune2fs -o journal_data).
    # The old ext2 driver has no such file, and no journal.
    with suppress(FileNotFoundError), open(f"/proc/fs/ext4/{device_name}/options") as file:
        options += file.read().split()
    return "data=journal" in options


def _uuid(fd: int) -> str | None:
    """Query the UUID of the file system of an open file; None before Linux 6.9."""
    answer = bytearray(17)
    try:
        fcntl.ioctl(fd, _GETFSUUID, answer)
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
            return None
        raise
    return str(uuid.UUID(bytes=bytes(answer[1:])))


def _uuid_of_device(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return superblock(file.fileno())[1]
    except PermissionError:
        raise UnsupportedStorage(
            f"the UUID of the file system on {path} cannot be read: before Linux 6.9 this needs "
            "root, or permission to read the device"
        ) from None


def superblock(fd: int, offset: int = 0) -> tuple[str, str]:
    """Read the superblock on an open device or image: family, "ext" or "xfs", and UUID.

    The file system begins at `offset` (bytes), a multiple of the logical block size.

    Raises:
        UnsupportedStorage: there is no such file system.
        OSError: the superblock cannot be read.
    """
    with mmap.mmap(-1, SUPERBLOCK_BYTES) as block:  # O_DIRECT needs aligned memory
        return identify(block[: os.preadv(fd, [block], offset)], offset)


def identify(head: bytes, offset: int) -> tuple[str, str]:
    """Identify as `superblock()`, from the first SUPERBLOCK_BYTES, read at `offset`."""
    if len(head) == SUPERBLOCK_BYTES and head[:4] == b"XFSB":
        return "xfs", str(uuid.UUID(bytes=head[32:48]))
    if len(head) == SUPERBLOCK_BYTES and head[1024 + 0x38 : 1024 + 0x3A] == b"\x53\xef":
        return "ext", str(uuid.UUID(bytes=head[1024 + 0x68 : 1024 + 0x78]))
    raise UnsupportedStorage(f"no ext2, ext3, ext4 or XFS file system at byte {offset}")
