"""What `python -m dali_storage` says of devices, on sysfs trees of the test's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dali_storage import devices
from dali_storage.backends.xnvme import pci

ADDRESS = "0000:00:04.0"
ENOUGH = "MemTotal:  8000000 kB\nHugePages_Total:     512\nHugepagesize:       2048 kB\n"


def block(base: Path, name: str, **attributes: str) -> None:
    """A block device of sysfs with its node."""
    for attribute, value in {"size": "2048", **attributes}.items():
        write(base / "sys/class/block" / name / attribute, value)
    write(base / "dev" / name, "")


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


def told(base: Path) -> dict[str, str]:
    return dict(devices.explain(str(base)))


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
def test_addresses_are_known_however_they_are_written(text: str, address: str | None) -> None:
    assert pci.address_of(text) == address


def test_a_machine_without_sysfs_has_no_devices(tmp_path: Path) -> None:
    assert told(tmp_path) == {}


def test_whole_disks_are_told_and_nothing_else(tmp_path: Path) -> None:
    for name in (
        "nvme0n1",
        "sdb",
        "vda",
        "loop0",
        "ram1",
        "mmcblk0",
        "xvdc",
        "nvme0n1p1",
        "sdb1",
        "sr0",
        "zram0",
        "dm-0",
    ):
        block(tmp_path, name)
    block(tmp_path, "loop1", size="0")
    block(tmp_path, "nvme1n1", hidden="1")
    can = "its permissions allow the backends block and xnvme-block"
    assert told(tmp_path) == {
        "/dev/loop0": f"loop device, {can}",
        "/dev/mmcblk0": f"MMC disk, {can}",
        "/dev/nvme0n1": f"NVMe disk, {can}",
        "/dev/ram1": f"RAM disk, {can}",
        "/dev/sdb": f"SCSI disk, {can}",
        "/dev/vda": f"virtio disk, {can}",
        "/dev/xvdc": f"Xen disk, {can}",
    }


def test_character_devices_of_namespaces_are_told(tmp_path: Path) -> None:
    for name in ("ng0n1", "ngx", "nvme0"):
        write(tmp_path / "dev" / name, "")
    ready = "its permissions allow the backend xnvme-block with io io_uring_cmd"
    assert told(tmp_path) == {"/dev/ng0n1": f"NVMe character device, {ready}"}


def test_a_node_may_be_missing_or_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(tmp_path, "sda")
    block(tmp_path, "sdb")
    write(tmp_path / "dev/ng0n1", "")
    (tmp_path / "dev/sda").unlink()
    asked = []

    def refuse(path: Path, mode: int) -> bool:
        asked.append(mode)
        return False

    monkeypatch.setattr(os, "access", refuse)
    said = told(tmp_path)
    assert said["/dev/sda"].endswith("give it to the container (--device /dev/sda)")
    assert "needs permission: be root" in said["/dev/sdb"]
    assert "needs permission: be root" in said["/dev/ng0n1"]
    assert asked == [os.R_OK, os.R_OK]


@pytest.mark.parametrize(
    ("driver", "iommu", "said"),
    [
        (
            "vfio-pci",
            True,
            "its permissions allow the backend xnvme-block with libxnvme's main branch",
        ),
        (
            "uio_pci_generic",
            False,
            "its permissions allow the backend xnvme-block with libxnvme's main",
        ),
        ("vfio-pci", False, "needs an IOMMU ("),
        ("uio_pci_generic", True, "needs the driver vfio-pci, or the IOMMU off"),
        ("nvme", True, "needs the driver vfio-pci (unmount all that is on it, then driverctl"),
        ("nvme", False, "needs the driver uio_pci_generic (unmount all"),
        (
            None,
            False,
            f"needs the driver uio_pci_generic (driverctl --nosave set-override {ADDRESS} ",
        ),
    ],
)
def test_a_controller_needs_a_driver_and_that_an_iommu(
    tmp_path: Path, as_root: None, driver: str | None, iommu: bool, said: str
) -> None:
    controller(tmp_path, driver, iommu=iommu)
    write(tmp_path / "proc/meminfo", ENOUGH)
    (line,) = told(tmp_path).items()
    assert line[0] == ADDRESS
    assert line[1].startswith(f"NVMe controller, driver {driver or 'none'}, {said}")
    assert "hugepages" not in line[1]
    assert not line[1].endswith("root")


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
    state = told(tmp_path)[ADDRESS]
    needs = f"needs 512 hugepages of 2 MiB, not {there} (sysctl vm.nr_hugepages=512); root"
    assert state == f"NVMe controller, driver vfio-pci, {needs}"


def test_the_program_tells_a_line_a_device_after_the_backends() -> None:
    script = "from dali_storage import __main__, devices\n"
    script += "devices.explain = lambda: iter([('/dev/sda', 'a disk'), ('0:0', 'another')])\n"
    script += "__main__.main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["/dev/sda  a disk", "0:0  another"]
    assert lines[0].startswith("block ")


def test_devices_of_this_machine_are_not_opened() -> None:
    script = (
        "import sys; from dali_storage import devices; opened = []\n"
        "sys.addaudithook(lambda event, about: event == 'open' and opened.append(str(about[0])))\n"
        "list(devices.explain())\n"
        "open('/dev/null').close()\n"
        "print([path for path in opened if path.startswith('/dev/')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("['/dev/null']\n", "")
