"""Nodes of devices by the names that the kernel has for them.

libxnvme looks into sysfs for what a device is like, by the last part of the path that it is given.
So a link to a node, or a node of another name, would have the geometry of another device, or none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from bmap_tools import device
from bmap_tools.device import UnsupportedStorage
from bmap_tools.extent_map import Device

from ...devices import DeviceStatus
from ...errors import BackendUnavailable
from ..extents import device as _devices
from ..extents.device import Storage
from ..linux import nodes
from ..linux.nodes import sysfs_text

_BLOCK_DEVICES = Path("/sys/class/block")
_USUAL_KIB = 128  # what is taken for the limit of a driver that tells none


def on_disk(storage: Storage) -> Storage:
    """The same storage on the whole disk: libxnvme cannot tell the geometry of a partition.

    Raises:
        BackendUnavailable: the disk has no node of its name here, or none that may be read.
    """
    here = device.examine(storage.path)
    number = sysfs_text(_BLOCK_DEVICES / os.path.basename(here.disk) / "dev")
    node = _node(here.disk, number, storage.path)
    start = storage.start + (0 if here.path == here.disk else here.start)
    return Storage(node, (*storage.places, node), start, storage.block)


def max_transfer(disk: str) -> int:
    """The bytes that the kernel's driver of a disk can ask for at once; it splits what is longer.

    libxnvme has this from the same place, but rounds it, and for large numbers to nearly nothing.
    """
    limit = _BLOCK_DEVICES / os.path.basename(disk) / "queue/max_hw_sectors_kb"
    return int(sysfs_text(limit) or _USUAL_KIB) << 10


def character_device(path: str) -> tuple[str, Device]:
    """The node of an NVMe namespace, /dev/ng0n1, and what sysfs says of the same block device.

    Raises:
        ValueError: it is no namespace's.
        BackendUnavailable: it has no block device, or no node of its name that may be read.
    """
    number = _number(path)
    name = os.path.basename(os.path.realpath(f"/sys/dev/char/{number}"))
    match = re.fullmatch(r"ng(\d+n\d+)", name)
    if match is None:
        raise ValueError(
            f"uri {path!r} is not the character device of an NVMe namespace (/dev/ng0n1)"
            + ("; this is the controller's" if re.fullmatch(r"nvme\d+", name) else "")
        )
    try:
        here = device.describe(f"nvme{match[1]}")
    except (OSError, UnsupportedStorage) as reason:
        raise BackendUnavailable(
            f"{path}: the kernel has no block device for this namespace, so nobody can tell "
            f"whether it is the mapped one ({reason})"
        ) from None
    return _node(f"/dev/{name}", number, path), here


def list_character_devices(root: str = "/") -> Iterator[DeviceStatus]:
    """The nodes of all NVMe namespaces; `root` is the directory that contains `dev`."""
    for node in sorted((Path(root) / "dev").glob("ng*")):
        if re.fullmatch(r"ng\d+n\d+", node.name):
            yield DeviceStatus(f"/dev/{node.name}", "NVMe character device", nodes.problem(node))


def _node(node: str, number: str, path: str) -> str:
    """`node`, if it is there and is what a user knows as `path`."""
    try:
        is_same = _number(node) == number
    except OSError:
        is_same = False
    if not is_same:
        raise BackendUnavailable(
            f"libxnvme reads {path} as {node} only, by which sysfs knows it, and there is no such "
            f"node here: give it to the container as that (--device {node})"
        )
    if not os.access(node, os.R_OK):
        raise _devices.no_permission(node)
    return node


def _number(node: str) -> str:
    """Of a device, as sysfs writes it: 259:0."""
    number = os.stat(node).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"
