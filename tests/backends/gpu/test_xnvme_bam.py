"""The backend xnvme-bam without a GPU: its refusals. What it reads is in tests/nvme_vm."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dali_storage.backends import xnvme_bam
from dali_storage.backends.gpu import requirements
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.samples.discovery import from_directory
from tests.backends.xnvme.test_pci import ADDRESS, ENOUGH, controller, write


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    write(tmp_path / "root/class/a", "content")
    return from_directory(tmp_path / "root", file_filters="*")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"mem": "pinned"}, "mem must be one of cpu, gpu, not 'pinned'"),
        ({"queues": 0}, "queues must be an integer from 1 to 64, not 0"),
        ({"queues": 65}, "queues must be an integer from 1 to 64"),
        ({"queues": True}, "queues must be an integer"),
        ({"queue_depth": 1}, "queue_depth must be an integer from 2 to 1024, not 1"),
        ({"queue_depth": 1025}, "queue_depth must be an integer from 2 to 1024"),
        ({"max_transfer": 6000}, "max_transfer must be .* multiple of 4096"),
        ({"max_transfer": (2 << 20) + 4096}, "max_transfer must be .* to 2097152"),
        ({"retries": -1}, "retries must be"),
        ({"gpu": -1}, "gpu must be"),
        ({"gpu": "0"}, "gpu must be"),
        ({"nsid": 0}, "nsid must be"),
        ({"uri": "/dev/nvme0n1"}, "uri must be the PCI address .*'/dev/nvme0n1'; .* xnvme-block"),
        ({"uri": None}, "uri must be the PCI address"),
        ({"uri": b"0000:00:04.0"}, "uri must be the PCI address"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    catalog: Catalog, options: dict[str, Any], reason: str
) -> None:
    arguments = {"uri": ADDRESS} | options
    with pytest.raises(ValueError, match=f"xnvme-bam: {reason}"):
        XnvmeBamReader(catalog, bmap="/no/map", **arguments)


def test_check_must_be_a_flag(catalog: Catalog) -> None:
    with pytest.raises(TypeError, match="check must be True or False"):
        XnvmeBamReader(catalog, bmap="/no/map", uri=ADDRESS, check=1)  # type: ignore[arg-type]


def test_without_a_driver_or_cupy_it_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xnvme_bam.library, "load", lambda: SimpleNamespace(version="main"))
    monkeypatch.setattr(xnvme_bam, "cuda_problem", lambda: requirements.cuda_problem(str(tmp_path)))
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "NVIDIA's driver is not loaded; install NVIDIA's driver" in str(
        XnvmeBamReader.unavailable()
    )
    write(tmp_path / "proc/driver/nvidia/version", "NVRM version: NVIDIA 570.00 Release Build")
    assert "CuPy, which cannot be imported" in str(XnvmeBamReader.unavailable())
    assert "pip install 'dali-storage[cuda12]'" in str(XnvmeBamReader.unavailable())


def test_a_libxnvme_without_upcie_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xnvme_bam.library, "load", lambda: SimpleNamespace(version="0.7.5"))
    assert "use a libxnvme of the main branch" in str(XnvmeBamReader.unavailable())


# --- the machine ---


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root directory with hugepages and without kernel lockdown."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    write(tmp_path / "proc/meminfo", ENOUGH)
    write(tmp_path / "sys/kernel/security/lockdown", "[none] integrity confidentiality")
    return tmp_path


def needs(machine: Path) -> str:
    return "; ".join(map(str, requirements.submission_needs(ADDRESS, str(machine))))


def test_nothing_is_missing_with_uio_and_without_an_iommu(machine: Path) -> None:
    controller(machine, "uio_pci_generic")
    assert needs(machine) == ""


@pytest.mark.parametrize("driver", ["vfio-pci", "nvme", None])
def test_the_driver_must_be_uio(machine: Path, driver: str | None) -> None:
    controller(machine, driver)
    assert needs(machine).startswith("the driver uio_pci_generic")
    assert f"driverctl --nosave set-override {ADDRESS} uio_pci_generic" in needs(machine)


@pytest.mark.parametrize(("kind", "translates"), [("identity", False), ("DMA-FQ", True)])
def test_the_iommu_must_not_translate(machine: Path, kind: str, translates: bool) -> None:
    controller(machine, "uio_pci_generic")
    group = machine / "sys/bus/pci/devices" / ADDRESS / "iommu_group"
    write(group / "type", kind)
    assert ("no address translation" in needs(machine)) == translates


def test_lockdown_is_named(machine: Path) -> None:
    controller(machine, "uio_pci_generic")
    write(machine / "sys/kernel/security/lockdown", "none [integrity] confidentiality")
    assert "no kernel lockdown" in needs(machine)
    assert "Secure Boot" in needs(machine)


def test_an_unsuitable_controller_is_refused_before_it_is_opened(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller(machine, "vfio-pci")
    missing = requirements.submission_needs(ADDRESS, str(machine))
    monkeypatch.setattr(xnvme_bam.pci, "require_controller", lambda address: None)
    monkeypatch.setattr(xnvme_bam, "submission_needs", lambda address: missing)
    with pytest.raises(BackendUnavailable, match=f"to {ADDRESS}: it needs the driver uio_pci_gene"):
        xnvme_bam.require_access(ADDRESS)


def test_an_address_without_a_controller_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="lspci -D"):
        xnvme_bam.require_access("ffff:ff:1f.7")
