"""What each disk and NVMe controller of this machine needs before it can be read raw.

Everything is told by sysfs, procfs and access(2); no device is opened. Sources: the kernel's
Documentation/ABI/testing/sysfs-bus-pci and sysfs-block; its class codes, <linux/pci_ids.h>.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

_DISKS = {
    r"nvme\d+n\d+": "NVMe disk",
    r"sd[a-z]+": "SCSI disk",
    r"vd[a-z]+": "virtio disk",
    r"loop\d+": "loop device",
}
_NVME_CLASS = "0x010802"
_USER_SPACE_DRIVERS = ("uio_pci_generic", "vfio-pci")
_HUGEPAGES = 512  # 1 GiB of 2 MiB, what libxnvme's driver takes


def explain(root: str = "/") -> Iterator[tuple[str, str]]:
    """The name of each device, and what is needed to read it or by what it can be.

    Args:
        root: the directory that has `sys`, `dev` and `proc`.
    """
    base = Path(root)
    yield from _block_devices(base)
    yield from _character_devices(base)
    yield from _controllers(base)


def _block_devices(base: Path) -> Iterator[tuple[str, str]]:
    for entry in sorted((base / "sys/class/block").glob("*")):
        kind = next((kind for name, kind in _DISKS.items() if re.fullmatch(name, entry.name)), None)
        if kind is None or _text(entry / "hidden") == "1" or _text(entry / "size") in ("", "0"):
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


def _controllers(base: Path) -> Iterator[tuple[str, str]]:
    for function in sorted((base / "sys/bus/pci/devices").glob("*")):
        if _text(function / "class") == _NVME_CLASS:
            driver = _driver(function)
            needs = [*_binding_needs(base, function.name, driver), *_machine_needs(base)]
            ready = "its permissions allow the backend xnvme-block with libxnvme's main branch"
            state = f"needs {'; '.join(needs)}" if needs else ready
            yield function.name, f"NVMe controller, driver {driver or 'none'}, {state}"


def _binding_needs(base: Path, address: str, driver: str | None) -> Iterator[str]:
    """Which driver it needs, and what that driver asks of the IOMMU."""
    has_iommu = any((base / "sys/kernel/iommu_groups").glob("*"))
    if driver not in _USER_SPACE_DRIVERS:
        wanted = "vfio-pci" if has_iommu else "uio_pci_generic"
        unmount = "unmount all that is on it, then " if driver else ""
        yield f"the driver {wanted} ({unmount}driverctl --nosave set-override {address} {wanted})"
    elif driver == "vfio-pci" and not has_iommu:
        yield "an IOMMU (switch it on in the firmware and by intel_iommu=on), or uio_pci_generic"
    elif driver == "uio_pci_generic" and has_iommu:
        yield "the driver vfio-pci, or the IOMMU off (intel_iommu=off)"


def _machine_needs(base: Path) -> Iterator[str]:
    """What all drivers in user space need."""
    facts = dict(re.findall(r"^(\w+): +(\d+)", _text(base / "proc/meminfo"), re.MULTILINE))
    there = int(facts.get("HugePages_Total", 0)) if facts.get("Hugepagesize") == "2048" else 0
    if there < _HUGEPAGES:
        yield f"{_HUGEPAGES} hugepages of 2 MiB, not {there} (sysctl vm.nr_hugepages={_HUGEPAGES})"
    if os.geteuid() != 0:
        yield "root"


def _driver(function: Path) -> str | None:
    try:
        return (function / "driver").readlink().name
    except FileNotFoundError:
        return None


def _text(path: Path) -> str:
    """What is in a file of sysfs; nothing where there is none."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
