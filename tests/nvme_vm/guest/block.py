"""The backend block on /dev/nvmeXn1: hostile layouts, compared with the files."""

import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import bmap_tools
from dali_storage.backends.block import BlockReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import MapNotChecked
from dali_storage.contract.reader import Reader
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from tests.kit.devices import make_file_system, mounted
from tests.kit.layouts import contents_of, make_hostile_files, make_map
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@pytest.mark.parametrize("sector", plan.EMPTY)
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_hostile_layouts_are_read_right(
    tmp_path: Path, file_system: str, sector: int, partition: bool, request: pytest.FixtureRequest
) -> None:
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


def seed_of(request: pytest.FixtureRequest) -> int:
    """A seed per test: bytes that an earlier test left on the disk must not look right."""
    return zlib.crc32(request.node.name.encode())


def require_layout(bmap: Path, sector: int, start: int) -> None:
    """The map describes the expected disk and a hard layout."""
    mapped = bmap_tools.load(bmap)
    device = mapped.device
    assert (device.logical_block_size, device.start) == (sector, start)
    assert device.serial == plan.EMPTY[sector]
    assert len(mapped.extents) > 600


def test_a_ram_disk_is_read_right(tmp_path: Path) -> None:
    catalog, bmap = ram_disk(tmp_path)
    with (
        pytest.warns(MapNotChecked, match="not mounted"),
        BlockReader(catalog, bmap=bmap) as reader,
    ):
        expected = read(reader, np.arange(len(catalog)))
    with mounted(plan.RAM_DISK, tmp_path / "mnt"):
        assert contents_of(catalog) == expected


def ram_disk(directory: Path) -> tuple[Catalog, Path]:
    """Files on a RAM disk that is no longer mounted, and their map."""
    make_file_system("ext4", plan.RAM_DISK)
    with mounted(plan.RAM_DISK, directory / "mnt"):
        catalog = plant(directory / "mnt", 7)
        return catalog, make_map(directory / "mnt", directory / "bmap.json")


def test_two_controllers_are_read_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        readers, expected = [], []
        for sector, serial in plan.EMPTY.items():
            node = controllers.blank(controllers.disk(serial))
            make_file_system("ext4", node)
            stack.enter_context(mounted(node, tmp_path / serial))
            catalog = plant(tmp_path / serial, sector)
            bmap = make_map(catalog.root, tmp_path / f"{serial}.json")
            readers.append(stack.enter_context(BlockReader(catalog, bmap=bmap)))
            expected.append(contents_of(catalog))
        assert read_at_once(readers) == [contents for contents in expected for _ in range(2)]


def read_at_once(readers: Sequence[Reader]) -> list[list[bytes]]:
    """The first 20 samples, read by two lanes of each reader at the same time."""
    turns = [(reader, lane) for reader in readers for lane in (0, 1)]
    with ThreadPoolExecutor(len(turns)) as pool:
        jobs = [pool.submit(read, reader, np.arange(20), lane=lane) for reader, lane in turns]
        return [job.result() for job in jobs]


def plant(root: Path, seed: int) -> Catalog:
    """20 files of random bytes."""
    random = np.random.default_rng(seed)
    (root / "class").mkdir()
    for index in range(20):
        (root / "class" / f"{index:02d}").write_bytes(random.bytes(50_000 + index))
    return from_directory(root, file_filters="*")
