"""NVMe controllers by PCI address: which driver has them, and what user space needs to read them.

Everything here is read from sysfs and procfs. Sources: the kernel's
Documentation/ABI/testing/sysfs-bus-pci; its class codes, <linux/pci_ids.h>.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...devices import DeviceStatus
from ...errors import BackendUnavailable
from ..linux.nodes import sysfs_text

USER_SPACE_DRIVERS = ("uio_pci_generic", "vfio-pci")
"""The kernel drivers that leave a controller to user space."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])", re.IGNORECASE)
_FUNCTIONS = "sys/bus/pci/devices"
_NVME_CLASS = "0x010802"
_HUGEPAGES = 512  # of 2 MiB: libxnvme's driver allocates 1 GiB


class Need(NamedTuple):
    """Something that is missing, and how to get it."""

    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.what} ({self.how})"


def address_of(text: str) -> str | None:
    """A PCI address in sysfs form, 0000:00:04.0, from what lspci(8) prints; None if it is none."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    domain, function = match[1] or "0", match[2]
    return f"{int(domain, 16):04x}:{function.lower()}"


def list_controllers(root: str = "/") -> Iterator[DeviceStatus]:
    """All NVMe controllers; `root` is the directory that contains `sys` and `proc`."""
    for function in sorted((Path(root) / _FUNCTIONS).glob("*")):
        if sysfs_text(function / "class") != _NVME_CLASS:
            continue
        missing = needs(function.name, root)
        problem = BackendUnavailable(
            f"needs {', '.join(need.what for need in missing)}",
            "; ".join(need.how for need in missing),
        )
        kind = f"NVMe controller, driver {driver_of(function.name, root) or 'none'}"
        yield DeviceStatus(function.name, kind, problem if missing else None)


def driver_of(address: str, root: str = "/") -> str | None:
    """The name of the kernel driver of a PCI function; None if it has none."""
    try:
        return (Path(root) / _FUNCTIONS / address / "driver").readlink().name
    except FileNotFoundError:
        return None


def needs(address: str, root: str = "/") -> list[Need]:
    """What is missing before user space can read a controller.

    Args:
        address: the controller's.
        root: the directory that contains `sys` and `proc`.
    """
    base = Path(root)
    return [*_driver_needs(base, address, driver_of(address, root)), *_machine_needs(base)]


def require_user_space_driver(address: str, root: str = "/") -> None:
    """Refuse a controller that no driver for user space has.

    Raises:
        OSError: there is no such device.
        ValueError: it is not an NVMe controller.
        BackendUnavailable: it has another driver, usually the kernel's own, or none.
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
            f"{address} cannot be read from user space, {has}",
            f"it needs {'; '.join(map(str, needs(address, root)))}",
        )


def _driver_needs(base: Path, address: str, driver: str | None) -> Iterator[Need]:
    """The driver, and what that driver requires of the IOMMU."""
    has_iommu = any((base / "sys/kernel/iommu_groups").glob("*"))
    wanted = "vfio-pci" if has_iommu else "uio_pci_generic"
    override = f"driverctl --nosave set-override {address} {wanted}"
    if driver not in USER_SPACE_DRIVERS:
        unmount = "unmount all that is on it, then " if driver else ""
        yield Need(f"the driver {wanted}", f"{unmount}{override}")
    elif driver == "vfio-pci" and not has_iommu:
        how = "switch it on in the firmware and by intel_iommu=on, or use uio_pci_generic"
        yield Need("an IOMMU", how)
    elif driver == "uio_pci_generic" and has_iommu:
        yield Need(f"the driver {wanted}", f"{override}; or switch the IOMMU off: intel_iommu=off")


def _machine_needs(base: Path) -> Iterator[Need]:
    """What every driver in user space needs."""
    facts = dict(re.findall(r"^(\w+): +(\d+)", sysfs_text(base / "proc/meminfo"), re.MULTILINE))
    there = int(facts.get("HugePages_Total", 0)) if facts.get("Hugepagesize") == "2048" else 0
    if there < _HUGEPAGES:
        how = f"sysctl vm.nr_hugepages={_HUGEPAGES}"
        yield Need(f"{_HUGEPAGES} hugepages of 2 MiB, not {there}", how)
    if os.geteuid() != 0:
        yield Need("root", "run as root")
