"""What each disk and NVMe controller of this machine needs before it can be read raw.

Everything is told by sysfs, procfs and access(2); no device is opened. Source: the kernel's
Documentation/ABI/testing/sysfs-block.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from .backends.xnvme import pci
from .backends.xnvme.pci import sysfs_text

_DISKS = {
    r"nvme\d+n\d+": "NVMe disk",
    r"sd[a-z]+": "SCSI disk",
    r"vd[a-z]+": "virtio disk",
    r"xvd[a-z]+": "Xen disk",
    r"mmcblk\d+": "MMC disk",
    r"ram\d+": "RAM disk",
    r"loop\d+": "loop device",
}


def explain(root: str = "/") -> Iterator[tuple[str, str]]:
    """The name of each device, and what is needed to read it or by what it can be.

    Args:
        root: the directory that has `sys`, `dev` and `proc`.
    """
    base = Path(root)
    yield from _block_devices(base)
    yield from _character_devices(base)
    yield from _controllers(root)


def _block_devices(base: Path) -> Iterator[tuple[str, str]]:
    for entry in sorted((base / "sys/class/block").glob("*")):
        kind = next((kind for name, kind in _DISKS.items() if re.fullmatch(name, entry.name)), None)
        hidden, size = (sysfs_text(entry / name) for name in ("hidden", "size"))
        if kind is None or hidden == "1" or size in ("", "0"):
            continue  # no whole disk, one path of several to another disk, or nothing is in it
        ready = "its permissions allow the backends block and xnvme-block"
        yield f"/dev/{entry.name}", f"{kind}, {_node_needs(base / 'dev' / entry.name) or ready}"


def _character_devices(base: Path) -> Iterator[tuple[str, str]]:
    for node in sorted((base / "dev").glob("ng*")):
        if re.fullmatch(r"ng\d+n\d+", node.name):
            ready = "its permissions allow the backend xnvme-block with io io_uring_cmd"
            yield f"/dev/{node.name}", f"NVMe character device, {_node_needs(node) or ready}"


def _node_needs(node: Path) -> str | None:
    if not node.exists():
        return f"needs its node in /dev: give it to the container (--device /dev/{node.name})"
    if not os.access(node, os.R_OK):
        return f"needs permission: be root, or of the group that may read it (ls -l {node})"
    return None


def _controllers(root: str) -> Iterator[tuple[str, str]]:
    for address in pci.addresses(root):
        needs = pci.needs(address, root)
        ready = "its permissions allow the backend xnvme-block with libxnvme's main branch"
        state = f"needs {'; '.join(needs)}" if needs else ready
        driver = pci.driver_of(address, root) or "none"
        yield address, f"NVMe controller, driver {driver}, {state}"
