"""The backend xnvme-bam, with its queue pairs driven by the kernel on the processor."""

import errno
import os
import re
import time
from typing import Any

import numpy as np
import pytest

from dali_storage.backends import xnvme_bam
from dali_storage.backends.gpu import layout as structures
from dali_storage.backends.gpu import queue_pairs
from dali_storage.backends.xnvme_bam import XnvmeBamReader
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import fill, make_batch, read
from tests.nvme_vm.guest import vram, ways
from tests.nvme_vm.guest.hostile import Layout
from tests.nvme_vm.guest.launching import on_the_processor as on_the_processor
from tests.nvme_vm.guest.promises import GUARD

pytestmark = [
    pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.MapNotChecked"),
    pytest.mark.usefixtures("on_the_processor"),
]

MANY = 25  # times that all files are read at once


def opened(layout: Layout, uri: str, **options: Any) -> XnvmeBamReader:
    return XnvmeBamReader(layout.catalog, bmap=layout.bmap, uri=uri, **options)


def is_read_right(reader: XnvmeBamReader, layout: Layout) -> bool:
    samples = np.arange(len(layout.catalog))
    return all(read(reader, samples, lane=lane) == layout.contents for lane in range(reader.lanes))


@pytest.fixture
def identifiers(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The queue identifiers of all queue pairs made in a test, in their order."""
    made: list[list[int]] = []

    class Watched(queue_pairs.QueuePairs):
        def create(self) -> None:
            super().create()
            made.append(self.qids)

    monkeypatch.setattr("dali_storage.backends.gpu.queue.QueuePairs", Watched)
    return made


@pytest.mark.parametrize(
    ("queues", "depth", "max_transfer"),
    [(1, 2, 64 << 10), (2, 9, None), (3, 64, 4096), (4, 1024, None)],
)
def test_hostile_layouts_are_read_right(
    layout: Layout, queues: int, depth: int, max_transfer: int | None
) -> None:
    options = {"queues": queues, "queue_depth": depth, "max_transfer": max_transfer}
    with ways.address(layout.serial) as uri, opened(layout, uri, **options) as reader:
        assert reader.lanes == min(queues, 2)
        assert is_read_right(reader, layout)
        assert is_read_right(reader, layout)


@pytest.mark.parametrize(("queues", "depth"), [(1, 2), (4, 300)])
def test_hostile_layouts_are_read_to_gpu_memory(layout: Layout, queues: int, depth: int) -> None:
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


def test_no_queue_is_left_and_xnvme_block_reads_beside_it(
    layouts: list[Layout], identifiers: list[list[int]]
) -> None:
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


def test_more_than_the_controller_grants_is_refused(layouts: list[Layout]) -> None:
    with ways.address(layouts[0].serial) as uri:
        with pytest.raises(ValueError, match=r"queues must be at most 62, not 64: .* grants 64 q"):
            opened(layouts[0], uri, queues=64)
        with (
            opened(layouts[0], uri, queues=40, queue_depth=2),
            pytest.raises(BackendUnavailable, match=r"of the 64 I/O queue pairs .* only "),
        ):
            opened(layouts[0], uri, queues=40, queue_depth=2)
        with opened(layouts[0], uri, queues=62, queue_depth=2) as reader:
            assert is_read_right(reader, layouts[0])
        del reader


def test_a_controller_that_refuses_a_queue_is_named(
    layouts: list[Layout], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ways.address(layouts[0].serial) as uri:
        with monkeypatch.context() as patch:
            patch.setattr(queue_pairs, "_CREATE_SQ", 0x7F)  # an opcode that it does not know
            with pytest.raises(OSError, match=r"does not create .*\(SCT 0h, SC 01h\)") as caught:
                opened(layouts[0], uri)
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, uri)
        del caught
        with opened(layouts[0], uri) as reader:
            assert is_read_right(reader, layouts[0])
        del reader


def give_up_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    batch = structures.batch
    monkeypatch.setattr(
        structures, "batch", lambda **values: batch(**(values | {"patience_s": seconds}))
    )


def test_given_up_commands_write_nothing_and_the_next_read_makes_new_queues(
    layouts: list[Layout], monkeypatch: pytest.MonkeyPatch, identifiers: list[list[int]]
) -> None:
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


def test_a_forked_process_is_refused_and_disturbs_nothing(layouts: list[Layout]) -> None:
    layout = layouts[0]
    with ways.address(layout.serial) as uri, opened(layout, uri) as reader:
        pid = os.fork()
        if not pid:
            try:
                read(reader, np.arange(3))
            except RuntimeError:
                reader.close()
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        assert is_read_right(reader, layout)
