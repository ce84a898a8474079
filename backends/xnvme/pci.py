"""NVMe controllers by PCI address: which driver has one, whether it is still ours, what it is.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci; <linux/pci_ids.h>; wwid_show() in
drivers/nvme/host/sysfs.c.
"""

from __future__ import annotations

import errno
import os
import re
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...contract.devices import DeviceStatus
from ...contract.errors import BackendUnavailable
from ..linux.storage import sysfs_text
from .abi import IDENTIFY_CONTROLLER, IDENTIFY_NAMESPACE, copy_structure
from .device import LIBRARY_LOCK, XnvmeDevice

USER_SPACE_DRIVERS = ("uio_pci_generic", "vfio-pci")
"""The kernel drivers that leave a controller to user space."""

FUNCTIONS = "sys/bus/pci/devices"
"""All PCI functions by their addresses, below the root directory."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])", re.IGNORECASE)
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
    return f"{int(match[1] or '0', 16):04x}:{match[2].lower()}" if match else None


def list_controllers(root: str = "/") -> Iterator[DeviceStatus]:
    """All NVMe controllers; `root` is the directory that contains `sys` and `proc`."""
    for function in sorted((Path(root) / FUNCTIONS).glob("*")):
        if sysfs_text(function / "class") != _NVME_CLASS:
            continue
        kind = f"NVMe controller, driver {driver_of(function.name, root) or 'none'}"
        yield DeviceStatus(function.name, kind, problem_of(needs(function.name, root)))


def problem_of(missing: list[Need]) -> BackendUnavailable | None:
    """What the doctor says about a device that lacks these; None if it lacks nothing."""
    if not missing:
        return None
    what = f"needs {', '.join(need.what for need in missing)}"
    return BackendUnavailable(what, "; ".join(need.how for need in missing))


def driver_of(address: str, root: str = "/") -> str | None:
    """The name of the kernel driver of a PCI function; None if it has none."""
    try:
        return (Path(root) / FUNCTIONS / address / "driver").readlink().name
    except OSError:
        return None


def is_translated(function: Path) -> bool:
    """Whether an IOMMU may translate the addresses that a PCI function, of sysfs, uses.

    The type "identity" leaves addresses as they are.
    """
    group = function / "iommu_group"
    return group.exists() and sysfs_text(group / "type") != "identity"


def how_to_bind(address: str, driver: str | None, wanted: str) -> str:
    """How to give a function that has a driver, or none, the wanted one."""
    unmount = "unmount its file systems, then " if driver == "nvme" else ""
    return f"{unmount}driverctl --nosave set-override {address} {wanted}"


def needs(address: str, root: str = "/") -> list[Need]:
    """What is missing before user space can read a controller."""
    base = Path(root)
    return [*_driver_needs(base, address, driver_of(address, root)), *machine_needs(base)]


def require_controller(address: str, root: str = "/") -> None:
    """Refuse a PCI address that is not that of an NVMe controller."""
    function = Path(root) / FUNCTIONS / address
    if not function.exists():
        what = f"{os.strerror(errno.ENOENT)}; `lspci -D` lists the addresses of NVMe controllers"
        raise FileNotFoundError(errno.ENOENT, what, address)
    if (kind := sysfs_text(function / "class")) != _NVME_CLASS:
        raise ValueError(f"uri {address!r} is not an NVMe controller: its PCI class is {kind}")


def require_user_space_driver(address: str, root: str = "/") -> None:
    """Refuse a controller that has another driver, usually the kernel's own, or none."""
    require_controller(address, root)
    driver = driver_of(address, root)
    if driver not in USER_SPACE_DRIVERS:
        bound = f"it is bound to the driver {driver!r}" if driver else "it has no driver"
        remedy = f"it needs {'; '.join(map(str, needs(address, root)))}"
        raise BackendUnavailable(f"{address} cannot be read from user space: {bound}", remedy)


