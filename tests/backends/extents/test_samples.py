"""Which file of a map is which sample, and samples without extents, which are read as files."""

import os
from dataclasses import replace

import numpy as np
import pytest

import bmap_tools
from bmap_tools import create
from dali_storage.backends.block import BlockReader
from dali_storage.backends.extents import map as _maps
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked, StaleMapError
from dali_storage.samples.discovery import from_directory, from_file_list, from_files
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from tests.kit.devices import disk
from tests.kit.fake_cuda import put_on_gpu
from tests.kit.layouts import contents_of, make_map
from tests.kit.mapped import NEEDS_ROOT, Mapped, catalog_of, expected, from_map, unmounted

pytestmark = NEEDS_ROOT


def test_a_map_is_loaded_once(mapped):
    catalog, bmap = mapped
    with BlockReader(catalog, bmap=bmap), BlockReader(catalog, bmap=str(bmap)):
        assert BlockReader.tree(bmap=bmap).extent_map is _maps.load_map(bmap).map
        before = _maps.load_map(bmap).map
        make_map(catalog.root, bmap)
        assert _maps.load_map(bmap).map is not before


def test_a_map_that_was_rewritten_with_the_same_size_and_time_is_loaded_again(mapped, tmp_path):
    bmap = mapped[1]
    before, status = _maps.load_map(bmap).map, bmap.stat()
    other = replace(before, created=before.created.replace("20", "19", 1))
    bmap_tools.save(other, tmp_path / "other.json")
    bmap.write_bytes((tmp_path / "other.json").read_bytes())
    os.utime(bmap, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (bmap.stat().st_size, bmap.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert _maps.load_map(bmap).map.created == other.created


def test_part_of_the_mapped_directory_is_read(mapped, root, tmp_path):
    (root / "list").write_text("b 5\n../other/c 6\n./a 7\n")
    (tmp_path / "link").symlink_to(root)
    (tmp_path / "linked").symlink_to(root / "class" / "a")
    catalogs = [
        from_files([tmp_path / "linked"]),
        from_directory(tmp_path / "link", file_filters="*"),
        from_files(["a", "b"], file_root=tmp_path / "link" / "class"),
        from_files([f"{root.name}/class/a"], file_root=root.parent),
        from_files([tmp_path / "link" / "class" / "a"]),
        from_file_list(root / "list", file_root=root / "class"),
        from_files([root / "other" / "c", root / "class" / "b"]),
        from_files(["class/../class//b"], file_root=root),
    ]
    for catalog in catalogs:
        assert Mapped(catalog, mapped.bmap).read() == contents_of(catalog)


def test_samples_that_are_not_in_the_map_are_counted_and_named(mapped, root):
    catalog = from_files([f"class/{name}" for name in "axbyzw"], file_root=root)
    message = "4 of 6 samples are not in the map: 'class/x', 'class/y', 'class/z', ...;"
    with raises_naming(StaleMapError, root / "class" / "x", message):
        BlockReader(catalog, bmap=mapped.bmap)


def test_a_map_that_was_made_through_a_link_is_read(root, tmp_path):
    (root / "sub" / "class").mkdir(parents=True)
    (root / "sub" / "class" / "a").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(root)
    bmap = make_map(tmp_path / "link", tmp_path / "bmap.json")
    for directory in (root / "sub", tmp_path / "link" / "sub"):
        assert Mapped(from_directory(directory, file_filters="*"), bmap).read() == [b"bytes"]


# Samples without extents


@pytest.fixture
def inline(tmp_path):
    """A disk, two of whose files have no extents: one is in its inode, one on another disk."""
    with disk(tmp_path, "ext4", mkfs=("-O", "inline_data", "-I", "256")) as made:
        folder = made.mount / "class"
        folder.mkdir()
        (folder / "a").write_bytes(b"inline")
        (folder / "b").write_bytes(b"b" * 10_000)
        (tmp_path / "elsewhere").write_bytes(np.random.default_rng(0).bytes(20_000))
        (folder / "c").symlink_to(tmp_path / "elsewhere")
        assert create.run(str(made.mount), str(tmp_path / "bmap.json"), threads=1) == 1
        yield made, tmp_path / "bmap.json"


FILES = [(0, 0, 6), (1, 0, 10_000), (2, 0, 20_000)]
RANGES = [(0, 2, 3), (1, 5, 9000), (0, 0, 6), (0, 3, 3), (0, 6, 0), (2, 9000, 9000)]


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        (FILES, r"2 samples can only be read as files.*class/a"),
        (RANGES, "2 containers can only be read as files"),
    ],
    ids=["files", "ranges"],
)
def test_a_sample_without_extents_is_read_as_a_file(inline, gpus, device, rows, missing):
    made, bmap = inline
    paths = [made.mount / "class" / name for name in "abc"]
    contents, several = expected(paths, rows), np.random.default_rng(0).permutation(len(rows))
    catalog = from_files(paths) if rows is FILES else catalog_of(paths, rows)
    with BlockReader(catalog, bmap=bmap) as reader:
        if device == "gpu":
            put_on_gpu(reader)
        for samples in (several, np.repeat(several, 2)):
            assert read(reader, samples, catalog) == [contents[sample] for sample in samples]
        paths[0].write_bytes(b"Inline")
        with raises_naming(StaleMapError, paths[0]):
            read(reader, np.array([1, 0]), catalog)
    with unmounted(made), pytest.raises(BackendUnavailable, match=missing):
        BlockReader(catalog, bmap=bmap, uri=made.image)


def test_a_file_without_extents_that_changes_its_size_is_refused(inline):
    made, bmap = inline
    catalog = from_directory(made.mount, file_filters="[ab]")
    with BlockReader(catalog, bmap=bmap, check=False) as reader:
        for content in (b"in", b"inline and more"):
            (made.mount / "class" / "a").write_bytes(content)
            with pytest.raises(StaleMapError, match="its size was 6"):
                read(reader, np.array([1, 0]))
    with unmounted(made), pytest.warns(MapNotChecked):
        assert from_map(bmap, "b").read(uri=made.image) == [b"b" * 10_000]


def test_a_fifo_behind_a_link_does_not_block(root, tmp_path):
    (root / "class").mkdir()
    (root / "class" / "a").write_bytes(b"bytes")
    os.mkfifo(root / "fifo")
    (root / "class" / "b").symlink_to("../fifo")
    assert create.run(str(root), str(tmp_path / "bmap"), threads=1) == 1
    with BlockReader(from_directory(root, file_filters="*"), bmap=tmp_path / "bmap") as reader:
        assert read(reader, np.array([0])) == [b"bytes"]
        with raises_naming(OSError, root / "class" / "b", "not a regular file"):
            read(reader, np.arange(2))
