"""Disks with a file system and its map, memory as a namespace, and the kernel for GPUs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dali_storage.backends.xnvme.library import Library
from dali_storage.contract.catalog import Catalog
from dali_storage.samples.discovery import from_files
from tests.kit.mapped import Mapped, map_files
from tests.kit.nvme_sim.build import COMPILER
from tests.kit.xnvme import open_ramdisk

if TYPE_CHECKING:
    from dali_storage.backends.xnvme.device import XnvmeDevice


@pytest.fixture(scope="session")
def sim_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where tests build the kernel for the host, and the simulated controller."""
    if not shutil.which(COMPILER):
        pytest.skip(f"no {COMPILER}: apt-get install {COMPILER}")
    return tmp_path_factory.mktemp("nvme_sim")


@pytest.fixture
def ramdisk(xnvme: Library) -> Iterator[XnvmeDevice]:
    """A namespace in memory."""
    with closing(open_ramdisk(xnvme, "emu")) as device:
        yield device


@pytest.fixture
def one_file(tmp_path: Path) -> Catalog:
    """A catalog of one file."""
    (tmp_path / "file").write_bytes(b"bytes")
    return from_files([str(tmp_path / "file")])


@pytest.fixture
def mapped(root: Path, tmp_path: Path) -> Mapped:
    """A few files and their map."""
    for name in ("class/a", "class/b", "other/c"):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 3000)
    return map_files(root, tmp_path / "bmap.json")
