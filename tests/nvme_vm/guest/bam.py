"""The backend xnvme-bam, with its queue pairs driven by the kernel on the processor."""

import errno
import re
import time

import numpy as np
import pytest

from dali_storage.backends import xnvme_bam
from dali_storage.backends.gpu import layout as structures
from dali_storage.backends.gpu import queue_pairs
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.testing import fill, make_batch, read
from tests.nvme_vm.guest import vram, ways

pytestmark = pytest.mark.usefixtures("on_the_processor")

GUARD = 0xA5
MANY = 25  # times that all files are read at once


def opened(layout, uri, **options):
    return XnvmeBamReader(layout.catalog, bmap=layout.bmap, uri=uri, **options)


def is_read_right(reader, layout):
    samples = np.arange(len(layout.catalog))
    return all(read(reader, samples, lane=lane) == layout.contents for lane in range(reader.lanes))


@pytest.fixture
def identifiers(monkeypatch):
    """The queue identifiers of all queue pairs made in a test, in their order."""
    made: list[list[int]] = []

    class Watched(queue_pairs.QueuePairs):
        def create(self):
            super().create()
            made.append(self.qids)

    monkeypatch.setattr("dali_storage.backends.gpu.queue.QueuePairs", Watched)
    return made


@pytest.mark.parametrize(
    ("queues", "depth", "max_transfer"),
    [(1, 2, 64 << 10), (2, 9, None), (3, 64, 4096), (4, 1024, None)],
)
def test_hostile_layouts_are_read_right(layout, queues, depth, max_transfer):
    options = {"queues": queues, "queue_depth": depth, "max_transfer": max_transfer}
    with ways.address(layout.serial) as uri, opened(layout, uri, **options) as reader:
        assert reader.lanes == min(queues, 2)
        assert is_read_right(reader, layout)
        assert is_read_right(reader, layout)


@pytest.mark.parametrize(("queues", "depth"), [(1, 2), (4, 300)])
def test_hostile_layouts_are_read_to_gpu_memory(layout, queues, depth):
    before = vram.VramMemory.flushes
    options = {"queues": queues, "queue_depth": depth}
    with (
        ways.address(layout.serial) as uri,
        vram.in_use(xnvme_bam, XnvmeBamReader),
        opened(layout, uri, **options) as reader,
    ):
        assert reader.device == "gpu"
        assert is_read_right(reader, layout)
        assert vram.VramMemory.flushes == before + reader.lanes
        del reader


def test_no_queue_is_left_and_xnvme_block_reads_beside_it(layouts, identifiers):
    layout = layouts[0]
    with ways.address(layout.serial) as uri:
        for _ in range(2):
            with opened(layout, uri, queues=3) as reader:
                assert layout.is_read_right(uri, queue_depth=16)
                assert is_read_right(reader, layout)
        with opened(layout, uri, queues=2) as one, opened(layout, uri, queues=2) as other:
            assert is_read_right(one, layout)
            assert is_read_right(other, layout)
        assert layout.is_read_right(uri, queue_depth=16)
        del reader, one, other
    granted = identifiers[0][0]
    first = [[granted, granted - 1], [granted - 2]]
    assert identifiers[:4] == [*first, *first]
    assert identifiers[4:] == [[granted - number] for number in range(4)]


def give_up_after(monkeypatch, seconds):
    batch = structures.batch
    monkeypatch.setattr(
        structures, "batch", lambda **values: batch(**(values | {"patience_s": seconds}))
    )


def test_given_up_commands_write_nothing_and_the_next_read_makes_new_queues(
    layouts, monkeypatch, identifiers
):
    layout, left = layouts[0], 0
    with ways.address(layout.serial) as uri, opened(layout, uri, max_transfer=4096) as reader:
        batch = make_batch(reader, np.tile(np.arange(len(layout.contents)), 2))
        for _ in range(5):
            with monkeypatch.context() as impatient:
                give_up_after(impatient, 1e-9)
                with pytest.raises(OSError) as caught:
                    for _ in range(MANY):
                        fill(reader, batch)
            batch.buffer[:] = GUARD
            assert (caught.value.errno, caught.value.filename) == (errno.ETIMEDOUT, uri)
            left += int(re.findall(r"(\d+) commands are in flight", str(caught.value))[0])
            time.sleep(0.1)
            assert (batch.buffer == GUARD).all()
            assert is_read_right(reader, layout)
        del batch, caught
    assert left > 0
    assert identifiers == [identifiers[0], identifiers[1], *[identifiers[0]] * 5]
