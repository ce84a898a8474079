"""FIEMAP against filefrag, and the extents of a map against a model byte by byte."""

import errno
import os
import struct
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bmap_tools import fiemap
from tests.kit.bmap.files import (
    DELALLOC,
    LAST,
    MERGED,
    SHARED,
    UNKNOWN,
    UNWRITTEN,
    filefrag,
    fragment,
    opened,
)
from tests.kit.devices import require, run
from tests.kit.layouts import preallocate, write_sparse

UNSUPPORTED = {  # flag -> a word of the reason
    UNKNOWN: "does not report",
    DELALLOC: "no address",
    0x8: "encoded",
    0x80: "encrypted",
    0x100: "not aligned",
    0x200: "inode",
    0x400: "shared with other files",
}


BLOCK_BYTES = 4096
BLOCK = 4  # bytes, in the model
RANDOM = np.random.default_rng(0)


@pytest.fixture
def mount(whole):
    """An empty directory on a disk."""
    require("filefrag")
    return Path(tempfile.mkdtemp(dir=whole.mount))


def test_the_structures_of_fiemap_are_the_kernels():
    # struct fiemap: u64 start, length, u32 flags, mapped_extents, extent_count, reserved
    # struct fiemap_extent: u64 logical, physical, length, reserved[2], u32 flags, reserved[3]
    assert fiemap._HEADER.size == struct.calcsize("=QQIIII") == 32
    assert fiemap._EXTENT.size == struct.calcsize("=QQQ2QI3I") == 56
    read_write, size, kind, number = fiemap._IOCTL >> 30, 0x20, ord("f"), 11  # _IOWR('f', 11, …)
    assert read_write << 30 | size << 16 | kind << 8 | number == fiemap._IOCTL
    assert 32 + fiemap._ROOM * 56 <= 1024


@pytest.fixture
def paths(mount):
    """Files of all kinds, on the device."""
    for size in (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 << 20):
        (mount / f"{size}").write_bytes(os.urandom(size))
    write_sparse(mount / "hole", 9999, [], RANDOM)
    write_sparse(mount / "holes", 200_000, [(40_960, 40_964), (81_920, 81_924)], RANDOM)
    fragment(mount / "pieces", 4)
    preallocate(mount / "unwritten", 5 * BLOCK_BYTES, [], RANDOM)
    preallocate(mount / "begun", 100_000, [(0, 4000)], RANDOM)
    run("fallocate", "--keep-size", "--length", "1MiB", str(mount / "4097"))
    run("sync", "--file-system", str(mount))
    return sorted(mount.iterdir())


def test_files_of_all_kinds_have_filefrags_extents(paths):
    for path in paths:
        with opened(path) as fd:
            assert fiemap.raw_extents(fd) == filefrag(path), path.name


