"""Where ranges go in a buffer, and what is read for them. The oracle is the bytes of the files."""

import sys
from functools import partial
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.contract.catalog import Catalog
from dali_storage.contract.ranges import Ranges, lay_out
from dali_storage.contract.views import Views
from dali_storage.reading.batches import make_batch
from dali_storage.runtime.cuda import DeviceBuffer

NEAR = 4096
FILES = [np.random.default_rng(seed).integers(0, 256, 90_000, np.uint8) for seed in range(3)]
"""File, start, size."""

sizes = st.sampled_from([0, 1, 4, 511, 512, 4096, 5000]) | st.integers(0, 6000)
starts = st.sampled_from([0, 1, 511, 512, 4095, 4096, 8192]) | st.integers(0, 34_000)
layouts = st.lists(st.tuples(st.integers(0, 2), starts, sizes), max_size=30)
units = st.sampled_from([(1, 1), (64, 1), (512, 512), (4096, 512), (4096, 4096), (512, 1)])


@st.composite
def rows(draw):
    """Ranges that follow each other, with small gaps or overlaps, in any order."""
    found, position = [], draw(st.integers(0, 5000))
    for size in draw(st.lists(st.integers(0, 900), max_size=15)):
        found.append((draw(st.sampled_from([0, 0, 0, 1])), position, size))
        position += max(
            -position, size + draw(st.sampled_from([0, 0, 1, 512, 4096, 4097, -1, -300]))
        )
    return draw(st.permutations(found))


def placed(ranges, alignment, unit):
    files, starts, sizes = np.array(ranges, np.int64).reshape(-1, 3).T.copy()
    return lay_out(files, starts, sizes, alignment, unit)


def span_of(spans, offset):
    return int(np.searchsorted(spans.offsets, offset, "right")) - 1


@given(ranges=layouts | rows(), units=units)
def test_every_range_is_whole_in_what_is_read(ranges, units):
    alignment, unit = units
    offsets, nbytes, spans = placed(ranges, alignment, unit)
    buffer = np.zeros(nbytes, np.uint8)
    for file, start, needed, offset in zip(
        *(column.tolist() for column in (spans.files, spans.starts, spans.needed, spans.offsets)),
        strict=True,
    ):
        buffer[offset : offset + needed] = FILES[file][start : start + needed]
    for (file, start, size), offset in zip(ranges, offsets.tolist(), strict=True):
        assert (
            buffer[offset : offset + size].tobytes() == FILES[file][start : start + size].tobytes()
        )
        if size:
            assert offset % unit == start % unit
        else:
            assert offset == 0


@given(ranges=layouts | rows(), units=units)
def test_reads_are_aligned_and_apart_in_memory(ranges, units):
    alignment, unit = units
    _, nbytes, spans = placed(ranges, alignment, unit)
    assert len(spans) <= sum(size > 0 for _, _, size in ranges)
    assert not (spans.starts % unit).any()
    assert not (spans.sizes % unit).any()
    assert not (spans.offsets % alignment).any()
    assert ((spans.sizes - unit < spans.needed) & (spans.needed <= spans.sizes)).all()
    ends = np.append(spans.offsets[1:], nbytes)
    assert (spans.offsets + spans.sizes <= ends).all()
    assert (ends - spans.offsets - spans.sizes < alignment).all()  # nothing is wasted
    in_order = list(zip(spans.files.tolist(), spans.starts.tolist(), strict=True))
    assert in_order == sorted(in_order)


@given(ranges=layouts | rows(), units=units)
def test_ranges_share_a_read_if_they_are_close_and_do_not_overlap(ranges, units):
    offsets, _, spans = placed(ranges, *units)
    slots = [slot for slot, (_, _, size) in enumerate(ranges) if size]
    slots.sort(key=lambda slot: (ranges[slot][0], ranges[slot][1]))
    used = {}
    for slot in slots:
        used.setdefault(span_of(spans, int(offsets[slot])), []).append(slot)
    assert sorted(used) == list(range(len(spans)))
    for span, members in used.items():
        assert spans.slots[span] == min(members)
        assert {ranges[slot][0] for slot in members} == {spans.files[span]}
        last = max(ranges[slot][1] + ranges[slot][2] for slot in members)
        assert spans.starts[span] + spans.needed[span] == last
        first = min(ranges[slot][1] for slot in members)
        assert spans.starts[span] == first // units[1] * units[1]
    if len({ranges[slot][:2] for slot in slots}) < len(slots):
        return  # of ranges with one start, any may come first
    gaps = [
        ranges[there][1] - ranges[here][1] - ranges[here][2]
        for here, there in pairwise(slots)
        if ranges[here][0] == ranges[there][0]
    ]
    assert len(slots) - len(spans) == sum(0 <= gap <= NEAR for gap in gaps)


