"""Files on disks and their maps: hostile ones, and a few."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import bmap_tools
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.contract.catalog import Catalog
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from tests.kit.devices import make_file_system, mounted
from tests.kit.layouts import contents_of, make_hostile_files, make_map
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers


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
        mapped = bmap_tools.load(bmap)
        device = mapped.device
        found = device.logical_block_size, device.start, device.serial
        assert found == (sector, start, plan.EMPTY[sector])
        assert len(mapped.extents) > 600
        catalog = from_directory(directory / "mnt", file_filters="*")
        return Layout(node, disk, plan.EMPTY[sector], catalog, contents_of(catalog), bmap)


def plant(root: Path, seed: int) -> Catalog:
    """20 files of random bytes."""
    random = np.random.default_rng(seed)
    (root / "class").mkdir()
    for index in range(20):
        (root / "class" / f"{index:02d}").write_bytes(random.bytes(50_000 + index))
    return from_directory(root, file_filters="*")
