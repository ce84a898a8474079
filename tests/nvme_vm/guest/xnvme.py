"""The backend xnvme-block on NVMe: the block device, the character device, the PCI address."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dali_storage.backends import _xnvme
from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.catalog import Catalog, from_directory, from_tree
from dali_storage.errors import BackendUnavailable
from dali_storage.testing import read

from ...devices import make_file_system, mounted
from ...layouts import contents_of, make_hostile_files, make_map
from .. import plan
from . import controllers
from .block import require_layout
from .faults import BATCH, BMAP, contents, known_faults, require_place

pytestmark = pytest.mark.filterwarnings("ignore::dali_storage.errors.MapNotChecked")


@dataclass(frozen=True, slots=True)
class Layout:
    """Hostile files on a disk that is not mounted any longer.

    Attributes:
        serial: of the controller.
        catalog: the files.
        contents: what the file system has read of each.
        bmap: their map.
    """

    serial: str
    catalog: Catalog
    contents: list[bytes]
    bmap: Path

    def is_read_right(self, uri: str | None, **options: object) -> bool:
        with XnvmeBlockReader(self.catalog, bmap=self.bmap, uri=uri, **options) as reader:
            return read(reader, np.arange(len(self.catalog))) == self.contents


@pytest.fixture(scope="module", params=[(512, "ext4"), (4096, "xfs")], ids=str)
def layout(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A whole disk with blocks of 512 bytes, and a partition of one with blocks of 4096."""
    sector, file_system = request.param
    directory = tmp_path_factory.mktemp(file_system)
    serial = plan.EMPTY[sector]
    node, start = controllers.blank(controllers.disk(serial)), 0
    if sector == 4096:
        node, start = controllers.partition(node), 9 << 20
    make_file_system(file_system, node)
    with mounted(node, directory / "mnt"):
        make_hostile_files(directory / "mnt/class")
        bmap = make_map(directory / "mnt", directory / "bmap.json")
        require_layout(bmap, sector, start)
        catalog = from_directory(directory / "mnt", file_filters="*")
        expected = contents_of(catalog)
    return Layout(serial, catalog, expected, bmap)


@pytest.mark.parametrize("max_transfer", [None, 32 << 10])
def test_hostile_layouts_by_the_block_device(layout: Layout, max_transfer: int | None) -> None:
    assert layout.is_read_right(None, io="io_uring", max_transfer=max_transfer)
    disk = controllers.disk(layout.serial)
    assert layout.is_read_right(disk, io="io_uring", max_transfer=max_transfer)


@pytest.mark.parametrize("max_transfer", [None, 32 << 10])
def test_hostile_layouts_by_the_character_device(layout: Layout, max_transfer: int | None) -> None:
    node = controllers.character_device(layout.serial)
    assert layout.is_read_right(node, io="io_uring_cmd", max_transfer=max_transfer)


def test_hostile_layouts_by_the_pci_address(layout: Layout) -> None:
    function = controllers.address(layout.serial)
    with controllers.bound(function, "uio_pci_generic"):
        if _xnvme.load().version == "0.7.5":
            with pytest.raises(BackendUnavailable, match="cannot read from a PCI address"):
                layout.is_read_right(function)
        else:
            assert layout.is_read_right(function, queue_depth=16)
            assert layout.is_read_right(function, queue_depth=16, queues=1, spin=True)
    controllers.wait_for_disk(layout.serial)


@pytest.fixture
def catalog() -> Catalog:
    return from_tree(XnvmeBlockReader.tree(bmap=BMAP), file_filters="*.bin")


def test_an_epoch_with_a_bad_sector_and_one_that_fails_once(catalog: Catalog) -> None:
    faults, node = known_faults(catalog), controllers.character_device(plan.MAPPED)
    bad = faults["bad"]["sample"]
    epoch = np.delete(np.arange(len(catalog)), faults["not retried"]["sample"])
    with XnvmeBlockReader(catalog, bmap=BMAP, uri=node, retries=1) as reader:
        for first in range(0, len(epoch), BATCH):
            samples = epoch[first : first + BATCH]
            if bad in samples:
                with pytest.raises(OSError) as caught:
                    read(reader, samples)
                samples = samples[samples != bad]
            assert read(reader, samples) == contents(catalog, samples)
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == f"{plan.MOUNT}/{plan.FILES}/{faults['bad']['name']}"
    assert "NVMe status Unrecovered Read Error (SCT 2h, SC 81h)" in str(caught.value)
    require_place(str(caught.value), faults["bad"])


def test_a_read_that_fails_once_fails_without_retries(catalog: Catalog) -> None:
    fault, node = known_faults(catalog)["not retried"], controllers.character_device(plan.MAPPED)
    sample = np.array([fault["sample"]])
    with XnvmeBlockReader(catalog, bmap=BMAP, uri=node, retries=0) as reader:
        with pytest.raises(OSError, match="Unrecovered Read Error") as caught:
            read(reader, sample)
        assert read(reader, sample) == contents(catalog, sample)
    require_place(str(caught.value), fault)
