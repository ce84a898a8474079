"""Ranges of containers by extent maps, on loop devices. What is expected is in the files."""

import errno

import numpy as np
import pytest

import bmap_tools
from bmap_tools import fiemap
from dali_storage.backends.block import BlockReader
from dali_storage.contract.errors import ContainerChangedError, StaleMapError
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from dali_storage.testing.ranges import rewrite
from tests.kit.bmap.files import fragment
from tests.kit.devices import disk, require, run
from tests.kit.layouts import defragment, make_map, write_interleaved, write_sparse
from tests.kit.mapped import NEEDS_ROOT, break_aio, catalog_of, expected, require_right

pytestmark = NEEDS_ROOT

BLOCK = 4096


def read_ranges(reader, catalog, samples):
    return read(reader, np.asarray(samples, np.int64), catalog)


# Containers that change


@pytest.fixture(scope="module", params=["ext4", "xfs"])
def shards(request, tmp_path_factory):
    with disk(tmp_path_factory.mktemp("shards"), request.param) as made:
        yield made


@pytest.fixture
def opened(shards, tmp_path):
    """Two containers of many extents, one of few, and a reader of ranges of them."""
    folder = shards.mount / tmp_path.name
    folder.mkdir()
    random = np.random.default_rng(3)
    (folder / "few").write_bytes(random.bytes(3 << 20))
    write_interleaved(folder, ["one", "two"], 200, random)
    paths = [folder / name for name in ("few", "one", "two")]
    bmap = make_map(folder, tmp_path / "bmap.json")
    rows = [(file, start, 30_000) for file in (0, 1, 2) for start in range(512, 780_000, 31_000)]
    catalog = catalog_of(paths, rows)
    with BlockReader(catalog, bmap=bmap) as reader:
        yield reader, catalog, paths, expected(paths, rows)


def fallocate(*options):
    return lambda path: run(
        "fallocate", *options, "--offset", "8192", "--length", "4096", str(path)
    )


# More changes: MappedReaderTests, of containers of one extent.
CHANGES = {
    "rewritten": rewrite,
    "defragmented": defragment,
    "collapsed": fallocate("--collapse-range"),
    "punched": fallocate("--punch-hole"),
}


def require_refused(opened, changed):
    """All batches with ranges of one container are refused by its name, and no others."""
    reader, catalog, paths, contents = opened
    files = catalog.files(np.arange(len(catalog)))
    others, own = np.flatnonzero(files != changed), np.flatnonzero(files == changed)
    for samples in (own, np.concatenate((others, own)), np.random.default_rng(0).permutation(78)):
        with raises_naming(StaleMapError, paths[changed], "bmap_tools create"):
            read_ranges(reader, catalog, samples)
    assert read_ranges(reader, catalog, others) == [contents[sample] for sample in others]


@pytest.mark.parametrize(
    ("change", "known"),
    [*((change, True) for change in CHANGES), ("rewritten", False), ("defragmented", False)],
)
def test_a_changed_container_is_refused_by_name(opened, change, known):
    reader, catalog, paths, contents = opened
    if known:
        require_right(reader, catalog, contents)
    CHANGES[change](paths[1])
    require_refused(opened, 1)


def test_the_first_changed_container_of_a_batch_is_named(opened):
    reader, catalog, paths, _ = opened
    for path in paths[1:]:
        defragment(path)
    for samples, first in (([60, 30, 61], 2), ([30, 60], 1), ([0, 61, 30], 2)):
        with raises_naming(StaleMapError, paths[first]):
            read_ranges(reader, catalog, samples)


def test_blocks_that_were_exchanged_are_refused_where_they_are_read(tmp_path):
    """Deduplication leaves no trace in the times, and moves only a part of a container."""
    require("xfs_io")
    with disk(tmp_path, "xfs") as made:
        paths = [made.mount / name for name in "ab"]
        for path in paths:
            fragment(path, 100)
        with open(paths[1], "r+b") as file:
            file.write(paths[0].read_bytes())
        # The kernel tells of 17 extents at once: of one block each, but for the last.
        blocks = [67, 0, 33, 34, 68, 99]
        rows = [(1, block * BLOCK + 9, 4000) for block in blocks] + [(1, 20 * BLOCK, 50 * BLOCK)]
        catalog, contents = catalog_of(paths, rows), expected(paths, rows)
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        assert np.diff(bmap_tools.load(bmap).extent_offsets).tolist() == [100, 100]
        with BlockReader(catalog, bmap=bmap) as reader:
            require_right(reader, catalog, contents)
            for number, block in enumerate(blocks):
                unmoved = list(range(number, len(blocks)))
                assert read_ranges(reader, catalog, unmoved) == contents[number : len(blocks)]
                where = f"{block * BLOCK} {block * BLOCK} {BLOCK}"
                run("xfs_io", "-c", f"dedupe {paths[0]} {where}", str(paths[1]))
                for moved in ([number], unmoved, [len(blocks)]):
                    with raises_naming(StaleMapError, paths[1], "data of the file has moved"):
                        read_ranges(reader, catalog, moved)


def test_a_container_that_gets_a_clone_is_still_read(shards, opened):
    """XFS then reports its extents as shared, where they were."""
    reader, catalog, paths, contents = opened
    require_right(reader, catalog, contents)
    for path in paths:
        how = "never" if "ext4" in run("findmnt", "-no", "FSTYPE", str(shards.mount)) else "always"
        run("cp", f"--reflink={how}", str(path), str(path.with_name("twin")))
    require_right(reader, catalog, contents)


