"""The NVMe controllers of this guest, by serial number."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.devices import run

DIRECTORY = Path(os.environ["NVME_VM"])
"""Shared with the host."""

_PCI = Path("/sys/bus/pci")
_TIMEOUT = 120.0  # seconds, for a driver


def name(serial: str) -> str:
    """The name of a controller, which depends on the order of detection: nvme0, nvme1, …"""
    for directory in Path("/sys/class/nvme").iterdir():
        if (directory / "serial").read_text().strip() == serial:
            return directory.name
    raise LookupError(f"there is no NVMe controller {serial}")


def disk(serial: str, nsid: int = 1) -> str:
    """The block device of a namespace."""
    return f"/dev/{name(serial)}n{nsid}"


def character_device(serial: str, nsid: int = 1) -> str:
    """The character device of a namespace."""
    return disk(serial, nsid).replace("/nvme", "/ng")


def address(serial: str) -> str:
    """The PCI address of a controller."""
    return Path(f"/sys/class/nvme/{name(serial)}/address").read_text().strip()


def user_space_driver() -> str:
    """The user-space driver for this machine, which depends on the IOMMU."""
    has_iommu = any(Path("/sys/kernel/iommu_groups").iterdir())
    return "vfio-pci" if has_iommu else "uio_pci_generic"


@contextmanager
def bound(function: str, driver: str) -> Iterator[None]:
    """Bind a PCI function to uio_pci_generic or vfio-pci for a while."""
    bind(function, driver)
    try:
        yield
    finally:
        bind(function, "nvme")


def bind(function: str, driver: str) -> None:
    """Bind a PCI function to another driver.

    Raises:
        OSError: the driver does not take it.
    """
    device = _PCI / "devices" / function
    (device / "driver_override").write_text(driver)
    (device / "driver/unbind").write_text(function)
    (_PCI / "drivers_probe").write_text(function)
    bound_to = os.path.basename(os.readlink(device / "driver"))
    if bound_to != driver:
        raise OSError(f"{function} is bound to {bound_to}, not to {driver}")


def wait_for_disk(serial: str, nsid: int = 1) -> str:
    """The block device of a controller that has just been bound to the kernel's driver.

    Raises:
        LookupError: it does not appear in time.
    """
    end = time.monotonic() + _TIMEOUT
    while not _has_disk(serial, nsid):
        if time.monotonic() > end:
            raise LookupError(f"the controller {serial} has no block device")
        time.sleep(0.05)
    return disk(serial, nsid)


def _has_disk(serial: str, nsid: int) -> bool:
    try:
        return os.path.exists(disk(serial, nsid))
    except LookupError:
        return False


def blank(node: str) -> str:
    """A disk, after removing its partitions and file system."""
    run("wipefs", "--all", "--force", "--quiet", node)
    run("blockdev", "--rereadpt", node)
    return node


def partition(node: str) -> str:
    """Make two partitions; return the second, from 9 MiB to the end of the disk."""
    subprocess.run(
        ["sfdisk", "--quiet", "--wipe", "always", node],
        input="label: gpt\nstart=1MiB, size=8MiB\nsize=+\n",
        text=True,
        check=True,
        timeout=60,
    )
    return f"{node}p2"
