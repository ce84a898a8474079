"""Block devices, as sysfs describes them.

Source: the kernel's Documentation/ABI/stable/sysfs-block.
"""

import errno
import os
import re
import stat

from .extent_map import Device

_SECTOR = 512  # bytes, the unit of sysfs for every device
_MAX_LOGICAL_BLOCK = 4096  # bytes

_DISK_KINDS = {
    r"nvme\d+n\d+": "NVMe disk",
    r"sd[a-z]+": "SCSI disk",
    r"vd[a-z]+": "virtio disk",
    r"xvd[a-z]+": "Xen disk",
    r"mmcblk\d+": "MMC disk",
    r"ram\d+": "RAM disk",
    r"loop\d+": "loop device",
}
_REMAPPING = {
    "dm-": "a device-mapper device (LVM, LUKS, multipath), which stores data elsewhere",
    "md": "a RAID (md), which spreads data over other disks",
    "bcache": "a bcache device, which keeps data on two other disks",
    "drbd": "a DRBD device, which is stored on another disk",
    "nbd": "a network block device",
    "rbd": "a network block device (Ceph)",
    "zd": "a ZFS volume",
    "zram": "compressed memory",
}


class UnsupportedStorage(ValueError):  # noqa: N818 - the storage is, not the error
    """Storage from which extents cannot be read; the message has the reason."""


def disk_kind(name: str) -> str | None:
    """The kind of a plain disk, "NVMe disk", by its name, "nvme0n1"; None for any other device."""
    return next((kind for known, kind in _DISK_KINDS.items() if re.fullmatch(known, name)), None)


def examine(node: str) -> Device:
    """Describe a block device, given by any path to its node.

    Raises:
        UnsupportedStorage: not a block device, or neither a plain disk nor a partition of one.
        OSError: there is no such node.
    """
    status = os.stat(node)
    if not stat.S_ISBLK(status.st_mode):
        raise UnsupportedStorage(f"{node} is not a block device")
    return of_sysfs(f"/sys/dev/block/{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}")


def of_sysfs(path: str) -> Device:
    """Describe a block device as `examine()`, given its directory in sysfs, or a link there."""
    directory = os.path.realpath(path)  # a partition's directory is inside its disk's
    start = _attribute(directory, "start")  # only partitions have one
    disk = directory if start is None else os.path.dirname(directory)
    node, name = _node(directory), os.path.basename(disk)
    if disk_kind(name) is None:
        raise UnsupportedStorage(f"{node} is on {_unsupported_kind(name)}")
    logical_block_size = int(_required(disk, "queue/logical_block_size"))
    if logical_block_size > _MAX_LOGICAL_BLOCK:
        raise UnsupportedStorage(
            f"{node} has logical blocks of {logical_block_size} bytes; only devices with logical "
            f"blocks of at most {_MAX_LOGICAL_BLOCK} bytes can be mapped"
        )
    return Device(
        path=node,
        size=int(_required(directory, "size")) * _SECTOR,
        logical_block_size=logical_block_size,
        disk=_node(disk),
        disk_size=int(_required(disk, "size")) * _SECTOR,
        start=int(start or 0) * _SECTOR,
        serial=_attribute(disk, "serial") or _attribute(disk, "device/serial"),
        wwid=_attribute(disk, "wwid") or _attribute(disk, "device/wwid"),
        backing_file=_attribute(disk, "loop/backing_file"),
    )


def _unsupported_kind(name: str) -> str:
    for prefix, kind in _REMAPPING.items():
        if re.fullmatch(rf"{prefix}[a-z]?\d+", name):
            return f"{kind}; only plain disks, their partitions and loop devices can be mapped"
    return (
        f"{name}, an unknown kind of block device; only plain disks (NVMe, SCSI, SATA, virtio, "
        "Xen, MMC, RAM), their partitions and loop devices can be mapped"
    )


def _node(directory: str) -> str:
    match = re.search(r"^DEVNAME=(.+)$", _required(directory, "uevent"), re.MULTILINE)
    return f"/dev/{match[1] if match else os.path.basename(directory)}"


def _attribute(directory: str, name: str) -> str | None:
    """The stripped text of a file in sysfs; None if the file is missing or empty."""
    try:
        with open(os.path.join(directory, name), errors="surrogateescape") as file:
            return file.read().strip() or None
    except OSError as error:
        # A device may have the file without a value, and some files are readable by root only.
        none = errno.ENOENT, errno.EACCES, errno.EINVAL, errno.ENXIO, errno.EOPNOTSUPP
        if error.errno in none:
            return None
        raise


def _required(directory: str, name: str) -> str:
    value = _attribute(directory, name)
    if value is None:
        raise UnsupportedStorage(
            f"sysfs does not describe the block device: no {directory}/{name}; "
            "container engines often hide /sys/dev/block"
        )
    return value
