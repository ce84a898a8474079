"""Fixtures of the guest's tests: a plugin, since a conftest.py would be looked for on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from .hostile import Layout, make_layout

_KINDS = ((512, "ext4"), (4096, "xfs"))


@pytest.fixture(scope="session")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> list[Layout]:
    """The empty disks, not empty any longer."""
    return [make_layout(tmp_path_factory.mktemp("layout"), *kind) for kind in _KINDS]


@pytest.fixture(params=range(len(_KINDS)), ids=[f"{sector}-{name}" for sector, name in _KINDS])
def layout(request: pytest.FixtureRequest, layouts: list[Layout]) -> Layout:
    """Each of them."""
    return layouts[request.param]


@pytest.fixture
def driver_without_retries() -> None:
    """A read that fails once is for the backend to make again, not for the driver."""
    Path("/sys/module/nvme_core/parameters/max_retries").write_text("0")
