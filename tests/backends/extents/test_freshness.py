"""Files that have changed or moved since they were mapped."""

import os
from dataclasses import replace

import numpy as np
import pytest

import bmap_tools
from bmap_tools import create
from dali_storage.backends.linux import aio
from dali_storage.contract.errors import StaleMapError
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from tests.kit.devices import disk, run
from tests.kit.layouts import defragment, make_map, write_interleaved
from tests.kit.mapped import NEEDS_ROOT, Mapped, catalog_of, map_files
from tests.kit.process import room_for

pytestmark = NEEDS_ROOT


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_file_that_was_moved_is_refused(tmp_path, file_system):
    """Also if it has space reserved beyond its end: of such a file only one extent is read."""
    with disk(tmp_path, file_system) as made:
        folder = made.mount / "class"
        folder.mkdir()
        write_interleaved(folder, ["a", "b"], 20, np.random.default_rng(0))
        (folder / "reserved").write_bytes(b"a" * 8192)
        os.sync()
        (made.mount / "blocker").write_bytes(bytes(8192))
        os.sync()
        reserve = ("--keep-size", "--offset", "8192", "--length", "1MiB")
        run("fallocate", *reserve, str(folder / "reserved"))
        mapped = map_files(made.mount, tmp_path / "bmap.json")
        contents = mapped.contents
        with mapped.open() as reader:
            assert read(reader, np.arange(3)) == contents
            for number, name in ((0, "a"), (2, "reserved")):
                defragment(folder / name)
                changed = r"data of the file has moved.*bmap_tools create"
                with raises_naming(StaleMapError, folder / name, changed):
                    read(reader, np.array([1, number]))
                assert read(reader, np.array([1])) == contents[1:2]


def test_a_file_whose_reserved_space_was_given_back_is_read(root, tmp_path):
    path = root / "class" / "a"
    path.parent.mkdir()
    path.write_bytes(b"a" * 8192)
    run("fallocate", "--keep-size", "--length", "1MiB", str(path))
    bmap = make_map(root, tmp_path / "bmap.json")
    there = bmap_tools.load(bmap)
    assert there.extents[:, 1].tolist()[1:] == [-1]
    more = np.array([*there.extents.tolist(), [16 << 20, -1, 4096]])  # as if it had been more
    bmap_tools.save(replace(there, extents=more, extent_offsets=np.array([0, 3])), bmap)
    assert Mapped(from_directory(root, file_filters="*"), bmap).read() == [b"a" * 8192]


def test_a_file_that_is_appended_to_while_it_is_read_is_refused(root, tmp_path, monkeypatch):
    path = root / "class" / "a"
    path.parent.mkdir()
    path.write_bytes(b"0" * 10_000)
    whole = aio.read

    def append_and_read(*arguments):
        with open(path, "ab") as file:
            file.write(b"1" * 77)
        return whole(*arguments)

    with map_files(root, tmp_path / "bmap").open() as reader:
        assert read(reader, np.array([0])) == [b"0" * 10_000]
        monkeypatch.setattr(aio, "read", append_and_read)
        with raises_naming(StaleMapError, path):
            read(reader, np.array([0]))


@pytest.mark.parametrize(("packing", "files"), [("files", 20), ("files", 1), ("ranges", 20)])
def test_few_descriptors_are_enough_for_mapped_files(tmp_path, packing, files):
    with disk(tmp_path, "xfs") as made:  # where every file is opened at every read
        folder = made.mount / "class"
        folder.mkdir()
        for index in range(150):
            (folder / f"{index:03d}").write_bytes(b"%d" % index)
        mapped = map_files(made.mount, tmp_path / "bmap.json")
        contents = mapped.contents
        if packing == "ranges":
            catalog = catalog_of(sorted(folder.iterdir()), [(file, 0, 1) for file in range(150)])
            mapped, contents = mapped._replace(catalog=catalog), [each[:1] for each in contents]
        with mapped.open() as reader:
            with room_for(files):
                assert read(reader, np.arange(150), mapped.catalog) == contents
            os.utime(folder / "149")
            with room_for(files), raises_naming(StaleMapError, folder / "149"):
                read(reader, np.arange(150), mapped.catalog)


def test_a_changed_file_is_read_without_the_check(root, tmp_path):
    (root / "class").mkdir()
    (root / "class" / "a").write_bytes(b"bytes")
    with map_files(root, tmp_path / "bmap").open(check=False) as reader:
        os.utime(root / "class" / "a")
        assert read(reader, np.array([0])) == [b"bytes"]


def test_files_with_times_of_any_century_are_read(tmp_path):
    with disk(tmp_path, "xfs") as made:
        (made.mount / "class").mkdir()
        for when in ("1960-01-01", "2037-12-31", "2250-01-01", "2400-01-01"):
            (made.mount / "class" / when).write_bytes(when.encode())
            run("touch", "-d", when, str(made.mount / "class" / when))
        create.run(str(made.mount), str(tmp_path / "bmap"), threads=1)
        mapped = Mapped(from_directory(made.mount, file_filters="*"), tmp_path / "bmap")
        assert mapped.read() == mapped.contents
