"""The backends xnvme-block and xnvme-file on NVMe disks with the kernel's driver."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from dali_storage.backends.xnvme_block import XnvmeBlockReader
from dali_storage.backends.xnvme_file import XnvmeFileReader
from dali_storage.testing import read
from tests.kit.devices import mounted
from tests.kit.layouts import contents_of
from tests.nvme_vm import plan
from tests.nvme_vm.guest import controllers, ways
from tests.nvme_vm.guest.block import ram_disk, read_at_once
from tests.nvme_vm.guest.hostile import Layout

pytestmark = pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MapNotChecked")

FILE_IOS = ("io_uring", "libaio", "emu", "thrpool")
TRANSFERS = pytest.mark.parametrize("max_transfer", [None, 32 << 10])


@pytest.mark.parametrize("io", FILE_IOS)
def test_a_ram_disk_is_read_right(tmp_path: Path, io: str) -> None:
    catalog, bmap = ram_disk(tmp_path)
    with XnvmeBlockReader(catalog, bmap=bmap, uri=plan.RAM_DISK, io=io) as reader:
        read_raw = read(reader, np.arange(len(catalog)))
    with mounted(plan.RAM_DISK, tmp_path / "mnt"):
        assert contents_of(catalog) == read_raw


@TRANSFERS
@pytest.mark.parametrize("io", FILE_IOS)
def test_hostile_layouts_by_the_block_device(
    layout: Layout, io: str, max_transfer: int | None
) -> None:
    assert layout.is_read_right(layout.disk, io=io, max_transfer=max_transfer)


def test_hostile_layouts_by_the_partition_or_the_device_in_the_map(layout: Layout) -> None:
    assert layout.is_read_right(None)
    assert layout.is_read_right(layout.node)


@TRANSFERS
def test_hostile_layouts_by_the_character_device(layout: Layout, max_transfer: int | None) -> None:
    node = controllers.character_device(layout.serial)
    assert layout.is_read_right(node, io="io_uring_cmd", max_transfer=max_transfer)


@pytest.mark.parametrize(
    ("io", "direct"), [*((io, False) for io in FILE_IOS), ("io_uring", True), ("libaio", True)]
)
def test_hostile_files_of_a_mounted_file_system(layout: Layout, io: str, direct: bool) -> None:
    with layout.mounted(), XnvmeFileReader(layout.catalog, io=io, direct=direct) as reader:
        assert read(reader, np.arange(len(layout.catalog))) == layout.contents


@ways.ALL
def test_two_controllers_are_read_at_once(layouts: list[Layout], way: ways.Way) -> None:
    with ExitStack() as stack:
        uris = [stack.enter_context(way(layout.serial)) for layout in layouts]
        readers = [
            stack.enter_context(layout.open(uri)) for layout, uri in zip(layouts, uris, strict=True)
        ]
        expected = [layout.contents[:20] for layout in layouts for _ in range(2)]
        assert read_at_once(readers) == expected
