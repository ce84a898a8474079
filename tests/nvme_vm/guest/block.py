"""The backend block on /dev/nvmeXn1: hostile layouts, compared with the files."""

import zlib

import numpy as np
import pytest

import bmap_tools
from dali_storage.backends.block import BlockReader
from dali_storage.contract.errors import MapNotChecked
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from tests.kit.devices import make_file_system, mounted
from tests.kit.layouts import contents_of, make_hostile_files, make_map
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@pytest.mark.parametrize("sector", plan.EMPTY)
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_hostile_layouts_are_read_right(tmp_path, file_system, sector, partition, request):
    disk = controllers.disk(plan.EMPTY[sector])
    node = controllers.partition(disk) if partition else controllers.blank(disk)
    make_file_system(file_system, node)
    with mounted(node, tmp_path / "mnt"):
        make_hostile_files(tmp_path / "mnt/class", seed=seed_of(request))
        bmap = make_map(tmp_path / "mnt", tmp_path / "bmap.json")
        require_layout(bmap, sector, 9 << 20 if partition else 0)
        catalog = from_directory(tmp_path / "mnt", file_filters="*")
        contents = contents_of(catalog)
        for uri in (None, node, disk):
            with BlockReader(catalog, bmap=bmap, uri=uri, max_transfer=64 << 10) as reader:
                assert read(reader, np.arange(len(catalog))) == contents
    with (
        pytest.warns(MapNotChecked, match="not mounted"),
        BlockReader(catalog, bmap=bmap, max_transfer=1 << 20) as reader,
    ):
        assert read(reader, np.arange(len(catalog))) == contents


def seed_of(request):
    """A seed per test: bytes that an earlier test left on the disk must not look right."""
    return zlib.crc32(request.node.name.encode())


def require_layout(bmap, sector, start):
    """The map describes the expected disk and a hard layout."""
    mapped = bmap_tools.load(bmap)
    device = mapped.device
    assert (device.logical_block_size, device.start) == (sector, start)
    assert device.serial == plan.EMPTY[sector]
    assert len(mapped.extents) > 600


def plant(root, seed):
    """20 files of random bytes."""
    random = np.random.default_rng(seed)
    (root / "class").mkdir()
    for index in range(20):
        (root / "class" / f"{index:02d}").write_bytes(random.bytes(50_000 + index))
    return from_directory(root, file_filters="*")
