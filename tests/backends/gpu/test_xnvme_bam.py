"""The backend xnvme-bam without a GPU: its refusals. What it reads is in tests/nvme_vm."""

import sys
from functools import partial
from types import SimpleNamespace

import pytest

from dali_storage.backends import xnvme_bam
from dali_storage.backends.gpu import requirements
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable
from tests.kit.gpu_machine import DRIVER, FILES, NVME, VERSION, GpuMachine


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("/dev/nvme0n1", "uri must be the PCI address .*'/dev/nvme0n1'; .* xnvme-block"),
        (None, "uri must be the PCI address"),
        (b"0000:00:04.0", "uri must be the PCI address"),
    ],
)
def test_a_uri_that_is_no_pci_address_is_refused_by_name(uri, reason):
    with pytest.raises((ValueError, TypeError), match=f"xnvme-bam: {reason}"):
        XnvmeBamReader(Catalog.from_names([], []), bmap="/no/map", uri=uri)


def test_without_a_driver_or_cupy_it_is_unavailable(tmp_path, monkeypatch):
    monkeypatch.setattr(xnvme_bam.library, "load", lambda: SimpleNamespace(version="main"))
    monkeypatch.setattr(xnvme_bam, "cuda_problem", lambda: requirements.cuda_problem(str(tmp_path)))
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "NVIDIA's driver is not loaded; install NVIDIA's driver" in str(
        XnvmeBamReader.unavailable()
    )
    (tmp_path / VERSION).parent.mkdir(parents=True)
    (tmp_path / VERSION).write_text(FILES[VERSION])
    assert "CuPy, which cannot be imported" in str(XnvmeBamReader.unavailable())
    assert "pip install 'dali-storage[cuda12]'" in str(XnvmeBamReader.unavailable())


def test_a_libxnvme_without_upcie_is_unavailable(monkeypatch):
    monkeypatch.setattr(xnvme_bam.library, "load", lambda: SimpleNamespace(version="0.7.5"))
    assert "use a libxnvme of the main branch" in str(XnvmeBamReader.unavailable())


def test_a_controller_that_lacks_something_is_refused_before_it_is_opened(tmp_path, monkeypatch):
    machine, needs = GpuMachine(tmp_path / "machine"), requirements.submission_needs
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(xnvme_bam.pci, "require_controller", lambda address: None)
    monkeypatch.setattr(xnvme_bam, "submission_needs", partial(needs, root=str(machine.base)))
    xnvme_bam.require_access(NVME)
    machine.change({DRIVER: "vfio-pci"})
    with pytest.raises(BackendUnavailable, match=f"to {NVME}: it needs the driver uio_pci_gene"):
        xnvme_bam.require_access(NVME)


def test_an_address_without_a_controller_is_an_error():
    with pytest.raises(FileNotFoundError, match="lspci -D"):
        xnvme_bam.require_access("ffff:ff:1f.7")
