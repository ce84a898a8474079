"""NVMe controllers by PCI address: on sysfs trees and structures that the tests make."""

import ctypes
import os
import re
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage.backends.linux import pci
from dali_storage.backends.xnvme import controller as controllers
from dali_storage.backends.xnvme.controller import Ownership, identify
from dali_storage.contract.errors import BackendUnavailable

ADDRESS = "0000:00:04.0"
ENOUGH = "MemTotal:  8000000 kB\nHugePages_Total:     512\nHugepagesize:       2048 kB\n"


def controller(base, driver, *, iommu=None):
    """An NVMe function of sysfs, and a network card."""
    functions = base / "sys/bus/pci/devices"
    write(functions / ADDRESS / "class", "0x010802")
    write(functions / "0000:00:05.0" / "class", "0x020000")
    if driver is not None:
        (functions / ADDRESS / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
    if iommu is not None:
        write(functions / ADDRESS / "iommu_group/type", iommu)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


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
def test_an_address_is_recognised_in_all_its_spellings(text, address):
    assert pci.address_of(text) == address


def test_a_machine_without_sysfs_has_no_controllers(tmp_path):
    assert [*pci.list_controllers(str(tmp_path))] == []


VFIO, UIO = {"driver": "vfio-pci", "iommu": "DMA-FQ"}, {"driver": "uio_pci_generic"}
LOCKDOWN = {"lockdown": "none [integrity] confidentiality"}


@pytest.mark.parametrize(
    ("machine", "reason", "remedy"),
    [
        (VFIO, None, ""),
        (UIO, None, ""),
        (VFIO | {"iommu": "identity"}, None, ""),
        (UIO | {"iommu": "identity"}, None, ""),
        (VFIO | LOCKDOWN, None, ""),
        (UIO | LOCKDOWN, "no kernel lockdown (integrity)", "^disable Secure Boot in the firm"),
        (VFIO | {"iommu": None}, "an IOMMU", "enable it in the firmware and with intel_iommu=on"),
        (UIO | {"iommu": "DMA-FQ"}, "the driver vfio-pci", "or disable the IOMMU"),
        (VFIO | {"driver": "nvme"}, "the driver vfio-pci", "unmount its file systems, then driver"),
        ({"driver": "nvme"}, "the driver uio_pci_generic", "unmount its"),
        ({}, "the driver uio_pci_generic", f"driverctl --nosave set-o.* {ADDRESS} "),
        *((VFIO | {"user": 1000, "meminfo": meminfo},
           f"512 hugepages of 2 MiB, not {there}, root",
           "^sysctl vm.nr_hugepages=512; run as root$")
          for meminfo, there in ((ENOUGH.replace("512", "511"), 511),
                                 (ENOUGH.replace("2048", "1048576"), 0), ("MemTotal: 1 kB", 0))),
    ],
)  # fmt: skip
def test_a_controller_is_listed_with_all_that_it_needs(
    tmp_path, monkeypatch, machine, reason, remedy
):
    monkeypatch.setattr(os, "geteuid", lambda: machine.get("user", 0))
    controller(tmp_path, driver := machine.get("driver"), iommu=machine.get("iommu"))
    write(tmp_path / "proc/meminfo", machine.get("meminfo", ENOUGH))
    if "lockdown" in machine:
        write(tmp_path / "sys/kernel/security/lockdown", machine["lockdown"])
    (status,) = pci.list_controllers(str(tmp_path))
    assert (status.name, status.kind) == (ADDRESS, f"NVMe controller, driver {driver or 'none'}")
    assert (status.problem is None) == (reason is None)
    if status.problem is not None:
        assert status.problem.reason == f"needs {reason}"
        assert re.search(remedy, status.problem.remedy)
        assert ("unmount" in status.problem.remedy) == (driver == "nvme")


@pytest.mark.parametrize(
    ("driver", "bound"), [("nvme", "it is bound to the driver 'nvme'"), (None, "it has no driver")]
)
def test_a_controller_without_a_user_space_driver_is_refused(tmp_path, driver, bound):
    controller(tmp_path, driver)
    with pytest.raises(BackendUnavailable, match=bound) as caught:
        pci.require_user_space_driver(ADDRESS, str(tmp_path))
    assert f"driverctl --nosave set-override {ADDRESS} uio_pci_generic" in caught.value.remedy
    assert ("unmount" in caught.value.remedy) == (driver is not None)


@pytest.mark.parametrize("driver", ["uio_pci_generic", "vfio-pci"])
def test_a_controller_with_a_user_space_driver_is_accepted(tmp_path, driver):
    controller(tmp_path, driver)
    pci.require_user_space_driver(ADDRESS, str(tmp_path))


def test_a_device_that_is_not_a_controller_is_refused(tmp_path):
    controller(tmp_path, None)
    with pytest.raises(ValueError, match="not an NVMe controller: its PCI class is 0x020000"):
        pci.require_user_space_driver("0000:00:05.0", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="lspci -D") as caught:
        pci.require_user_space_driver("0000:00:06.0", str(tmp_path))
    assert caught.value.filename == "0000:00:06.0"


def test_a_controller_stays_ours_until_it_is_bound_anew(monkeypatch):
    monkeypatch.setattr(controllers, "driver_of", lambda _: "vfio-pci")
    inode = iter([1, 1, 2, 2, 2])
    monkeypatch.setattr(os, "lstat", lambda _: SimpleNamespace(st_ino=next(inode)))
    ours = Ownership("0000:00:04.0")
    ours.register()
    assert ours.is_ours()
    assert not ours.is_ours()
    with pytest.raises(BackendUnavailable, match="another driver took it over; restart the pro"):
        Ownership("0000:00:04.0")
    Ownership("0000:00:05.0")
    del ours


# What a controller reports, against what Linux makes of it


SERIAL = "S4EWNX0R"
NAMED_BY_MODEL = "nvme.144d-533445574e583052-53616d73756e672053534420393730-00000001"


def open_controller(nguid=bytes(16), eui64=bytes(8)):
    """A stub of an open device, with the structures as the specification has them."""
    says = np.zeros((2, 4096), np.uint8)
    says[0, :2] = 0x4D, 0x14
    says[0, 4:24] = list(SERIAL.ljust(20).encode())
    says[0, 24:64] = list(b"Samsung SSD 970".ljust(40))
    says[1, 104:120], says[1, 120:128] = list(nguid), list(eui64)
    library = SimpleNamespace(
        xnvme_dev_get_ctrlr=lambda _: says[0].ctypes.data,
        xnvme_dev_get_ns=lambda _: says[1].ctypes.data,
    )
    return SimpleNamespace(library=library, pointer=0, nsid=1)


def test_a_namespace_without_a_name_of_its_own_is_named_by_its_controller():
    assert identify(open_controller()) == (SERIAL, (NAMED_BY_MODEL,))


@pytest.mark.parametrize(("serial", "known"), [(b"A\0B", "A"), (b"  A ", "A"), (b"\xe4", "\udce4")])
def test_a_serial_number_is_read_as_the_kernel_writes_it(serial, known):
    device = open_controller()
    says = ctypes.c_char_p(device.library.xnvme_dev_get_ctrlr(None))
    ctypes.memmove(ctypes.cast(says, ctypes.c_void_p).value + 4, serial.ljust(20), 20)
    assert identify(device)[0] == known


def test_unique_names_come_first():
    serial, wwids = identify(open_controller(bytes(range(16)), bytes(range(1, 9))))
    assert serial == SERIAL
    assert wwids == ("eui.000102030405060708090a0b0c0d0e0f", "eui.0102030405060708", NAMED_BY_MODEL)