def test_files_of_one_extent_have_filefrags_extents_in_a_batch(paths):
    with ExitStack() as stack:
        fds = [stack.enter_context(opened(path)) for path in paths]
        sizes = [path.stat().st_size for path in paths]
        closed = os.dup(fds[0])
        os.close(closed)
        counts, extents = fiemap.single_extents([*fds, closed], np.array([*sizes, 1]), BLOCK_BYTES)
    assert counts[-1] == -1
    assert {-1, 0, 1} <= {*counts[:-1].tolist()}
    for path, size, count, extent in zip(paths, sizes, counts, extents, strict=False):
        rows = [row for row in filefrag(path) if row[0] < size]
        plain = not any(flags & UNWRITTEN for *_, flags in rows)
        assert count == (len(rows) if len(rows) < 2 and plain else -1), path.name
        if count == 1:
            logical, physical, length, _ = rows[0]
            end = -(-size // BLOCK_BYTES) * BLOCK_BYTES
            assert extent.tolist() == [logical, physical, min(length, end)]


def test_a_file_that_was_not_yet_written_gets_its_address_by_sync(mount):
    (mount / "fresh").write_bytes(b"x" * 50_000)
    with opened(mount / "fresh") as fd:
        before = fiemap.raw_extents(fd, sync=False)
        after = fiemap.raw_extents(fd)
    assert any(flags & DELALLOC for *_, flags in before)
    assert not any(flags & (DELALLOC | UNKNOWN) for *_, flags in after)
    assert after == filefrag(mount / "fresh")


def test_a_file_system_without_fiemap_is_an_os_error():
    with opened(Path("/proc/version")) as fd, pytest.raises(OSError) as raised:
        fiemap.raw_extents(fd)
    assert raised.value.errno in (errno.EOPNOTSUPP, errno.ENOTTY)


def test_more_extents_than_one_system_call_reports_are_read_each_time(mount):
    many = mount / "many"
    fragment(many, 300)
    (mount / "small").write_bytes(b"x")
    with opened(many) as first, opened(mount / "small") as second, opened(mount / "small") as third:
        lengths = [len(fiemap.raw_extents(fd)) for fd in (first, second, first, third)]
        assert fiemap.raw_extents(first) == filefrag(many)
    assert lengths == [lengths[0], 1, lengths[0], 1]
    assert lengths[0] >= 300


@st.composite
def raw_extents(draw):
    """Extents as a file system could give them: by logical offset, without overlap."""
    found = []
    logical, physical = 0, 1000 * BLOCK
    for _ in range(draw(st.integers(0, 6))):
        logical += draw(st.sampled_from([0, 0, 1, 3])) * BLOCK
        physical += draw(st.sampled_from([0, 0, 0, 5, -7])) * BLOCK
        length = draw(st.integers(1, 4)) * BLOCK
        flags = draw(st.sampled_from([0, 0, 0, UNWRITTEN, UNWRITTEN, SHARED, MERGED]))
        found.append((logical, physical, length, flags))
        logical, physical = logical + length, physical + length
    if found:
        found[-1] = (*found[-1][:3], found[-1][3] | LAST)
    return found


@given(raw_extents(), st.integers(0, 30 * BLOCK))
def test_a_map_holds_what_a_model_of_bytes_holds(raw, size):
    end = size
    while end % BLOCK:
        end += 1
    model = ["hole"] * end
    for logical, physical, length, flags in raw:
        for byte in range(min(length, end - logical)):
            model[logical + byte] = "unwritten" if flags & UNWRITTEN else physical + byte
    mapped = fiemap.usable_extents(raw, size, BLOCK)
    seen = ["hole"] * end
    for logical, physical, length in mapped:
        assert length > 0
        if logical >= end:
            assert physical == -1
            continue
        for byte in range(length):
            assert seen[logical + byte] == "hole"
            seen[logical + byte] = "unwritten" if physical == -1 else physical + byte
    assert seen == model
    assert mapped == sorted(mapped)
    for (logical, physical, length), (next_logical, next_physical, _) in pairwise(mapped):
        continues = -1 if physical == -1 else physical + length
        assert (logical + length, continues) != (next_logical, next_physical) or next_logical == end


@pytest.mark.parametrize("flag", sorted(UNSUPPORTED))
def test_every_unsupported_flag_has_its_reason_unless_it_is_beyond_the_end(flag):
    raw = [(0, 8192, 4096, 0), (4096, 0, 4096, flag | LAST)]
    assert UNSUPPORTED[flag] in str(fiemap.usable_extents(raw, 4097, 4096))
    assert fiemap.usable_extents(raw, 4096, 4096) == [(0, 8192, 4096), (4096, -1, 4096)]


def test_flags_that_occur_together_give_the_special_reason():
    assert fiemap.usable_extents([(0, 0, 4096, DELALLOC | UNKNOWN)], 1, 4096) == (
        "its data has no address on the device yet"
    )
    assert "inode" in str(fiemap.usable_extents([(0, 100, 60, 0x200 | 0x100 | LAST)], 60, 4096))


def test_the_answers_of_the_kernel_have_the_extents_that_filefrag_lists(mount):
    fragment(mount / "pieces", 40)
    write_sparse(mount / "holes", 60 * 4096, [(8 * 4096, 9 * 4096)], RANDOM)
    run("sync", "--file-system", str(mount))
    for name, count in (("pieces", 3), ("holes", 1)):
        with opened(mount / name) as fd:
            answers = fiemap.answers(fd, 60 * 4096)
            assert fiemap.hold([fd] * count, answers, keep_lock=True).all()
        assert [row[:3] for row in fiemap.extents_in(answers)] == [
            row[:3] for row in filefrag(mount / name)
        ]
        assert len(answers) == count
        assert answers[0, 0] == 0


def test_the_answers_of_the_kernel_hold_until_something_is_moved_there(mount):
    fragment(mount / "moving", 40)
    fragment(mount / "other", 40)
    with opened(mount / "moving") as moving, opened(mount / "other") as other:
        answers = fiemap.answers(moving, 60 * 4096)
        fds = [moving] * len(answers)
        assert not fiemap.hold([other] * len(answers), answers, keep_lock=False).any()
        run("fallocate", "--punch-hole", "-o", f"{20 * 4096}", "-l", "4096", str(mount / "moving"))
        assert fiemap.hold(fds, answers, keep_lock=False).tolist() == [True, False, True]
        assert fiemap.hold(fds, answers, keep_lock=True).tolist() == [True, False, True]


def test_answers_of_the_kernel_that_cannot_be_had_again_do_not_hold(mount):
    (mount / "hole").touch()
    os.truncate(mount / "hole", 9999)
    with opened(mount / "hole") as fd, open("/proc/version", "rb") as unsupported:
        answers = fiemap.answers(fd, 12_288)
        assert fiemap.extents_in(answers) == []
        held = fiemap.hold([fd, unsupported.fileno()], answers[[0, 0]], keep_lock=True)
        assert held.tolist() == [True, False]
        with pytest.raises(OSError, match=r"not supported|Inappropriate"):
            fiemap.answers(unsupported.fileno(), 4096)
