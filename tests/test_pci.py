"""NVMe controllers by PCI address, on sysfs trees that the tests make."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dali_storage.backends.xnvme import pci
from dali_storage.devices import DeviceStatus
from dali_storage.errors import BackendUnavailable

ADDRESS = "0000:00:04.0"
ENOUGH = "MemTotal:  8000000 kB\nHugePages_Total:     512\nHugepagesize:       2048 kB\n"


def controller(base: Path, driver: str | None, *, iommu: bool = False) -> None:
    """An NVMe function of sysfs, and a network card."""
    functions = base / "sys/bus/pci/devices"
    write(functions / ADDRESS / "class", "0x010802")
    write(functions / "0000:00:05.0" / "class", "0x020000")
    if driver is not None:
        (functions / ADDRESS / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    (base / "sys/kernel/iommu_groups").mkdir(parents=True)
    if iommu:
        (base / "sys/kernel/iommu_groups/0").mkdir()


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def listed(base: Path) -> DeviceStatus:
    """The only controller."""
    (status,) = pci.list_controllers(str(base))
    return status


def problem(base: Path) -> BackendUnavailable:
    """What is wrong with it."""
    status = listed(base)
    assert status.problem is not None
    return status.problem


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("0000:3B:1F.7", "0000:3b:1f.7"),
        ("3b:00.0", "0000:3b:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("00000000:3b:00.0", "0000:3b:00.0"),
        ("3b:20.0", None),
        ("0000:3b:00.8", None),
        ("/dev/nvme0n1", None),
        ("x3b:00.0", None),
    ],
)
def test_an_address_is_recognised_in_all_its_spellings(text: str, address: str | None) -> None:
    assert pci.address_of(text) == address


def test_a_machine_without_sysfs_has_no_controllers(tmp_path: Path) -> None:
    assert [*pci.list_controllers(str(tmp_path))] == []


@pytest.mark.parametrize(("driver", "iommu"), [("vfio-pci", True), ("uio_pci_generic", False)])
def test_a_controller_with_the_right_driver_works(
    tmp_path: Path, as_root: None, driver: str, iommu: bool
) -> None:
    controller(tmp_path, driver, iommu=iommu)
    write(tmp_path / "proc/meminfo", ENOUGH)
    assert listed(tmp_path) == DeviceStatus(ADDRESS, f"NVMe controller, driver {driver}", None)


@pytest.mark.parametrize(
    ("driver", "iommu", "reason", "remedy"),
    [
        ("vfio-pci", False, "needs an IOMMU", "switch it on in the firmware and by intel_iommu=on"),
        ("uio_pci_generic", True, "needs the driver vfio-pci", "or switch the IOMMU off"),
        ("nvme", True, "needs the driver vfio-pci", "unmount all that is on it, then driverctl"),
        ("nvme", False, "needs the driver uio_pci_generic", "unmount all"),
        (None, False, "needs the driver uio_pci_generic", f"driverctl --nosave set-o.* {ADDRESS} "),
    ],
)
def test_a_controller_needs_a_driver_that_fits_the_iommu(
    tmp_path: Path, as_root: None, driver: str | None, iommu: bool, reason: str, remedy: str
) -> None:
    controller(tmp_path, driver, iommu=iommu)
    write(tmp_path / "proc/meminfo", ENOUGH)
    assert listed(tmp_path).name == ADDRESS
    assert listed(tmp_path).kind == f"NVMe controller, driver {driver or 'none'}"
    assert problem(tmp_path).reason == reason
    with pytest.raises(BackendUnavailable, match=remedy):
        raise problem(tmp_path)
    assert ("unmount" in problem(tmp_path).remedy) == (driver == "nvme")


@pytest.mark.parametrize(
    ("meminfo", "there"),
    [
        (ENOUGH.replace("512", "511"), 511),
        (ENOUGH.replace("2048", "1048576"), 0),
        ("MemTotal: 1 kB", 0),
    ],
)
def test_a_controller_needs_hugepages_and_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meminfo: str, there: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    controller(tmp_path, "vfio-pci", iommu=True)
    write(tmp_path / "proc/meminfo", meminfo)
    assert problem(tmp_path).reason == f"needs 512 hugepages of 2 MiB, not {there}, root"
    assert problem(tmp_path).remedy == "sysctl vm.nr_hugepages=512; run as root"