def test_known_layouts():
    # A tar: a header of 512 bytes between members. The second batch is out of order and repeats.
    offsets, nbytes, spans = placed([(0, 512, 1000), (0, 2048, 4)], 4096, 512)
    assert (offsets.tolist(), nbytes, len(spans)) == ([0, 1536], 4096, 1)
    assert (spans.starts.tolist(), spans.sizes.tolist(), spans.needed.tolist()) == (
        *([512], [2048]),
        [1540],
    )
    offsets, nbytes, spans = placed(
        [(1, 5000, 10), (0, 700, 0), (1, 100, 10), (1, 100, 10)], 512, 512
    )
    assert spans.files.tolist() == [1, 1, 1]
    assert spans.starts.tolist() == [0, 0, 4608]
    assert (offsets.tolist(), nbytes) == ([1024 + 392, 0, 100, 512 + 100], 1536)
    assert spans.slots.tolist() == [2, 3, 0]


def test_nothing_is_read_for_empty_ranges():
    for ranges in ([], [(0, 5, 0)], [(0, 5, 0), (2, 10**12, 0)]):
        offsets, nbytes, spans = placed(ranges, 4096, 512)
        assert (offsets.tolist(), nbytes, len(spans)) == ([0] * len(ranges), 0, 0)


class OnlySlices:
    """Stands for GPU memory, which the processor cannot read."""

    def __getitem__(self, part):
        return part.start, part.stop


def test_small_ranges_in_gpu_memory_stay_where_they_are():
    offsets, memory = np.array([8, 0, 4]), cast(DeviceBuffer, OnlySlices())
    assert Views(memory, offsets, np.array([4, 4, 4])).contents() == [(8, 12), (0, 4), (4, 8)]


@pytest.mark.parametrize(("size", "is_copy"), [(4096, True), (4097, False)])
def test_small_ranges_of_one_size_are_copied_into_one_array(size, is_copy):
    memory = np.arange(3 * size).astype(np.uint8)
    found = Views(memory, np.array([2 * size, 0]), np.array([size, size])).contents()
    assert [bytes(it) for it in found] == [memory[2 * size :].tobytes(), memory[:size].tobytes()]
    assert isinstance(found, np.ndarray) == is_copy


def test_positions_beyond_32_bits_are_exact():
    far = 2**62 + 4097
    offsets, nbytes, spans = placed([(2**31, far, 2**40)], 4096, 4096)
    assert spans.starts.tolist() == [2**62 + 4096]
    assert (offsets.tolist(), spans.needed.tolist()) == ([1], [2**40 + 1])
    assert nbytes == 2**40 + 4096


class Direct:
    """What `make_batch` uses of a reader."""

    alignment = unit = gap = 4096


@pytest.mark.parametrize("size", [0, 2**32 - 1, 2**32, 2**40])
def test_sizes_of_any_width_are_kept(size):
    zeros = np.zeros(9, np.int64)
    for sizes in (np.array([size, 1, 2] * 3), np.broadcast_to(np.int64(size), 9)):
        expected = sizes.tolist()
        assert Ranges.of_columns(zeros, zeros, sizes).sizes.tolist() == expected
        assert Ranges.of_files([(zeros[:3], sizes[:3]), (zeros[3:], sizes[3:])]).sizes.tolist() == (
            expected
        )


def calls(function):
    """How many calls a function makes, of Python and of C."""
    seen = 0

    def count(frame, event, _):
        nonlocal seen
        seen += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_batch_is_laid_out_by_as_many_calls_whatever_its_size(pieces):
    """By numpy: a call for each sample would make it many times as slow."""
    random = np.random.default_rng(5)
    sizes = random.integers(40_000, 155_000, 100_000)
    sizes[1::2] = sizes[1::2] if pieces == 1 else 4
    ids = np.repeat(np.arange(1000), 100)
    rooms = sizes + 1024
    ranges = Ranges.of_columns(ids, np.cumsum(rooms) - rooms, sizes)
    catalog = Catalog(b"", b"", np.zeros(1001, np.int64), np.empty(0, np.int32), ranges, pieces)
    memory = np.empty(0, np.uint8)

    def lay_out(batch_size):
        samples = catalog.pieces_of(np.arange(batch_size) * 7)
        make_batch(Direct, catalog, samples, lambda _: memory, 0)

    lay_out(1)
    assert calls(partial(lay_out, 64)) == calls(partial(lay_out, 6400)) < 150
