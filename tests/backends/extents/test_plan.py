"""The arithmetic of extents, on a device that is a numpy array."""

import ctypes
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.backends.extents.plan import DeviceReads, Extents
from dali_storage.contract.ranges import lay_out
from dali_storage.contract.reader import Batch
from tests.kit.bmap.documents import document, map_of

DEVICE_BLOCKS = 64
START_BLOCKS = 3  # where the file system begins on the disk


@dataclass(frozen=True)
class Layout:
    """Files whose extents, in blocks, are (logical, physical or -1, length), and their sizes."""

    block: int
    files: list[tuple[int, list[tuple[int, int, int]]]]


@st.composite
def layouts(draw):
    block = draw(st.sampled_from([512, 1024, 4096, 16384]))
    files = []
    for _ in range(draw(st.integers(1, 6))):
        extents, logical = [], 0
        for _ in range(draw(st.integers(0, 6))):
            logical += draw(st.integers(0, 3))  # a hole, or none
            length = draw(st.integers(1, 4))
            physical = draw(st.integers(-1, DEVICE_BLOCKS - length))
            if extents and physical >= 0 and draw(st.booleans()):  # just behind the one before
                behind = extents[-1][1] + extents[-1][2]
                physical = behind if behind + length <= DEVICE_BLOCKS else physical
            extents.append((logical, physical, length))
            logical += length
        blocks = logical + draw(st.integers(0, 2))
        size = max(0, blocks * block - draw(st.integers(0, block - 1)))
        # No extent begins beyond the last block.
        last = -(-size // block)
        kept = [(lo, ph, min(le, last - lo)) for lo, ph, le in extents if lo < last]
        files.append((size, kept))
    return Layout(block, files)


def extent_map(layout):
    size, start = DEVICE_BLOCKS * layout.block, START_BLOCKS * layout.block
    plain = document() | {"files": [], "directories": []}
    plain["device"] |= {"size": size, "disk_size": start + size, "start": start}
    plain["file_system"]["block_size"] = layout.block
    for number, (size, extents) in enumerate(layout.files):
        blocks = [(lo, ph if ph >= 0 else None, le) for lo, ph, le in extents]
        rows = [[at if at is None else at * layout.block for at in each] for each in blocks]
        plain["files"].append([str(number), size, 0, 0, 0, rows])
    return map_of(plain)


def expected(layout, file, disk):
    """A file's content, byte range by byte range, from what an extent is."""
    size, extents = layout.files[file]
    content = bytearray(-(-size // layout.block) * layout.block)
    for logical, physical, length in extents:
        if physical >= 0:
            for block in range(length):
                source = (START_BLOCKS + physical + block) * layout.block
                target = (logical + block) * layout.block
                content[target : target + layout.block] = disk[source : source + layout.block]
    return bytes(content[:size])


def perform(reads, disk, most):
    for position, memory, length in zip(
        reads.offsets.tolist(), reads.memory.tolist(), reads.lengths.tolist(), strict=True
    ):
        assert 0 < length <= most
        assert 0 <= position <= len(disk) - length
        assert position % 512 == memory % 512 == length % 512 == 0
        ctypes.memmove(memory, disk[position : position + length], length)


@given(layout=layouts(), data=st.data(), most=st.sampled_from([512, 1024, 4096, 12288, 1 << 20]))
def test_any_ranges_of_any_layout_are_read_right(layout, data, most):
    disk = np.random.default_rng(1).bytes((START_BLOCKS + DEVICE_BLOCKS) * layout.block)
    extents = Extents(extent_map(layout), START_BLOCKS * layout.block, 4096)
    rows = []
    for _ in range(data.draw(st.integers(0, 8))):
        file = data.draw(st.integers(0, len(layout.files) - 1))
        size = layout.files[file][0]
        start = data.draw(st.just(0) | st.integers(0, size))
        rows.append((file, start, data.draw(st.just(size - start) | st.integers(0, size - start))))
    files, starts, sizes = np.array(rows, np.int64).reshape(-1, 3).T
    offsets, nbytes, spans = lay_out(files, starts, sizes, 4096, 4096)
    memory = np.full(nbytes + 8192, 0xA5, np.uint8)
    memory = memory[-memory.ctypes.data % 4096 :][: nbytes + 4096]
    batch = Batch(np.arange(files.size), starts, sizes, offsets, memory, spans)

    planned, owners = extents.reads(batch, spans.files)
    assert ((owners >= 0) & (owners < len(spans.files))).all()
    perform(planned.coalesced().split(most), disk, most)
    within = planned.memory - memory.ctypes.data - spans.offsets[owners]
    assert ((within >= 0) & (within + planned.lengths <= spans.sizes[owners])).all()
    extents.zero_holes(batch, spans.files)

    for (file, start, size), offset in zip(rows, offsets.tolist(), strict=True):
        part = expected(layout, file, disk)[start : start + size]
        assert memory[offset : offset + size].tobytes() == part
    assert (memory[nbytes:] == 0xA5).all()


def columns(*rows):
    return DeviceReads(*np.array(rows, np.int64).reshape(-1, 3).T)


def rows(reads):
    return list(map(tuple, np.stack([reads.offsets, reads.memory, reads.lengths], 1).tolist()))


def test_reads_that_are_adjacent_on_the_device_and_in_memory_are_coalesced():
    assert rows(
        columns((0, 100, 10), (10, 110, 5), (15, 116, 5), (21, 121, 5), (26, 126, 1)).coalesced()
    ) == [(0, 100, 15), (15, 116, 5), (21, 121, 6)]


def test_no_reads_are_coalesced_and_split_to_none():
    assert rows(columns().coalesced().split(4096)) == []


def test_long_reads_are_split():
    assert rows(columns((0, 100, 10), (50, 200, 4), (60, 300, 8)).split(4)) == [
        *((0, 100, 4), (4, 104, 4), (8, 108, 2)),
        *((50, 200, 4), (60, 300, 4), (64, 304, 4)),
    ]


@pytest.mark.parametrize(
    ("failed", "culprits"), [([0], [0, 1]), ([1], [1, 2]), ([2], [3]), ([0, 2], [0, 1, 3])]
)
def test_a_failed_command_blames_the_planned_reads_that_it_overlaps(failed, culprits):
    planned = columns((0, 0, 10), (10, 10, 10), (20, 20, 10), (100, 30, 10))
    commands = columns((0, 0, 15), (15, 15, 15), (100, 30, 10))
    assert planned.overlapping(commands[np.array(failed)]).tolist() == culprits


def test_commands_for_one_planned_read_only_are_found():
    commands = columns((0, 0, 15), (15, 15, 5), (100, 30, 10))
    assert commands.within(columns((10, 10, 10))).tolist() == [1]