def test_space_reserved_behind_the_last_block_is_not_compared(tmp_path, monkeypatch):
    """XFS may list it as data without an address, until it allocates or frees it."""
    ends = []
    ask = fiemap.answers
    monkeypatch.setattr(
        "bmap_tools.fiemap.answers", lambda fd, end: (ends.append(end), ask(fd, end))[1]
    )
    with disk(tmp_path, "ext4", mkfs=("-b", "1024")) as made:
        path, random = made.mount / "a", np.random.default_rng(0)
        write_sparse(path, 8200, [(0, 1000), (5000, 8200)], random)
        rows = [(0, 100, 2000), (0, 8000, 200)]
        catalog, contents = catalog_of([path], rows), expected([path], rows)
        with BlockReader(catalog, bmap=make_map(made.mount, tmp_path / "bmap.json")) as reader:
            require_right(reader, catalog, contents)
            assert ends == [9 * 1024]


def test_extents_that_cannot_be_compared_are_refused(opened, monkeypatch):
    reader, catalog, paths, contents = opened

    def fail(*_):
        raise OSError(errno.EIO, "no extents")

    assert read_ranges(reader, catalog, [30, 60]) == [contents[30], contents[60]]
    with monkeypatch.context() as broken:
        broken.setattr("bmap_tools.fiemap.answers", fail)
        assert read_ranges(reader, catalog, [30, 60]) == [contents[30], contents[60]]
        # Where the kernel does not answer a second time, all of the extents are compared again.
        broken.setattr("bmap_tools.fiemap._IOCTL", 0)
        with raises_naming(OSError, paths[1]) as failed:
            read_ranges(reader, catalog, [30, 60])
    assert failed.value.errno == errno.EIO
    assert read_ranges(reader, catalog, [30, 60]) == [contents[30], contents[60]]


# Ranges that are not in their containers


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((1, 9000, 1001), "sample 2: 1,001 bytes at 9,000"),
        ((1, 10_001, 0), "sample 2: 0 bytes at 10,001"),
        ((1, -1, 5), "sample 2: 5 bytes at -1"),
        ((1, 1 << 62, 1 << 62), "bytes at 4,611,686,018,427,387,904"),
    ],
)
def test_a_range_outside_its_container_is_refused(root, tmp_path, row, text):
    paths = [root / name for name in "ab"]
    for path in paths:
        path.write_bytes(bytes(10_000))
    bmap = make_map(root, tmp_path / "bmap.json")
    catalog = catalog_of(paths, [(0, 0, 5), (1, 0, 10_000), row, (1, 0, 10_001)])
    message = f"{text}, but the mapped file has 10,000 bytes; rebuild its index"
    with raises_naming(ContainerChangedError, paths[1], message):
        BlockReader(catalog, bmap=bmap)
    paths[1].write_bytes(bytes(20_000))  # then the map is wrong
    with raises_naming(StaleMapError, paths[1], "its size was 10000 and is 20000"):
        BlockReader(catalog, bmap=bmap, check=False)


def test_a_range_outside_its_container_is_refused_where_it_is_not_mounted(tmp_path):
    with disk(tmp_path, "ext4") as made:
        (made.mount / "a").write_bytes(bytes(10_000))
        bmap = make_map(made.mount, tmp_path / "bmap.json")
    catalog = catalog_of([made.mount / "a"], [(0, 0, 5), (0, 9999, 2)])
    with pytest.raises(StaleMapError, match="sample 1: 2 bytes at 9,999, but the mapped file"):
        BlockReader(catalog, bmap=bmap, uri=made.image)


def test_any_number_of_ranges_is_compared_with_the_containers():
    sizes = np.array([1000, 10, 5000])
    files, random = np.repeat([2, 0], 100_000), np.random.default_rng(0)
    starts = random.integers(0, 900, files.size)
    assert Ranges.of_columns(files, starts, np.full(files.size, 100)).first_outside(sizes) is None
    for sample in (0, 65_535, 65_536, 150_000, files.size - 1):
        other = starts.copy()
        other[sample] = sizes[files[sample]] - 99
        ranges = Ranges.of_columns(files, other, np.full(files.size, 100))
        assert ranges.first_outside(sizes) == sample


# Reads that fail


@pytest.mark.parametrize("times", [1, 10**9])
def test_a_bad_sector_is_reported_with_the_sample_that_needs_it(root, tmp_path, monkeypatch, times):
    """Samples lie close together, so one read is for all of them."""
    path = root / "shard"
    path.write_bytes(np.random.default_rng(0).bytes(50 * BLOCK))
    rows = [(0, 512 + 8192 * index, 7000) for index in range(20)]
    bmap = make_map(root, tmp_path / "bmap.json")
    logical, physical, length = bmap_tools.load(bmap).extents[0].tolist()
    break_aio(monkeypatch, physical + 8192 * 7 + 600, times=times)
    catalog, contents = catalog_of([path], rows), expected([path], rows)
    with BlockReader(catalog, bmap=bmap, max_transfer=BLOCK) as reader:
        if times == 1:
            assert read_ranges(reader, catalog, [9, 7, 8, 3]) == [contents[i] for i in (9, 7, 8, 3)]
            return
        with raises_naming(OSError, path) as caught:
            read_ranges(reader, catalog, [9, 7, 8, 3, 6])
        assert caught.value.errno == errno.EIO
        lba = (physical + 8192 * 7) // 512
        assert f"sample 7: 7,000 bytes at 57,856: cannot read 4096 bytes at LBA {lba} of /dev/" in (
            str(caught.value)
        )
        extent = f"(extent 0, logical {logical}, physical {physical}, length {length})"
        assert extent in str(caught.value)
        assert read_ranges(reader, catalog, [9, 8, 3, 6]) == [contents[i] for i in (9, 8, 3, 6)]