def _driver_needs(base: Path, address: str, driver: str | None) -> Iterator[Need]:
    """The driver, and what that driver requires of the IOMMU and of the kernel."""
    function = base / FUNCTIONS / address
    translates = is_translated(function)
    wanted = "vfio-pci" if translates else "uio_pci_generic"
    how = how_to_bind(address, driver, wanted)
    if driver not in USER_SPACE_DRIVERS:
        yield Need(f"the driver {wanted}", how)
    elif driver == "vfio-pci" and not (function / "iommu_group").exists():
        how = "switch it on in the firmware and by intel_iommu=on, or use uio_pci_generic"
        yield Need("an IOMMU", how)
    elif driver == "uio_pci_generic" and translates:
        yield Need(f"the driver {wanted}", f"{how}; or switch the IOMMU off: intel_iommu=off")
    if "vfio-pci" not in (driver, wanted):
        yield from register_needs(base)


def register_needs(base: Path) -> Iterator[Need]:
    """What the mapping of a controller's registers needs, unless it has the driver vfio-pci."""
    if mode := re.search(r"\[(?!none)(\w+)\]", sysfs_text(base / "sys/kernel/security/lockdown")):
        yield Need(f"no kernel lockdown ({mode[1]})", "switch Secure Boot off in the firmware")
    if (base / "sys").exists() and os.statvfs(base / "sys").f_flag & os.ST_RDONLY:
        yield Need("a writable /sys", "start the container with --privileged")


def machine_needs(base: Path) -> Iterator[Need]:
    """What every driver in user space needs."""
    facts = dict(re.findall(r"^(\w+): +(\d+)", sysfs_text(base / "proc/meminfo"), re.MULTILINE))
    there = int(facts.get("HugePages_Total", 0)) if facts.get("Hugepagesize") == "2048" else 0
    if there < _HUGEPAGES:
        how = f"sysctl vm.nr_hugepages={_HUGEPAGES}"
        yield Need(f"{_HUGEPAGES} hugepages of 2 MiB, not {there}", how)
    if os.geteuid() != 0:
        yield Need("root", "run as root")


_registered: weakref.WeakSet[Ownership] = weakref.WeakSet()


class Ownership:
    """Our hold on a controller, which ends when it is unbound from its user-space driver.

    libxnvme knows an open controller by its PCI address only. Once another driver has the
    controller, its registers are no longer mapped in this process: to touch them is a SIGBUS.
    libxnvme does so when it closes the device, and when it opens the same address again. Both can
    happen late, because memory that is still alive, or a traceback, keeps a device open.
    """

    def __init__(self, address: str) -> None:
        """Prepare to open the controller at a PCI address."""
        self._address: str = address
        with LIBRARY_LOCK:
            others = list(_registered)
        if any(other._address == address and not other.is_ours() for other in others):
            what = f"{address} was still open in this process when another driver took it over"
            raise BackendUnavailable(what, "restart the process to open it again")
        self._binding = _binding(address)

    def register(self) -> None:
        """Remember that the controller is open, for as long as something uses `is_ours`."""
        with LIBRARY_LOCK:
            _registered.add(self)

    def is_ours(self) -> bool:
        """Whether the controller can still be touched."""
        return self._binding is not None and _binding(self._address) == self._binding


def _binding(address: str) -> int | None:
    """A number that identifies a binding to a user-space driver; None if it has another driver."""
    if driver_of(address) not in USER_SPACE_DRIVERS:
        return None
    try:
        return os.lstat(f"/{FUNCTIONS}/{address}/driver").st_ino
    except OSError:
        return None


def identify(device: XnvmeDevice) -> tuple[str, tuple[str, ...]]:
    """The serial number of an open controller, and the world-wide names of the open namespace.

    The kernel uses one of these names, depending on what else it knows. A name by UUID (uuid.*) is
    not among them: it takes another command to read the UUID.
    """
    library = device.library
    with LIBRARY_LOCK:  # may send commands to the device
        address = library.xnvme_dev_get_ctrlr(device.pointer)
        controller = copy_structure(address, IDENTIFY_CONTROLLER)
        address = library.xnvme_dev_get_ns(device.pointer)
        namespace = copy_structure(address, IDENTIFY_NAMESPACE)
    serial, model = (controller[name].tobytes().rstrip(b" \0") for name in ("serial", "model"))
    as_text = serial.split(b"\0")[0].decode("utf-8", "surrogateescape")  # as sysfs is read
    unique = [namespace[name].tobytes() for name in ("nguid", "eui64")]
    by_model = f"nvme.{controller['vendor']:04x}-{serial.hex()}-{model.hex()}-{device.nsid:08x}"
    return as_text.strip(), (*(f"eui.{name.hex()}" for name in unique if any(name)), by_model)
