"""Which file of a map is which sample."""

import os
from dataclasses import replace

import bmap_tools
from dali_storage.backends.block import BlockReader
from dali_storage.backends.extents import map as _maps
from dali_storage.contract.errors import StaleMapError
from dali_storage.samples.discovery import from_directory, from_file_list, from_files
from dali_storage.testing.probes import raises_naming
from tests.kit.layouts import contents_of, make_map
from tests.kit.mapped import NEEDS_ROOT, Mapped

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
