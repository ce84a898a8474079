"""Device nodes with the kernel's names.

libxnvme looks up a device in sysfs by the last part of its path. A link to a node, or a node with
another name, would give the geometry of another device, or none.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bmap_tools import device
from bmap_tools.device import UnsupportedStorage

from ...contract.devices import DeviceStatus
from ...contract.errors import BackendUnavailable
from ..linux.storage import Storage, describe, list_disks, no_permission, node_problem
from ..linux.sysfs import sysfs_text

_BLOCK_DEVICES = Path("/sys/class/block")
_DEFAULT_KIB = 128  # assumed for a driver that does not report its limit


def block_device(path: str) -> Storage:
    """Describe a block device, with the node of its disk: libxnvme cannot read a partition."""
    found = device.examine(path)
    storage = describe(path, found)
    number = sysfs_text(_BLOCK_DEVICES / os.path.basename(found.disk) / "dev")
    node = _node(found.disk, number, path)
    offset = 0 if found.path == found.disk else found.start
    return replace(storage, path=node, aliases=(*storage.aliases, node), offset=offset)


def max_transfer(disk: str) -> int:
    """The bytes of the largest read command of a disk's driver; the kernel splits longer reads.

    libxnvme uses the same file, but rounds the number, and large ones to nearly nothing.
    """
    limit = _BLOCK_DEVICES / os.path.basename(disk) / "queue/max_hw_sectors_kb"
    return int(sysfs_text(limit) or _DEFAULT_KIB) << 10


def character_device(path: str) -> Storage:
    """Describe the character device of an NVMe namespace, /dev/ng0n1."""
    number = _number(path)
    name = os.path.basename(os.path.realpath(f"/sys/dev/char/{number}"))
    match = re.fullmatch(r"ng(\d+n\d+)", name)
    if match is None:
        hint = "; this is the controller's" if re.fullmatch(r"nvme\d+", name) else ""
        what = "is not the character device of an NVMe namespace (/dev/ng0n1)"
        raise ValueError(f"uri {path!r} {what}{hint}")
    try:  # the block device of the same namespace
        found = device.of_sysfs(f"/sys/class/block/nvme{match[1]}")
    except (OSError, UnsupportedStorage) as reason:
        what = "the kernel has no block device for this namespace to compare with the map"
        raise BackendUnavailable(f"{path}: {what} ({reason})") from None
    node = _node(f"/dev/{name}", number, path)
    return replace(describe(node, found), aliases=(found.path,))


def list_nodes(root: str = "/") -> Iterator[DeviceStatus]:
    """List all disks and NVMe character devices; `root` is the directory with `sys` and `dev`."""
    yield from list_disks(root)
    for node in sorted((Path(root) / "dev").glob("ng*")):
        if re.fullmatch(r"ng\d+n\d+", node.name):
            yield DeviceStatus(f"/dev/{node.name}", "NVMe character device", node_problem(node))


def _node(node: str, number: str, path: str) -> str:
    """Check that `node` exists and is the user's device `path`; return `node`."""
    try:
        is_same = _number(node) == number
    except OSError:
        is_same = False
    if not is_same:
        raise BackendUnavailable(
            f"libxnvme reads {path} only as {node}, its name in sysfs, which does not exist here",
            f"give the container the device by that name (--device {node})",
        )
    if not os.access(node, os.R_OK):
        raise no_permission(node)
    return node


def _number(node: str) -> str:
    """The number of a device in the form of sysfs: 259:0."""
    number = os.stat(node).st_rdev
    return f"{os.major(number)}:{os.minor(number)}"
