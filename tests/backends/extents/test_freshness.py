"""Files that have changed or moved since they were mapped."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bmap_tools
from bmap_tools import create
from dali_storage.backends.block import BlockReader
from dali_storage.contract.errors import StaleMapError
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from tests.kit.devices import disk, require, run
from tests.kit.layouts import contents_of, make_map, write_interleaved
from tests.kit.mapped import NEEDS_ROOT

pytestmark = NEEDS_ROOT


@pytest.mark.parametrize(("file_system", "tool"), [("ext4", "e4defrag"), ("xfs", "xfs_fsr")])
def test_a_defragmented_file_is_refused(tmp_path: Path, file_system: str, tool: str) -> None:
    require(tool)
    with disk(tmp_path, file_system) as made:
        folder = made.mount / "class"
        folder.mkdir()
        write_interleaved(folder, ["a", "b"], 20, np.random.default_rng(0))
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        catalog = from_directory(made.mount, file_filters="*")
        contents = contents_of(catalog)
        with BlockReader(catalog, bmap=bmap) as reader:
            assert read(reader, np.arange(2)) == contents
            before = os.stat(folder / "a")
            run(tool, *(["-v"] if tool == "xfs_fsr" else []), str(folder / "a"))
            after = os.stat(folder / "a")
            assert (before.st_mtime_ns, before.st_ctime_ns) == (
                after.st_mtime_ns,
                after.st_ctime_ns,
            )
            with pytest.raises(StaleMapError, match=r"has been moved.*bmap_tools create") as caught:
                read(reader, np.arange(2))
            assert caught.value.filename == str(folder / "a")
            assert read(reader, np.array([1])) == contents[1:]


@pytest.mark.parametrize(("file_system", "tool"), [("ext4", "e4defrag"), ("xfs", "xfs_fsr")])
def test_a_file_with_space_reserved_beyond_its_end_is_refused_when_it_was_moved(
    tmp_path: Path, file_system: str, tool: str
) -> None:
    """Of such a file only one extent is read, and still these tools move it."""
    require(tool)
    with disk(tmp_path, file_system) as made:
        path = made.mount / "class" / "a"
        path.parent.mkdir()
        path.write_bytes(b"a" * 8192)
        os.sync()
        (made.mount / "blocker").write_bytes(bytes(8192))
        os.sync()
        run("fallocate", "--keep-size", "--offset", "8192", "--length", "1MiB", str(path))
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        with BlockReader(from_directory(made.mount, file_filters="*"), bmap=bmap) as reader:
            assert read(reader, np.array([0])) == [b"a" * 8192]
            run(tool, *(["-v"] if tool == "xfs_fsr" else []), str(path))
            with pytest.raises(StaleMapError, match="data of the file has been moved"):
                read(reader, np.array([0]))


def test_reserved_space_that_is_given_back_is_no_change(root: Path, tmp_path: Path) -> None:
    path = root / "class" / "a"
    path.parent.mkdir()
    path.write_bytes(b"a" * 8192)
    run("fallocate", "--keep-size", "--length", "1MiB", str(path))
    bmap = make_map(root, tmp_path / "bmap.json")
    there = bmap_tools.load(bmap)
    assert there.extents[:, 1].tolist()[1:] == [-1]
    more = np.array([*there.extents.tolist(), [16 << 20, -1, 4096]])  # as if it had been more
    bmap_tools.save(replace(there, extents=more, extent_offsets=np.array([0, 3])), bmap)
    with BlockReader(from_directory(root, file_filters="*"), bmap=bmap) as reader:
        assert read(reader, np.array([0])) == [b"a" * 8192]


def test_a_file_whose_blocks_were_exchanged_for_those_of_another_is_refused(tmp_path: Path) -> None:
    """Deduplication on XFS: of one extent, and without a trace in its times."""
    require("xfs_io")
    with disk(tmp_path, "xfs") as made:
        (made.mount / "class").mkdir()
        for name in "ab":
            (made.mount / "class" / name).write_bytes(b"same" * (1 << 18))
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        with BlockReader(from_directory(made.mount, file_filters="*"), bmap=bmap) as reader:
            assert read(reader, np.arange(2)) == [b"same" * (1 << 18)] * 2
            other, path = str(made.mount / "class" / "a"), str(made.mount / "class" / "b")
            run("xfs_io", "-c", f"dedupe {other} 0 0 1m", path)
            with pytest.raises(StaleMapError, match="data of the file has been moved") as caught:
                read(reader, np.arange(2))
            assert caught.value.filename == path


def test_files_that_were_moved_by_resizing_the_file_system_are_refused(tmp_path: Path) -> None:
    require("resize2fs", "e2fsck")
    mkfs = ("-b", "4096", "-O", "^has_journal")
    with disk(tmp_path, "ext4", size=400 << 20, mkfs=mkfs) as made:
        (made.mount / "class").mkdir()
        run("fallocate", "--length", "150MiB", str(made.mount / "filler"))
        for name in "abcd":
            (made.mount / "class" / name).write_bytes(name.encode() * (1 << 20))
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        before = bmap_tools.load(bmap).extents[:4, 1].tolist()
        (made.mount / "filler").unlink()
        run("umount", str(made.mount))
        run("e2fsck", "-fy", made.device)
        run("resize2fs", made.device, "128M")
        run("resize2fs", made.device)
        run("mount", made.device, str(made.mount))
        moved = bmap_tools.load(make_map(made.mount, tmp_path / "new.json")).extents[:4, 1].tolist()
        assert before != moved
        with pytest.raises(StaleMapError, match="data of the file has been moved"):
            read(BlockReader(from_directory(made.mount, file_filters="*"), bmap=bmap), np.arange(4))


def test_a_file_that_is_being_appended_to_is_refused_or_right(root: Path, tmp_path: Path) -> None:
    (root / "class").mkdir()
    path = root / "class" / "a"
    path.write_bytes(b"0" * 10_000)
    catalog = from_directory(root, file_filters="*")
    stop = threading.Event()

    def append() -> None:
        with open(path, "ab", buffering=0) as file:
            while not stop.is_set():
                file.write(b"1" * 777)
                time.sleep(0.02)

    with BlockReader(catalog, bmap=make_map(root, tmp_path / "bmap")) as reader:
        writer = threading.Thread(target=append)
        outcomes = []
        for attempt in range(60):
            if attempt == 20:
                writer.start()
            try:
                outcomes.append(read(reader, np.array([0])) == [b"0" * 10_000])
            except StaleMapError:
                outcomes.append(None)
            time.sleep(0.002 if attempt >= 20 else 0)
        stop.set()
        writer.join()
    assert outcomes[:20] == [True] * 20
    assert False not in outcomes
    assert outcomes[-1] is None


@pytest.mark.parametrize("files", [20, 1])
def test_few_descriptors_are_enough(tmp_path: Path, files: int) -> None:
    with disk(tmp_path, "xfs") as made:  # where every file is opened at every read
        folder = made.mount / "class"
        folder.mkdir()
        for index in range(150):
            (folder / f"{index:03d}").write_bytes(b"%d" % index)
        catalog = from_directory(made.mount, file_filters="*")
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        expected = contents_of(catalog)
        with BlockReader(catalog, bmap=bmap) as reader:
            with room_for(files):
                assert read(reader, np.arange(150)) == expected
            os.utime(folder / "149")
            with room_for(files), pytest.raises(StaleMapError) as caught:
                read(reader, np.arange(150))
            assert caught.value.filename == str(folder / "149")


@contextmanager
def room_for(files: int) -> Iterator[None]:
    """Limit the open files of this process to so many more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0) for _ in range(files + 1)]  # the lowest numbers that are free
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[-1], limits[1]))
    for fd in taken:
        os.close(fd)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_changes_are_not_noticed_without_the_check(root: Path, tmp_path: Path) -> None:
    (root / "class").mkdir()
    (root / "class" / "a").write_bytes(b"bytes")
    catalog = from_directory(root, file_filters="*")
    with BlockReader(catalog, bmap=make_map(root, tmp_path / "bmap"), check=False) as reader:
        os.utime(root / "class" / "a")
        assert read(reader, np.array([0])) == [b"bytes"]


@pytest.mark.parametrize("when", ["1960-01-01", "2037-12-31", "2250-01-01", "2400-01-01"])
def test_files_with_times_of_any_century_are_not_stale(tmp_path: Path, when: str) -> None:
    with disk(tmp_path, "xfs") as made:
        (made.mount / "class").mkdir()
        for name in "ab":
            (made.mount / "class" / name).write_bytes(name.encode())
        run("touch", "-d", when, str(made.mount / "class" / "a"))
        create.run(str(made.mount), str(tmp_path / "bmap"), threads=1)
        catalog = from_directory(made.mount, file_filters="*")
        with BlockReader(catalog, bmap=tmp_path / "bmap") as reader:
            assert read(reader, np.arange(2)) == [b"a", b"b"]
