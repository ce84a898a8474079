"""NVMe controllers by their PCI addresses, as sysfs describes them: who drives them.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci; its class codes, <linux/pci_ids.h>.
"""

from __future__ import annotations

import errno
import os
import re

from ..errors import BackendUnavailable

ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]")
"""0000:00:04.0, as `lspci -D` prints it."""

_DEVICES = "/sys/bus/pci/devices"
_NVME_CLASS = "0x010802"
_DRIVERS = ("uio_pci_generic", "vfio-pci")


def require_user_space_driver(address: str) -> None:
    """Refuse a controller that a driver in user space cannot have, and say how it could.

    Raises:
        OSError: there is no such device.
        ValueError: it is no NVMe controller.
        BackendUnavailable: another driver has it, the kernel's own mostly; or none.
    """
    directory = f"{_DEVICES}/{address}"
    try:
        with open(f"{directory}/class") as file:
            kind = file.read().strip()
    except FileNotFoundError:
        what = f"{os.strerror(errno.ENOENT)}: see `lspci -D` for the addresses of NVMe controllers"
        raise FileNotFoundError(errno.ENOENT, what, address) from None
    if kind != _NVME_CLASS:
        raise ValueError(f"uri {address!r} is not an NVMe controller: its PCI class is {kind}")
    driver = driver_of(address)
    if driver not in _DRIVERS:
        has = f"the driver {driver!r} has it" if driver else "no driver has it"
        raise BackendUnavailable(f"{address} cannot be read from user space, {has}: {binding()}")


def driver_of(address: str) -> str | None:
    """The name of the kernel's driver of a PCI device; None where it has none."""
    try:
        return os.path.basename(os.readlink(f"{_DEVICES}/{address}/driver"))
    except FileNotFoundError:
        return None


def binding() -> str:
    """How a controller is bound to a driver for user space."""
    return (
        "unmount all that is on it, then bind it to uio_pci_generic (without an IOMMU) or vfio-pci "
        "(`driverctl --nosave set-override ADDRESS vfio-pci`, or by driver_override in sysfs)"
    )


def needs(address: str) -> str:
    """What may be missing where a controller with the right driver cannot be opened."""
    free = _free_hugepages()
    return (
        f"that needs root, 1 GiB of hugepages (of 2 MiB, {free} are free: "
        f"`sysctl vm.nr_hugepages=512`), and that no other process has {address}; "
        "uio_pci_generic also needs the IOMMU off (intel_iommu=off), vfio-pci needs it on"
    )


def _free_hugepages() -> int:
    try:
        with open("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages") as file:
            return int(file.read())
    except FileNotFoundError:  # a kernel without them
        return 0
