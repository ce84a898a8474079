"""Fixtures of the guest's tests: a plugin, because pytest on the host would load a conftest.py."""

from pathlib import Path

import pytest

from dali_storage.backends import xnvme_bam
from dali_storage.backends.gpu import module, registers
from tests.nvme_vm.guest import launching
from tests.nvme_vm.guest.controllers import user_space_driver
from tests.nvme_vm.guest.hostile import make_layout

_KINDS = ((512, "ext4"), (4096, "xfs"))


@pytest.fixture(scope="session")
def layouts(tmp_path_factory):
    """The empty disks, filled with hostile files."""
    return [make_layout(tmp_path_factory.mktemp("layout"), *kind) for kind in _KINDS]


@pytest.fixture(params=range(len(_KINDS)), ids=[f"{sector}-{name}" for sector, name in _KINDS])
def layout(request, layouts):
    """Each of them."""
    return layouts[request.param]


@pytest.fixture
def driver_without_retries():
    """The backend has to retry a failed read, not the driver."""
    Path("/sys/module/nvme_core/parameters/max_retries").write_text("0")


@pytest.fixture
def on_the_processor(monkeypatch):
    """The kernel runs on the processor; with vfio-pci, on registers that libxnvme has mapped."""
    monkeypatch.setattr(module, "Launcher", launching.HostLauncher)
    monkeypatch.setattr(xnvme_bam, "cuda_problem", lambda: None)
    if user_space_driver() == "vfio-pci":
        monkeypatch.setattr(xnvme_bam, "require_access", lambda address: None)
        monkeypatch.setattr(registers, "map_registers", launching.registers_of_vfio)
