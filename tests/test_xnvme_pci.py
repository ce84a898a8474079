"""Controllers, as sysfs and their own structures describe them; real ones are for tests/nvme_vm."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.xnvme import pci
from dali_storage.backends.xnvme.pci import Identity, identify
from dali_storage.errors import BackendUnavailable

SERIAL = "S4EWNX0R"
NAMED_BY_MODEL = "nvme.144d-533445574e583052-53616d73756e672053534420393730-00000001"


def controller(nguid: bytes = bytes(16), eui64: bytes = bytes(8)) -> Any:
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


def test_a_namespace_without_a_name_of_its_own_is_named_by_its_controller() -> None:
    assert identify(controller()) == Identity(SERIAL, (NAMED_BY_MODEL,))


@pytest.mark.parametrize(("serial", "known"), [(b"A\0B", "A"), (b"  A ", "A"), (b"\xe4", "\udce4")])
def test_a_serial_number_is_read_as_the_kernel_writes_it(serial: bytes, known: str) -> None:
    device = controller()
    says = ctypes.c_char_p(device.library.xnvme_dev_get_ctrlr(None))
    ctypes.memmove(ctypes.cast(says, ctypes.c_void_p).value + 4, serial.ljust(20), 20)
    assert identify(device).serial == known


def test_unique_names_come_first() -> None:
    found = identify(controller(bytes(range(16)), bytes(range(1, 9))))
    assert found.serial == SERIAL
    assert found.wwids == (
        "eui.000102030405060708090a0b0c0d0e0f",
        "eui.0102030405060708",
        NAMED_BY_MODEL,
    )


# Drivers


@pytest.fixture
def controller_directory(tmp_path: Path) -> Path:
    """The directory of an NVMe controller at 0000:00:04.0, in a sysfs at `tmp_path`."""
    directory = tmp_path / "sys/bus/pci/devices/0000:00:04.0"
    directory.mkdir(parents=True)
    (directory / "class").write_text("0x010802\n")
    return directory


@pytest.mark.parametrize("driver", ["nvme", None])
def test_a_controller_with_another_driver_is_refused(
    controller_directory: Path, tmp_path: Path, driver: str | None
) -> None:
    bound = "it has no driver"
    if driver is not None:
        (controller_directory / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
        bound = f"it is bound to the driver '{driver}'"
    with pytest.raises(BackendUnavailable, match=bound) as caught:
        pci.require_user_space_driver("0000:00:04.0", str(tmp_path))
    assert "uio_pci_generic" in caught.value.remedy
    assert "driverctl --nosave set-override 0000:00:04.0" in caught.value.remedy
    assert ("unmount" in caught.value.remedy) == (driver is not None)


@pytest.mark.parametrize("driver", ["uio_pci_generic", "vfio-pci"])
def test_a_controller_with_a_user_space_driver_is_accepted(
    controller_directory: Path, tmp_path: Path, driver: str
) -> None:
    (controller_directory / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")
    pci.require_user_space_driver("0000:00:04.0", str(tmp_path))
    assert pci.driver_of("0000:00:04.0", str(tmp_path)) == driver


def test_a_device_that_is_not_a_controller_is_refused(
    controller_directory: Path, tmp_path: Path
) -> None:
    (controller_directory / "class").write_text("0x020000\n")
    with pytest.raises(ValueError, match="not an NVMe controller: its PCI class is 0x020000"):
        pci.require_user_space_driver("0000:00:04.0", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="lspci -D") as caught:
        pci.require_user_space_driver("0000:00:05.0", str(tmp_path))
    assert caught.value.filename == "0000:00:05.0"


# Ownership


def test_a_controller_stays_ours_until_it_is_bound_anew(
    controller_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pci, "driver_of", lambda _: "vfio-pci")
    inode = iter([1, 1, 2, 2, 2])
    monkeypatch.setattr(pci.os, "lstat", lambda _: SimpleNamespace(st_ino=next(inode)))
    ours = pci.Ownership("0000:00:04.0")
    ours.register()
    assert ours.is_ours()
    assert not ours.is_ours()
    with pytest.raises(BackendUnavailable, match="another driver took it over; restart the pro"):
        pci.Ownership("0000:00:04.0")
    pci.Ownership("0000:00:05.0")
    del ours
