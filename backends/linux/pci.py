"""PCI functions in sysfs: NVMe controllers, requirements of user-space access, the PCI tree.

Sources: the kernel's Documentation/ABI/testing/sysfs-bus-pci; <linux/pci_ids.h>; PCI Express Base
Specification 5.0, sections 7.6.3 and 7.7.8.
"""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...contract.devices import DeviceStatus
from ...contract.errors import BackendUnavailable
from .sysfs import sysfs_text

USER_SPACE_DRIVERS = ("uio_pci_generic", "vfio-pci")
"""The kernel drivers that leave a controller to user space."""

FUNCTIONS = "sys/bus/pci/devices"
"""All PCI functions by their addresses, below the root directory."""

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[01][0-9a-f]\.[0-7])", re.IGNORECASE)
_NVME_CLASS = "0x010802"
_HUGEPAGES = 512  # of 2 MiB: libxnvme's driver allocates 1 GiB
_ACS = 0x000D  # the extended capability Access Control Services
_REDIRECTS = 0b11100  # of its control register: request, completion redirect, upstream forwarding
_FIRST, _MOST = 0x100, 480  # offset and largest number of the extended capabilities


class Need(NamedTuple):
    """A missing requirement, and its remedy."""

    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.what} ({self.how})"


def address_of(text: str) -> str | None:
    """Convert a PCI address, as lspci(8) prints, to sysfs form, 0000:00:04.0; else return None."""
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
    """The error for a device that lacks these requirements; None if nothing is missing."""
    if not missing:
        return None
    what = f"needs {', '.join(need.what for need in missing)}"
    return BackendUnavailable(what, "; ".join(need.how for need in missing))


def driver_of(address: str, root: str = "/") -> str | None:
    """The name of the kernel driver of a PCI function; None without a driver."""
    try:
        return (Path(root) / FUNCTIONS / address / "driver").readlink().name
    except OSError:
        return None


def is_translated(function: Path) -> bool:
    """Test if an IOMMU may translate the addresses of a PCI function (a directory of sysfs).

    The type "identity" leaves addresses unchanged.
    """
    group = function / "iommu_group"
    return group.exists() and sysfs_text(group / "type") != "identity"


def how_to_bind(address: str, driver: str | None, wanted: str) -> str:
    """The command that binds a function, with a driver or without, to the wanted driver."""
    unmount = "unmount its file systems, then " if driver == "nvme" else ""
    return f"{unmount}driverctl --nosave set-override {address} {wanted}"


def needs(address: str, root: str = "/") -> list[Need]:
    """The missing requirements for reading a controller from user space."""
    base = Path(root)
    return [*_driver_needs(base, address, driver_of(address, root)), *machine_needs(base)]


def require_controller(address: str, root: str = "/") -> None:
    """Refuse a PCI address without an NVMe controller."""
    function = Path(root) / FUNCTIONS / address
    if not function.exists():
        what = f"{os.strerror(errno.ENOENT)}; `lspci -D` lists the addresses of NVMe controllers"
        raise FileNotFoundError(errno.ENOENT, what, address)
    if (kind := sysfs_text(function / "class")) != _NVME_CLASS:
        raise ValueError(f"uri {address!r} is not an NVMe controller: its PCI class is {kind}")


def require_user_space_driver(address: str, root: str = "/") -> None:
    """Refuse a controller without a user-space driver, usually bound to the kernel's own."""
    require_controller(address, root)
    driver = driver_of(address, root)
    if driver not in USER_SPACE_DRIVERS:
        bound = f"it is bound to the driver {driver!r}" if driver else "it has no driver"
        remedy = f"it needs {'; '.join(map(str, needs(address, root)))}"
        raise BackendUnavailable(f"{address} cannot be read from user space: {bound}", remedy)


