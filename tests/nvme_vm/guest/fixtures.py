"""Fixtures of the guest's tests: a plugin, because pytest on the host would load a conftest.py."""

from pathlib import Path

import pytest

from tests.nvme_vm.guest.hostile import Layout, make_layout

_KINDS = ((512, "ext4"), (4096, "xfs"))


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> list[Layout]:
    """The empty disks, filled with hostile files."""
    return [make_layout(tmp_path_factory.mktemp("layout"), *kind) for kind in _KINDS]


@pytest.fixture(params=range(len(_KINDS)), ids=[f"{sector}-{name}" for sector, name in _KINDS])
def layout(request: pytest.FixtureRequest, layouts: list[Layout]) -> Layout:
    """Each of them."""
    return layouts[request.param]


@pytest.fixture
def driver_without_retries() -> None:
    """The backend has to retry a failed read, not the driver."""
    Path("/sys/module/nvme_core/parameters/max_retries").write_text("0")
