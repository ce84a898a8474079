"""The backend xnvme-block on NVMe disks with the kernel's driver."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from dali_storage.testing import read
from tests.nvme_vm.guest import controllers, ways

FILE_IOS = ("io_uring", "libaio", "emu", "thrpool")
TRANSFERS = pytest.mark.parametrize("max_transfer", [None, 32 << 10])


@TRANSFERS
@pytest.mark.parametrize("io", FILE_IOS)
def test_hostile_layouts_by_the_block_device(layout, io, max_transfer):
    assert layout.is_read_right(layout.disk, io=io, max_transfer=max_transfer)


def test_hostile_layouts_by_the_partition_or_the_device_in_the_map(layout):
    assert layout.is_read_right(None)
    assert layout.is_read_right(layout.node)


@TRANSFERS
def test_hostile_layouts_by_the_character_device(layout, max_transfer):
    node = controllers.character_device(layout.serial)
    assert layout.is_read_right(node, io="io_uring_cmd", max_transfer=max_transfer)


@ways.ALL
def test_two_controllers_are_read_at_once(layouts, way):
    with ExitStack() as stack:
        uris = [stack.enter_context(way(layout.serial)) for layout in layouts]
        readers = [
            stack.enter_context(layout.open(uri)) for layout, uri in zip(layouts, uris, strict=True)
        ]
        expected = [layout.contents[:20] for layout in layouts for _ in range(2)]
        assert read_at_once(readers) == expected


def read_at_once(readers):
    """The first 20 samples, read by two lanes of each reader at the same time."""
    turns = [(reader, lane) for reader in readers for lane in (0, 1)]
    with ThreadPoolExecutor(len(turns)) as pool:
        jobs = [pool.submit(read, reader, np.arange(20), lane=lane) for reader, lane in turns]
        return [job.result() for job in jobs]
