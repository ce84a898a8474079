"""The backend xnvme-block on NVMe controllers by PCI address, with libxnvme's own driver."""

import mmap
import os

import numpy as np
import pytest

import bmap_tools
from dali_storage.backends.xnvme import library as _xnvme
from dali_storage.backends.xnvme.namespace import open_namespace
from dali_storage.contract._types import address_of
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import make_batch, read
from tests.kit.fake_cuda import install
from tests.nvme_vm.guest import controllers, vram, ways
from tests.nvme_vm.guest.hostile import Layout

pytestmark = pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MapNotChecked")

GUARD = 0xA5
MOST = 2 << 20  # bytes of a command: 513 pages, if it begins in the middle of one


def test_hostile_layouts_by_the_pci_address(layout: Layout) -> None:
    with ways.address(layout.serial) as function:
        if _xnvme.load().version == "0.7.5":
            with pytest.raises(BackendUnavailable, match="cannot read from a PCI address"):
                layout.is_read_right(function)
        else:
            assert layout.is_read_right(function, queue_depth=16)
            assert layout.is_read_right(function, queue_depth=16, queues=1, spin=True)


@ways.TO_HOST_MEMORY
def test_hostile_layouts_to_page_locked_memory(
    layout: Layout, way: ways.Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, samples = install(monkeypatch), np.arange(len(layout.catalog))
    with way(layout.serial) as uri:
        with layout.open(uri, mem="pinned") as reader:
            batch = make_batch(reader, samples)
            assert [*machine.registered] == [address_of(batch.buffer)]
            assert read(reader, samples, buffer=batch.buffer) == layout.contents
        del batch, reader
        assert not machine.registered


@ways.ONLY_MAIN
@pytest.mark.parametrize("max_transfer", [None, 4096, 20 << 10, 2 << 20])
def test_hostile_layouts_to_gpu_memory(layout: Layout, max_transfer: int | None) -> None:
    options = {"queue_depth": 2 if max_transfer == 20 << 10 else 16, "max_transfer": max_transfer}
    before = vram.VramMemory.flushes
    with ways.gpu(layout.serial) as function:
        assert layout.is_read_right(function, **options)
    assert vram.VramMemory.flushes == before + 1


def read_device(node: str, position: int, length: int) -> bytes:
    fd = os.open(node, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, length) as memory:
        assert os.preadv(fd, [memory], position) == length
        os.close(fd)
        return memory[:]


@ways.ONLY_MAIN
def test_commands_of_all_lengths_to_places_of_all_kinds(layout: Layout) -> None:
    known, random = bmap_tools.load(layout.bmap), np.random.default_rng(3)
    block, node = known.device.logical_block_size, controllers.disk(layout.serial)
    extents = random.choice(known.extents[known.extents[:, 1] >= 0], 24)
    offsets = known.device.start + extents[:, 1]
    lengths = random.integers(1, MOST // block, offsets.size) * block
    lengths[:4], lengths[4:8], lengths[8:12] = MOST, 8192, block
    gaps = random.integers(0, 20, offsets.size) * block
    gaps[:4] = block
    places = np.cumsum(gaps + lengths) - lengths
    expected = np.full(int(places[-1] + lengths[-1]), GUARD, np.uint8)
    for offset, place, length in zip(offsets, places, lengths, strict=True):
        content = read_device(node, int(offset), int(length))
        expected[place : place + length] = np.frombuffer(content, np.uint8)
    with ways.gpu(layout.serial) as function:
        options = {"queues": 1, "queue_depth": 4, "spin": False, "peer": True}
        opened = open_namespace(_xnvme.load(), function, io=None, nsid=1, **options)
        vram.VramMemory.namespace = opened
        memory = vram.VramMemory(0, function)
        buffer = memory.allocate(expected.size)
        buffer[:] = GUARD
        to = address_of(buffer) + places
        assert opened.submit(0, offsets, to, lengths, buffer, memory.find(buffer)) == {}
        found = np.frombuffer(buffer.tobytes(), np.uint8)
        opened.close()
        del buffer, opened
    assert (found[: expected.size] == expected).all()
    assert (found[expected.size :] == GUARD).all()


@ways.ONLY_MAIN
def test_commands_and_queues_as_long_as_upcie_supports(layout: Layout) -> None:
    with ways.address(layout.serial) as function:
        assert layout.is_read_right(function, max_transfer=2 << 20)
        assert layout.is_read_right(function, queue_depth=512, queues=1)
        with pytest.raises(ValueError, match=r"max_transfer must be .* at most 2097152, the bytes"):
            layout.open(function, max_transfer=4 << 20)
        with pytest.raises(ValueError, match="queue_depth must be at most 512 for a PCI address"):
            layout.open(function, queue_depth=1024)
