"""What the tests of all readers of extent maps share: mapped disks, and files that are hostile."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from bmap_tools import create
from dali_storage.catalog import Catalog
from dali_storage.reader import Reader
from dali_storage.testing import SIZES, MappedReaderTests

from .devices import Disk, disk, run

_BLOCK = 4096
NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="loop devices and mounting need root: run the tests as root"
)


def make_map(root: Path | bytes, bmap: Path) -> Path:
    assert create.run(os.fsdecode(root), str(bmap), threads=1) == 0
    return bmap


class OnDisk(MappedReaderTests):
    """The promises of `backend`, on a disk of its own; `uri` says what is opened."""

    backend: ClassVar[Callable[..., Reader]]
    file_system = "ext4"
    sector = 512
    partition = False
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(scope="class")
    @classmethod
    def disk(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
        directory = tmp_path_factory.mktemp("disk")
        with disk(directory, cls.file_system, sector=cls.sector, partition=cls.partition) as made:
            yield made

    @pytest.fixture
    def directory(self, disk: Disk, tmp_path: Path) -> Iterator[Path]:
        self.disk_used, self.bmap = disk, tmp_path / "bmap.json"
        directory = disk.mount / tmp_path.name
        directory.mkdir()
        yield directory
        shutil.rmtree(directory)  # the disk is not large

    def uri(self) -> str | Path | None:
        return None

    def open(self, catalog: Catalog) -> Reader:
        make_map(catalog.root, self.bmap)
        return self.backend(catalog, bmap=self.bmap, uri=self.uri(), **self.options)

    def reopen(self, reader: Reader, catalog: Catalog) -> Reader:
        return self.backend(catalog, bmap=self.bmap, uri=self.uri(), **self.options)


def write_interleaved(directory: Path, names: list[str], pieces: int, random: Any) -> None:
    """Files whose blocks get their places in turn: they have an extent a block."""
    for piece in range(pieces):
        for name in names:
            fd = os.open(directory / name, os.O_CREAT | os.O_WRONLY)
            os.posix_fallocate(fd, piece * _BLOCK, _BLOCK)
            os.pwrite(fd, random.bytes(_BLOCK), piece * _BLOCK)
            os.close(fd)  # and with it the space that was reserved behind the block
    for name in names:
        os.truncate(directory / name, pieces * _BLOCK - 99)


def write_sparse(path: Path, size: int, ranges: list[tuple[int, int]], random: Any) -> None:
    with open(path, "wb") as file:
        for start, end in ranges:
            file.seek(start)
            file.write(random.bytes(end - start))
        file.truncate(size)


def fill_free_space(directory: Path, random: Any) -> None:
    """Leave other data on the medium where files will be preallocated."""
    for index in range(40):
        (directory / f"junk{index}").write_bytes(random.bytes(1 << 20))
    os.sync()
    for index in range(40):
        (directory / f"junk{index}").unlink()
    os.sync()


def preallocate(path: Path, size: int, ranges: list[tuple[int, int]], random: Any) -> None:
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, size)
    os.fsync(fd)
    for start, end in ranges:
        os.pwrite(fd, random.bytes(end - start), start)
    os.close(fd)


def make_hostile_files(directory: Path) -> None:
    """One of each kind that the earlier prototype read wrong, none of them synced."""
    random = np.random.default_rng(7)
    directory.mkdir()
    fill_free_space(directory, random)
    for size in SIZES:
        (directory / f"size{size}").write_bytes(random.bytes(size))
    write_interleaved(directory, ["interleaved1", "interleaved2", "interleaved3"], 200, random)
    hole, end = 10 * _BLOCK, 30 * _BLOCK
    write_sparse(directory / "hole-first", end + 7, [(hole, end + 7)], random)
    write_sparse(directory / "hole-middle", end + 7, [(0, 100), (hole, end + 7)], random)
    write_sparse(directory / "hole-last", end + 7, [(0, hole + 100)], random)
    write_sparse(directory / "hole-only", end + 7, [], random)
    write_sparse(
        directory / "holes", 99 * _BLOCK, [(i * _BLOCK, i * _BLOCK + 9) for i in range(0, 90, 3)],
        random,
    )  # fmt: skip
    preallocate(directory / "preallocated", end + 7, [], random)
    preallocate(directory / "preallocated-partly", end + 7, [(hole, hole + 5000)], random)
    run("fallocate", "--keep-size", "--length", "1MiB", str(directory / "size4097"))
    os.link(directory / "size131073", directory / "hard-link")
    os.symlink("size513", directory / "symbolic-link")


def contents_of(catalog: Catalog) -> list[bytes]:
    return [Path(os.fsdecode(catalog.path(i))).read_bytes() for i in range(len(catalog))]
