"""Disks with a file system and its map, memory as a namespace, and the kernel for GPUs."""

import shutil
from contextlib import closing

import pytest

from dali_storage.samples.discovery import from_files

# What only some folders need is imported by the fixture that needs it.


@pytest.fixture(scope="session")
def sim_folder(tmp_path_factory):
    """Where tests build the kernel for the host, and the simulated controller."""
    from tests.kit.nvme_sim.build import COMPILER

    if not shutil.which(COMPILER):
        pytest.skip(f"no {COMPILER}: apt-get install {COMPILER}")
    return tmp_path_factory.mktemp("nvme_sim")


@pytest.fixture
def ramdisk(xnvme):
    """A namespace in memory."""
    from tests.kit.xnvme import open_ramdisk

    with closing(open_ramdisk(xnvme, "emu")) as device:
        yield device


@pytest.fixture
def one_file(tmp_path):
    """A catalog of one file."""
    (tmp_path / "file").write_bytes(b"bytes")
    return from_files([str(tmp_path / "file")])


@pytest.fixture
def mapped(root, tmp_path):
    """A few files and their map."""
    from tests.kit.mapped import map_files

    for name in ("class/a", "class/b", "other/c"):
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 3000)
    return map_files(root, tmp_path / "bmap.json")