def _driver_needs(base: Path, address: str, driver: str | None) -> Iterator[Need]:
    """The missing driver, and the driver's missing requirements of IOMMU and kernel."""
    function = base / FUNCTIONS / address
    translates = is_translated(function)
    wanted = "vfio-pci" if translates else "uio_pci_generic"
    how = how_to_bind(address, driver, wanted)
    if driver not in USER_SPACE_DRIVERS:
        yield Need(f"the driver {wanted}", how)
    elif driver == "vfio-pci" and not (function / "iommu_group").exists():
        how = "enable it in the firmware and with intel_iommu=on, or use uio_pci_generic"
        yield Need("an IOMMU", how)
    elif driver == "uio_pci_generic" and translates:
        yield Need(f"the driver {wanted}", f"{how}; or disable the IOMMU: intel_iommu=off")
    if "vfio-pci" not in (driver, wanted):
        yield from register_needs(base)


def register_needs(base: Path) -> Iterator[Need]:
    """The missing requirements for mapping a controller's registers without vfio-pci."""
    if mode := re.search(r"\[(?!none)(\w+)\]", sysfs_text(base / "sys/kernel/security/lockdown")):
        yield Need(f"no kernel lockdown ({mode[1]})", "disable Secure Boot in the firmware")
    if (base / "sys").exists() and os.statvfs(base / "sys").f_flag & os.ST_RDONLY:
        yield Need("a writable /sys", "start the container with --privileged")


def machine_needs(base: Path) -> Iterator[Need]:
    """The missing requirements of every user-space driver."""
    facts = dict(re.findall(r"^(\w+): +(\d+)", sysfs_text(base / "proc/meminfo"), re.MULTILINE))
    there = int(facts.get("HugePages_Total", 0)) if facts.get("Hugepagesize") == "2048" else 0
    if there < _HUGEPAGES:
        how = f"sysctl vm.nr_hugepages={_HUGEPAGES}"
        yield Need(f"{_HUGEPAGES} hugepages of 2 MiB, not {there}", how)
    if os.geteuid() != 0:
        yield Need("root", "run as root")


def bar1(gpu: Path) -> range:
    """The bus addresses by which other devices reach the memory of a GPU.

    NVIDIA calls this window BAR1: the second BAR up to Ampere, the third from Hopper on (whose
    first has 64 bits), and always the largest. Empty without such a function.
    """
    lines = sysfs_text(gpu / "resource").splitlines()[:6]
    bars = [re.match("0x0([0-9a-f]{15}) 0x0([0-9a-f]{15}) ", line) for line in lines]
    windows = [range(int(bar[1], 16), int(bar[2], 16) + 1) for bar in bars if bar]
    return max((it for it in windows if it.stop > 1), key=len, default=range(0))


def root_complex(function: Path) -> str:
    """The name of a function's root complex. A Volume Management Device counts as one."""
    return _route(function)[0]


def nearness(one: Path, other: Path) -> str:
    """The common part of two functions' routes: "one switch", "one root complex", or "" if none."""
    shared = {*_route(one)} & {*_route(other)}
    return ("", "one root complex", "one switch")[min(len(shared), 2)]


def redirecting(one: Path, other: Path) -> list[str]:
    """The bridges between two functions that redirect their traffic to the root complex."""
    between = {*_route(one)[1:-1]} ^ {*_route(other)[1:-1]}
    return [name for name in sorted(between) if _redirects(one.parent / name)]


def _route(function: Path) -> list[str]:
    """The root complex of a function, the bridges on the way there, and the function itself."""
    match = re.search(r".*/(pci[0-9a-f]{4,}:[0-9a-f]{2}/.*)", str(function.resolve()))
    return match[1].split("/") if match else [function.name]


def _redirects(bridge: Path) -> bool:
    """Test if ACS redirects."""
    try:
        config, offset = (bridge / "config").read_bytes(), _FIRST
    except OSError:
        return False
    # The kernel shows the extended capabilities to root only; others find none.
    for _ in range(_MOST):
        header = int.from_bytes(config[offset : offset + 4], "little")
        if header & 0xFFFF == _ACS:
            return any(register & _REDIRECTS for register in config[offset + 6 : offset + 7])
        offset = header >> 20
    return False
