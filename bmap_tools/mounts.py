"""Which file system a file is on, and what speaks against reading its extents from the device."""

from __future__ import annotations

import errno
import re
from contextlib import suppress
from dataclasses import dataclass

_LAID_OUT_ON_ONE_DEVICE = ("ext2", "ext3", "ext4", "xfs")
_IN_MEMORY = "lives in memory, on no block device"
_ON_A_NETWORK = "is a network file system: its blocks are another machine's"
_OBSTACLES = {
    "btrfs": "tells addresses in a logical space of its own, not those on the device",
    "overlay": "puts other file systems together; give the directory on the lower or upper one",
    "zfs": "tells nobody where on the disks of its pool data lies",
    "bcachefs": "spreads its data over devices of its own choice",
    **dict.fromkeys(("tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"), _IN_MEMORY),
    **dict.fromkeys(
        ("nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "gpfs", "afs"), _ON_A_NETWORK
    ),
    **dict.fromkeys(("beegfs", "pvfs2", "gfs2", "ocfs2"), _ON_A_NETWORK),
    **dict.fromkeys(("9p", "virtiofs", "vboxsf"), "belongs to the host of this virtual machine"),
}
_FUSE = "is a program's (FUSE), and only that knows where data lies"


@dataclass(frozen=True, slots=True)
class Mount:
    """What mountinfo says of a mounted file system.

    Attributes:
        type: as mount(8) shows it.
        options: those of the file system that are not its defaults, separated by commas.
    """

    type: str
    options: str


def of(fd: int) -> Mount:
    """The mount that an open file was reached through.

    Raises:
        OSError: /proc does not tell, or not of this mount (a container need not see it).
    """
    with open(f"/proc/self/fdinfo/{fd}") as file:
        match = re.search(r"^mnt_id:\s*(\d+)$", file.read(), re.MULTILINE)
    with open("/proc/self/mountinfo", errors="surrogateescape") as lines:
        for line in lines:
            if match and line.startswith(f"{match[1]} "):
                kind, _, options = line.rstrip("\n").partition(" - ")[2].split(" ", 2)
                return Mount(kind, options)
    raise FileNotFoundError(
        errno.ENOENT, "no line for the mount of the directory", "/proc/self/mountinfo"
    )


def obstacle(mount: Mount) -> str | None:
    """Why no file of this type of file system can be read by its extents; None if they can."""
    if mount.type in _LAID_OUT_ON_ONE_DEVICE:
        return None
    why = "is a file system that is not known here"
    if mount.type.startswith("fuse"):
        why = _FUSE
    return (
        f"{mount.type} {_OBSTACLES.get(mount.type, why)}; "
        "extents can be read from ext2, ext3, ext4 and XFS"
    )


def journals_data(mount: Mount, device: str) -> bool:
    """Whether new data goes to the journal first: ext3 or ext4 with data=journal.

    Args:
        mount: the file system's.
        device: the kernel's name of the block device that it is on.
    """
    options = mount.options.split(",")
    # mountinfo leaves out what the superblock makes the default (tune2fs -o journal_data).
    # The old ext2 driver has no such file, and no journal.
    with suppress(FileNotFoundError), open(f"/proc/fs/ext4/{device}/options") as file:
        options += file.read().split()
    return "data=journal" in options
