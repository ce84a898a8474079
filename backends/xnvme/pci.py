"""NVMe controllers by their PCI addresses: who drives them, and what user space needs to read them.

All is told by sysfs and procfs. Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci; its
class codes, <linux/pci_ids.h>.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import BackendUnavailable

USER_SPACE_DRIVERS = ("uio_pci_generic", "vfio-pci")
"""Those that leave a controller to user space."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])", re.IGNORECASE)
_FUNCTIONS = "sys/bus/pci/devices"
_NVME_CLASS = "0x010802"
_HUGEPAGES = 512  # 1 GiB of 2 MiB, what libxnvme's driver takes


def address_of(text: str) -> str | None:
    """An address as sysfs writes it, 0000:00:04.0, of what lspci(8) prints; None of all else."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    domain, function = match[1] or "0", match[2]
    return f"{int(domain, 16):04x}:{function.lower()}"


def addresses(root: str = "/") -> list[str]:
    """Where there are controllers; `root` is the directory that has `sys`, as below."""
    functions = sorted((Path(root) / _FUNCTIONS).glob("*"))
    return [each.name for each in functions if sysfs_text(each / "class") == _NVME_CLASS]


def driver_of(address: str, root: str = "/") -> str | None:
    """The name of the kernel's driver of a PCI function; None where it has none."""
    try:
        return (Path(root) / _FUNCTIONS / address / "driver").readlink().name
    except FileNotFoundError:
        return None


def needs(address: str, root: str = "/") -> list[str]:
    """What is missing for a controller to be read from user space, and how to get it.

    Args:
        address: of a controller.
        root: the directory that has `sys` and `proc`.
    """
    base = Path(root)
    return [*_binding_needs(base, address, driver_of(address, root)), *_machine_needs(base)]


def require_user_space_driver(address: str, root: str = "/") -> None:
    """Refuse a controller that a driver in user space cannot have, and say how it could.

    Raises:
        OSError: there is no such device.
        ValueError: it is no NVMe controller.
        BackendUnavailable: another driver has it, the kernel's own mostly; or none.
    """
    function = Path(root) / _FUNCTIONS / address
    if not function.exists():
        what = f"{os.strerror(errno.ENOENT)}: see `lspci -D` for the addresses of NVMe controllers"
        raise FileNotFoundError(errno.ENOENT, what, address)
    if (kind := sysfs_text(function / "class")) != _NVME_CLASS:
        raise ValueError(f"uri {address!r} is not an NVMe controller: its PCI class is {kind}")
    driver = driver_of(address, root)
    if driver not in USER_SPACE_DRIVERS:
        has = f"the driver {driver!r} has it" if driver else "no driver has it"
        raise BackendUnavailable(
            f"{address} cannot be read from user space, {has}: it needs "
            f"{'; '.join(needs(address, root))}"
        )


def _binding_needs(base: Path, address: str, driver: str | None) -> Iterator[str]:
    """Which driver it needs, and what that driver asks of the IOMMU."""
    has_iommu = any((base / "sys/kernel/iommu_groups").glob("*"))
    if driver not in USER_SPACE_DRIVERS:
        wanted = "vfio-pci" if has_iommu else "uio_pci_generic"
        unmount = "unmount all that is on it, then " if driver else ""
        yield f"the driver {wanted} ({unmount}driverctl --nosave set-override {address} {wanted})"
    elif driver == "vfio-pci" and not has_iommu:
        yield "an IOMMU (switch it on in the firmware and by intel_iommu=on), or uio_pci_generic"
    elif driver == "uio_pci_generic" and has_iommu:
        yield "the driver vfio-pci, or the IOMMU off (intel_iommu=off)"


def _machine_needs(base: Path) -> Iterator[str]:
    """What all drivers in user space need."""
    facts = dict(re.findall(r"^(\w+): +(\d+)", sysfs_text(base / "proc/meminfo"), re.MULTILINE))
    there = int(facts.get("HugePages_Total", 0)) if facts.get("Hugepagesize") == "2048" else 0
    if there < _HUGEPAGES:
        yield f"{_HUGEPAGES} hugepages of 2 MiB, not {there} (sysctl vm.nr_hugepages={_HUGEPAGES})"
    if os.geteuid() != 0:
        yield "root"


def sysfs_text(path: Path) -> str:
    """What is in a file of sysfs; nothing where there is none."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
