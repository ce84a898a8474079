"""Disks with file systems, and directories and maps on them."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from tests.kit.bmap.command import fill, settle, tool
from tests.kit.devices import disk, mounted, require

LONG = pytest.mark.long  # each file system, and each size of block, is in make test once
DISKS = [
    *("ext4-512", "xfs-4096"),
    *(pytest.param(name, marks=LONG) for name in ("ext4-4096", "xfs-512")),
]


@pytest.fixture(scope="module", params=["ext4", pytest.param("xfs", marks=LONG)])
def made(request, tmp_path_factory):
    require("filefrag")
    with disk(tmp_path_factory.mktemp("disk"), request.param) as disk_made:
        yield disk_made


@pytest.fixture
def root(made):
    """A new directory on the file system."""
    yield from new_root(made)


@pytest.fixture
def ext4_root(ext4):
    yield from new_root(ext4)


def new_root(made):
    path = made.mount / "root"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def bmap(tmp_path):
    return tmp_path / "bmap.json"


@pytest.fixture
def public(made):
    """A directory of the file system that other users can come to."""
    with tempfile.TemporaryDirectory(prefix="bmap-tools-") as directory:
        os.chmod(directory, 0o755)
        with mounted(made.device, Path(directory) / "mnt"):
            path = Path(directory) / "mnt" / "public"
            path.mkdir()
            (path / "out").mkdir()
            (path / "out").chmod(0o777)
            # Nobody may not read Python's own modules where they are in a home directory.
            (path / "warm-up").touch()
            tool("create", path, "-o", path / "out" / "bmap.json")
            tool("verify", path / "out" / "bmap.json", "--bytes")
            (path / "warm-up").unlink()
            (path / "out" / "bmap.json").unlink()
            yield path
            shutil.rmtree(path)


@pytest.fixture
def mapped(root, bmap):
    """A directory with twelve files of 50,000 bytes, written to the device, and its map."""
    fill(root, (50_000,) * 12)
    os.sync()
    settle()
    assert tool("create", root, "-o", bmap) == 0
    return root, bmap


@pytest.fixture(scope="module", params=DISKS)
def whole(request, tmp_path_factory):
    file_system, sector = request.param.split("-")
    with disk(tmp_path_factory.mktemp("disk"), file_system, sector=int(sector)) as made:
        yield made
