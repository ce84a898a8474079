"""Hostile files on a disk and their map, for the readers that use libxnvme."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract.catalog import Catalog
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from tests.kit.devices import make_file_system, mounted
from tests.kit.layouts import contents_of, make_hostile_files, make_map
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers
from tests.nvme_vm.guest.block import require_layout


@dataclass(frozen=True, slots=True)
class Layout:
    """Hostile files on a disk that is no longer mounted.

    Its file system is on `node`, and `disk` is the block device of the whole namespace.
    """

    node: str
    disk: str
    serial: str
    catalog: Catalog
    contents: list[bytes]
    bmap: Path

    def open(self, uri: str | None, **options: object) -> XnvmeBlockReader:
        """Open a reader of the files."""
        return XnvmeBlockReader(self.catalog, bmap=self.bmap, uri=uri, **options)

    def is_read_right(self, uri: str | None, **options: object) -> bool:
        """Whether a reader opened like this reads the contents of the files."""
        with self.open(uri, **options) as reader:
            return read(reader, np.arange(len(self.catalog))) == self.contents


def make_layout(directory: Path, sector: int, file_system: str) -> Layout:
    """Hostile files on a disk with blocks of 512 bytes, or on a partition with blocks of 4096."""
    disk = controllers.disk(plan.EMPTY[sector])
    node, start = controllers.blank(disk), 0
    if sector == 4096:
        node, start = controllers.partition(disk), 9 << 20
    make_file_system(file_system, node)
    with mounted(node, directory / "mnt"):
        make_hostile_files(directory / "mnt/class", seed=sector)
        bmap = make_map(directory / "mnt", directory / "bmap.json")
        require_layout(bmap, sector, start)
        catalog = from_directory(directory / "mnt", file_filters="*")
        return Layout(node, disk, plan.EMPTY[sector], catalog, contents_of(catalog), bmap)
