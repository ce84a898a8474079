"""What the tests of all readers of extent maps share: the promises, on disks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dali_storage.catalog import Catalog
from dali_storage.reader import Reader
from dali_storage.testing import MappedReaderTests

from .devices import Disk, disk
from .interrupts import LosesNoFiles
from .layouts import make_map

NEEDS_ROOT = pytest.mark.skipif(
    os.geteuid() != 0, reason="loop devices and mounting need root: run the tests as root"
)


class OnDisk(LosesNoFiles, MappedReaderTests):
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
