"""The block backend, on loop devices and their images. What is expected is what was written."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from nvidia.dali import fn

import bmap_tools
from bmap_tools import MapFormatError, create
from dali_storage import readers
from dali_storage.backends.block import BlockReader
from dali_storage.backends.extents import map as _maps
from dali_storage.backends.linux import aio
from dali_storage.catalog import Catalog
from dali_storage.discovery import from_directory, from_file_list, from_files, from_tree
from dali_storage.errors import BackendUnavailable, MapNotChecked, StaleMapError
from dali_storage.reader import Reader
from dali_storage.testing import read

from .conftest import build, open_files, take
from .devices import Disk, disk, drop_caches, loop_device, mounted, require, run
from .layouts import (
    contents_of,
    make_hostile_files,
    make_map,
    write_interleaved,
    write_sparse,
)
from .mapped import NEEDS_ROOT, OnDisk

pytestmark = NEEDS_ROOT


class OfBlock(OnDisk):
    backend = BlockReader


class TestOnExt4(OfBlock):
    batches = 10_000
    openings = 20  # the kernel takes 33 ms to end an AIO context


class TestOnXfs(OfBlock):
    file_system = "xfs"


class TestOnXfsOf4096ByteSectorsByItsImage(OfBlock):
    file_system, sector, partition = "xfs", 4096, True

    def uri(self) -> Path:
        return self.disk_used.image


class TestOnExt4PartitionByItsDiskInManySmallReads(OfBlock):
    sector, partition = 4096, True
    options: ClassVar[dict[str, Any]] = {"queue_depth": 3, "lanes": 3, "max_transfer": 4096}

    def uri(self) -> str:
        return self.disk_used.disk


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@pytest.mark.parametrize("sector", [512, 4096])
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_hostile_layouts_are_read_right(
    tmp_path: Path, file_system: str, sector: int, partition: bool
) -> None:
    with disk(tmp_path, file_system, sector=sector, partition=partition) as made:
        make_hostile_files(made.mount / "class")
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        catalog = from_directory(made.mount, file_filters="*")
        contents = contents_of(catalog)
        assert len(bmap_tools.load(bmap).extents) > 400
        for uri in (None, made.device, made.disk, made.image):
            with BlockReader(catalog, bmap=bmap, uri=uri, max_transfer=64 << 10) as reader:
                assert read(reader, np.arange(len(catalog))) == contents
    with loop_device(made.image, sector=sector), pytest.warns(MapNotChecked, match="not mounted"):
        unmounted = BlockReader(catalog, bmap=bmap, uri=made.image)
    with unmounted:
        assert read(unmounted, np.arange(len(catalog))) == contents


def test_holes_of_an_older_buffer_are_zeros(root: Path, tmp_path: Path) -> None:
    (root / "class").mkdir()
    write_sparse(root / "class" / "a", 40_000, [(8192, 9000)], np.random.default_rng(0))
    catalog = from_directory(root, file_filters="*")
    with BlockReader(catalog, bmap=make_map(root, tmp_path / "bmap")) as reader:
        buffer = reader.allocate(1 << 20)
        buffer[:] = 0xFF
        assert read(reader, np.array([0]), buffer=buffer) == contents_of(catalog)


def test_a_file_beyond_2_tib(tmp_path: Path) -> None:
    small_log = ("-l", "size=64m")
    with disk(tmp_path, "xfs", size=5 << 40, mkfs=small_log) as made:
        random = np.random.default_rng(0)
        for group in range(16):  # XFS puts directories into its allocation groups in turn
            (made.mount / f"{group:02d}").mkdir()
            (made.mount / f"{group:02d}" / "file").write_bytes(random.bytes(100_000 + group))
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        assert bmap_tools.load(bmap).extents[:, 1].max() > 2 << 40
        catalog = from_directory(made.mount, file_filters="*")
        for uri in (made.disk, made.image):
            with BlockReader(catalog, bmap=bmap, uri=uri) as reader:
                assert read(reader, np.arange(16)) == contents_of(catalog)


def test_files_that_share_their_extents(tmp_path: Path) -> None:
    with disk(tmp_path, "xfs") as made:
        folder = made.mount / "class"
        folder.mkdir()
        (folder / "a").write_bytes(np.random.default_rng(0).bytes(500_000))
        for copy in ("b", "c"):
            run("cp", "--reflink=always", str(folder / "a"), str(folder / copy))
        with open(folder / "b", "r+b") as file:
            file.seek(100_000)
            file.write(b"copied on write" * 1000)
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        catalog = from_directory(made.mount, file_filters="*")
        with BlockReader(catalog, bmap=bmap) as reader:
            assert read(reader, np.arange(3)) == contents_of(catalog)


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
            with pytest.raises(StaleMapError, match=r"data was moved.*bmap_tools create") as caught:
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
            with pytest.raises(StaleMapError, match="data was moved"):
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
            with pytest.raises(StaleMapError, match="data was moved") as caught:
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
        with pytest.raises(StaleMapError, match="data was moved"):
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


def test_without_the_check_nobody_looks(root: Path, tmp_path: Path) -> None:
    (root / "class").mkdir()
    (root / "class" / "a").write_bytes(b"bytes")
    catalog = from_directory(root, file_filters="*")
    with BlockReader(catalog, bmap=make_map(root, tmp_path / "bmap"), check=False) as reader:
        os.utime(root / "class" / "a")
        assert read(reader, np.array([0])) == [b"bytes"]


# Files that have no extents


@pytest.fixture
def inline(tmp_path: Path) -> Iterator[tuple[Disk, Path]]:
    """A disk whose smallest file lies in its inode, and its map."""
    with disk(tmp_path, "ext4", mkfs=("-O", "inline_data", "-I", "256")) as made:
        (made.mount / "class").mkdir()
        (made.mount / "class" / "a").write_bytes(b"inline")
        (made.mount / "class" / "b").write_bytes(b"b" * 10_000)
        bmap = tmp_path / "bmap.json"
        assert create.run(str(made.mount), str(bmap), threads=1) == 1
        yield made, bmap


def test_what_has_no_extents_is_read_as_a_file(inline: tuple[Disk, Path]) -> None:
    made, bmap = inline
    catalog = from_directory(made.mount, file_filters="*")
    with BlockReader(catalog, bmap=bmap) as reader:
        assert read(reader, np.array([1, 0, 1, 0])) == [b"b" * 10_000, b"inline"] * 2
        (made.mount / "class" / "a").write_bytes(b"Inline")
        with pytest.raises(StaleMapError) as caught:
            read(reader, np.array([1, 0]))
        assert caught.value.filename == str(made.mount / "class" / "a")


def test_what_is_read_as_a_file_changes_its_size(inline: tuple[Disk, Path]) -> None:
    made, bmap = inline
    catalog = from_directory(made.mount, file_filters="*")
    with BlockReader(catalog, bmap=bmap, check=False) as reader:
        for content in (b"in", b"inline and more"):
            (made.mount / "class" / "a").write_bytes(content)
            with pytest.raises(StaleMapError, match="its size was 6"):
                read(reader, np.array([1, 0]))


def test_what_has_no_extents_needs_the_file_system(inline: tuple[Disk, Path]) -> None:
    made, bmap = inline
    tree = BlockReader.tree(bmap=bmap)
    run("umount", str(made.mount))
    try:
        with pytest.raises(
            BackendUnavailable, match=r"1 samples can only be read as files.*class/a"
        ):
            BlockReader(from_tree(tree, file_filters="*"), bmap=bmap, uri=made.image)
        with (
            pytest.warns(MapNotChecked),
            BlockReader(from_tree(tree, file_filters="b"), bmap=bmap, uri=made.image) as reader,
        ):
            assert read(reader, np.array([0])) == [b"b" * 10_000]
    finally:
        run("mount", made.device, str(made.mount))


# Which device


def test_another_file_system_is_refused(mapped: tuple[Catalog, Path], tmp_path: Path) -> None:
    catalog, bmap = mapped
    with disk(tmp_path, "ext4") as other:
        for uri in (other.device, other.image):
            with pytest.raises(StaleMapError, match="not the mapped device: its file system is"):
                BlockReader(catalog, bmap=bmap, uri=uri)


@pytest.mark.parametrize("size", [1 << 20, 321 << 20])
def test_a_device_of_another_size_is_refused(
    mapped: tuple[Catalog, Path], tmp_path: Path, size: int
) -> None:
    catalog, bmap = mapped
    (tmp_path / "other").touch()
    os.truncate(tmp_path / "other", size)
    with pytest.raises(StaleMapError, match=f"it has {size} bytes"):
        BlockReader(catalog, bmap=bmap, uri=tmp_path / "other")
    with (
        loop_device(tmp_path / "other") as device,
        pytest.raises(StaleMapError, match=f"it has {size} bytes"),
    ):
        BlockReader(catalog, bmap=bmap, uri=device)


def test_a_device_without_a_file_system_is_refused(
    mapped: tuple[Catalog, Path], tmp_path: Path
) -> None:
    catalog, bmap = mapped
    (tmp_path / "other").touch()
    os.truncate(tmp_path / "other", 320 << 20)
    with pytest.raises(StaleMapError, match="not the mapped device"):
        BlockReader(catalog, bmap=bmap, uri=tmp_path / "other")


def test_a_device_of_another_block_size_is_refused(
    mapped: tuple[Catalog, Path], ext4: Disk, tmp_path: Path
) -> None:
    catalog, bmap = mapped
    with (
        loop_device(ext4.image, sector=4096) as device,
        pytest.raises(StaleMapError, match="its logical_block_size is 4096 and was 512"),
    ):
        BlockReader(catalog, bmap=bmap, uri=device)


def test_a_copy_of_what_is_mounted_is_refused(
    mapped: tuple[Catalog, Path], ext4: Disk, tmp_path: Path
) -> None:
    catalog, bmap = mapped
    run("cp", "--sparse=always", str(ext4.image), str(tmp_path / "copy"))
    with pytest.raises(StaleMapError, match=r"is mounted from /dev/loop.*, not from .*copy"):
        BlockReader(catalog, bmap=bmap, uri=tmp_path / "copy")


def test_a_directory_that_is_not_on_the_mapped_file_system_is_refused(
    mapped: tuple[Catalog, Path], root: Path, tmp_path: Path, ext4: Disk
) -> None:
    _, bmap = mapped
    run("cp", "-a", str(root), str(tmp_path / "copy"))
    with pytest.raises(StaleMapError, match="is on another file system"):
        BlockReader(from_directory(tmp_path / "copy", file_filters="*"), bmap=bmap, uri=ext4.device)


def test_a_directory_with_the_same_names_is_refused_without_the_check_too(
    mapped: tuple[Catalog, Path], root: Path
) -> None:
    twin = root.with_name(root.name + "-twin")
    run("cp", "-a", str(root), str(twin))
    with pytest.raises(StaleMapError, match="its inode was"):
        BlockReader(from_directory(twin, file_filters="*"), bmap=mapped[1], check=False)


def test_where_the_device_has_another_name_now(tmp_path: Path) -> None:
    with disk(tmp_path, "ext4") as made:
        (made.mount / "class").mkdir()
        (made.mount / "class" / "a").write_bytes(b"bytes")
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        run("umount", str(made.mount))
        # The old name is that of a copy now; the image has another, and is mounted elsewhere.
        run("losetup", "--detach", made.device)
        (tmp_path / "copy").write_bytes(made.image.read_bytes())
        run("losetup", "--sector-size", "512", made.device, str(tmp_path / "copy"))
        with loop_device(made.image) as device, mounted(device, tmp_path / "elsewhere"):
            assert device != made.device
            catalog = from_directory(tmp_path / "elsewhere", file_filters="*")
            with BlockReader(catalog, bmap=bmap) as reader:
                assert read(reader, np.arange(1)) == [b"bytes"]
        with pytest.warns(MapNotChecked):
            BlockReader(catalog_of(bmap), bmap=bmap).close()
        run("mount", made.device, str(made.mount))


def catalog_of(bmap: Path) -> Catalog:
    return from_tree(BlockReader.tree(bmap=bmap), file_filters="*")


def test_an_image_by_a_relative_path(mapped: tuple[Catalog, Path], ext4: Disk) -> None:
    catalog, bmap = mapped
    with BlockReader(catalog, bmap=bmap, uri=os.path.relpath(ext4.image)) as reader:
        assert read(reader, np.arange(3)) == contents_of(catalog)


def test_where_the_file_system_is_mounted_elsewhere(
    mapped: tuple[Catalog, Path], ext4: Disk, root: Path, tmp_path: Path
) -> None:
    _, bmap = mapped
    with mounted(ext4.device, tmp_path / "elsewhere"):
        catalog = from_directory(tmp_path / "elsewhere" / root.name, file_filters="*")
        with BlockReader(catalog, bmap=bmap) as reader:
            assert read(reader, np.arange(3)) == contents_of(catalog)
            os.utime(catalog.path(1))
            with pytest.raises(StaleMapError) as caught:
                read(reader, np.arange(3))
            assert caught.value.filename == os.fsdecode(catalog.path(1))


@pytest.mark.parametrize(
    ("uri", "error", "message"),
    [
        ("/no/such/device", FileNotFoundError, "option uri"),
        ("/", ValueError, "neither a block device nor an image"),
        ("/dev/null", ValueError, "NVMe character devices are for xnvme-block"),
        (5, TypeError, "uri"),
    ],
)
def test_what_is_no_device(
    mapped: tuple[Catalog, Path], uri: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        BlockReader(mapped[0], bmap=mapped[1], uri=uri)


def test_a_user_who_may_not_read_the_device(mapped: tuple[Catalog, Path], ext4: Disk) -> None:
    script = (
        "import os, sys; from dali_storage.backends.block import BlockReader\n"
        "from dali_storage.discovery import from_directory\n"
        "catalog = from_directory(sys.argv[1], file_filters='*')\n"
        "mapped = BlockReader.tree(bmap=sys.argv[2])\n"  # Python may be out of reach from then on
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "BlockReader(catalog, bmap=sys.argv[2], uri=sys.argv[3])"
    )
    for directory in Path(mapped[1]).parents[:3]:
        os.chmod(directory, 0o755)
    done = subprocess.run(
        [sys.executable, "-c", script, os.fsdecode(mapped[0].root), mapped[1], ext4.device],
        capture_output=True,
        text=True,
        timeout=60,
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dali_storage.errors.BackendUnavailable: no permission to read /dev/")
    assert "run as root" in last
    assert "setfacl" in last
    assert "image file" in last


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("check", 1), ("check", "state"), ("lanes", 0), ("lanes", 65), ("lanes", "2")),
        *(("queue_depth", 0), ("queue_depth", 4097), ("queue_depth", 1.5), ("queue_depth", True)),
        *(("max_transfer", 0), ("max_transfer", 512), ("max_transfer", 5000)),
        *(("max_transfer", 2 << 30), ("max_transfer", "128k"), ("bmap", None)),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    mapped: tuple[Catalog, Path], option: str, value: Any
) -> None:
    with pytest.raises((TypeError, ValueError), match=option):
        BlockReader(mapped[0], **{"bmap": mapped[1], option: value})


def test_nothing_stays_open_when_it_is_refused(
    mapped: tuple[Catalog, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(depth: int) -> None:
        raise BackendUnavailable("no contexts")

    catalog, bmap = mapped
    before = open_files()
    monkeypatch.setattr("dali_storage.backends.linux.aio.require", refuse)
    with pytest.raises(BackendUnavailable):
        BlockReader(catalog, bmap=bmap)
    (tmp_path / "other").touch()
    os.truncate(tmp_path / "other", 320 << 20)
    with pytest.raises(StaleMapError):
        BlockReader(catalog, bmap=bmap, uri=tmp_path / "other")
    assert open_files() == before


# Which samples


def test_a_map_is_loaded_once(mapped: tuple[Catalog, Path]) -> None:
    catalog, bmap = mapped
    with BlockReader(catalog, bmap=bmap), BlockReader(catalog, bmap=str(bmap)):
        assert BlockReader.tree(bmap=bmap).extent_map is _maps.load_map(bmap).map
        before = _maps.load_map(bmap).map
        make_map(catalog.root, bmap)
        assert _maps.load_map(bmap).map is not before


def test_a_part_of_the_mapped_directory(
    mapped: tuple[Catalog, Path], root: Path, tmp_path: Path
) -> None:
    _, bmap = mapped
    (root / "list").write_text("b 5\n../other/c 6\n./a 7\n")
    (tmp_path / "link").symlink_to(root)
    catalogs = [
        from_directory(tmp_path / "link", file_filters="*"),
        from_files(["a", "b"], file_root=tmp_path / "link" / "class"),
        from_files([f"{root.name}/class/a"], file_root=root.parent),
        from_files([tmp_path / "link" / "class" / "a"]),
        from_file_list(root / "list", file_root=root / "class"),
        from_files([root / "other" / "c", root / "class" / "b"]),
        from_files(["class/../class//b"], file_root=root),
    ]
    for catalog in catalogs:
        with BlockReader(catalog, bmap=bmap) as reader:
            assert read(reader, np.arange(len(catalog))) == contents_of(catalog)


def test_samples_that_are_not_in_the_map_are_counted_and_named(
    mapped: tuple[Catalog, Path], root: Path
) -> None:
    catalog = from_files([f"class/{name}" for name in "axbyzw"], file_root=root)
    message = "4 of 6 samples are not in the map: 'class/x', 'class/y', 'class/z', ...;"
    with pytest.raises(StaleMapError, match=message) as caught:
        BlockReader(catalog, bmap=mapped[1])
    assert caught.value.filename == str(root / "class" / "x")


def test_a_part_of_what_is_mounted_elsewhere(
    mapped: tuple[Catalog, Path], ext4: Disk, root: Path, tmp_path: Path
) -> None:
    bmap = make_map(ext4.mount, tmp_path / "all.json")
    with mounted(ext4.device, tmp_path / "elsewhere"):
        catalog = from_directory(tmp_path / "elsewhere" / root.name, file_filters="*")
        with BlockReader(catalog, bmap=bmap) as reader:
            assert read(reader, np.arange(3)) == contents_of(catalog)


def test_a_map_that_was_made_through_a_link(root: Path, tmp_path: Path) -> None:
    (root / "sub" / "class").mkdir(parents=True)
    (root / "sub" / "class" / "a").write_bytes(b"bytes")
    (tmp_path / "link").symlink_to(root)
    bmap = make_map(tmp_path / "link", tmp_path / "bmap.json")
    for directory in (root / "sub", tmp_path / "link" / "sub"):
        with BlockReader(from_directory(directory, file_filters="*"), bmap=bmap) as reader:
            assert read(reader, np.arange(1)) == [b"bytes"]


def test_a_fifo_behind_a_link_is_no_reason_to_wait(root: Path, tmp_path: Path) -> None:
    (root / "class").mkdir()
    (root / "class" / "a").write_bytes(b"bytes")
    os.mkfifo(root / "fifo")
    (root / "class" / "b").symlink_to("../fifo")
    assert create.run(str(root), str(tmp_path / "bmap"), threads=1) == 1
    with BlockReader(from_directory(root, file_filters="*"), bmap=tmp_path / "bmap") as reader:
        assert read(reader, np.array([0])) == [b"bytes"]
        with pytest.raises(OSError, match="not a regular file") as caught:
            read(reader, np.arange(2))
        assert caught.value.filename == str(root / "class" / "b")


def test_a_batch_of_more_files_than_a_process_may_open(root: Path, tmp_path: Path) -> None:
    (root / "class").mkdir()
    for index in range(300):
        (root / "class" / f"{index:03d}").write_bytes(b"%d" % index)
    catalog = from_directory(root, file_filters="*")
    with BlockReader(catalog, bmap=make_map(root, tmp_path / "bmap")) as reader:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))
        try:
            got = read(reader, np.arange(300))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert got == [b"%d" % index for index in range(300)]


@pytest.mark.parametrize("when", ["1960-01-01", "2037-12-31", "2250-01-01", "2400-01-01"])
def test_times_of_any_century(tmp_path: Path, when: str) -> None:
    with disk(tmp_path, "xfs") as made:
        (made.mount / "class").mkdir()
        for name in "ab":
            (made.mount / "class" / name).write_bytes(name.encode())
        run("touch", "-d", when, str(made.mount / "class" / "a"))
        create.run(str(made.mount), str(tmp_path / "bmap"), threads=1)
        catalog = from_directory(made.mount, file_filters="*")
        with BlockReader(catalog, bmap=tmp_path / "bmap") as reader:
            assert read(reader, np.arange(2)) == [b"a", b"b"]


# Reads that fail


class FailingAio:
    """Reads of a device with a bad sector: a read that covers it fails, or is short."""

    bad = -1
    outcome = -errno.EIO
    times = 10**9
    read = staticmethod(aio.read)

    @classmethod
    def fail(cls, depth: int, fd: int, iovecs: Any, offsets: Any) -> Any:
        results = cls.read(depth, fd, iovecs, offsets)
        hit = (offsets <= cls.bad) & (offsets + iovecs["len"][:, 0].astype(np.int64) > cls.bad)
        if hit.any() and cls.times:
            cls.times -= 1
            results[hit] = cls.outcome
        return results


@pytest.fixture
def failing(
    mapped: tuple[Catalog, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Reader, list[bytes]]]:
    """A reader of a device whose third block of the second sample is bad."""
    catalog, bmap = mapped
    contents = contents_of(catalog)
    monkeypatch.setattr("dali_storage.backends.linux.aio.read", FailingAio.fail)
    physical = int(bmap_tools.load(bmap).extents[1, 1])
    monkeypatch.setattr(FailingAio, "bad", physical + 2 * 4096 + 512)
    monkeypatch.setattr(FailingAio, "times", 10**9)
    with BlockReader(catalog, bmap=bmap, max_transfer=1 << 20) as reader:
        yield reader, contents


@pytest.mark.parametrize("outcome", [-errno.EIO, 512, 0])
def test_a_bad_sector_is_told_with_sample_extent_and_lba(
    failing: tuple[Reader, list[bytes]],
    mapped: tuple[Catalog, Path],
    outcome: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FailingAio, "outcome", outcome)
    reader, contents = failing
    logical, physical, length = bmap_tools.load(mapped[1]).extents[1].tolist()
    with pytest.raises(OSError) as caught:
        read(reader, np.arange(3))
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == os.fsdecode(mapped[0].path(1))
    assert f"at LBA {physical // 512} of /dev/loop" in str(caught.value)
    assert f"(logical {logical}, physical {physical}, length {length})" in str(caught.value)
    assert read(reader, np.array([0, 2])) == [contents[0], contents[2]]


def test_a_read_that_fails_once_is_made_again(
    failing: tuple[Reader, list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailingAio, "times", 1)
    reader, contents = failing
    assert read(reader, np.arange(3)) == contents
    assert FailingAio.times == 0


# In a pipeline


@pytest.fixture
def images(ext4: Disk, root: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Classes, one of them empty, and their map."""
    random = np.random.default_rng(3)
    for index in range(40):
        folder = root / f"class{index % 4}"
        folder.mkdir(exist_ok=True)
        (folder / f"{index:02d}.jpg").write_bytes(random.bytes(int(random.integers(1, 99_999))))
    (root / "class1b").mkdir()
    (root / "class2" / "notes.txt").write_bytes(b"no sample")
    (root / "class2" / "deeper").mkdir()
    (root / "class2" / "deeper" / "x.jpg").write_bytes(b"no sample")
    (root / "x.jpg").write_bytes(b"no sample")
    return root, make_map(root, tmp_path / "bmap.json")


ORDERS: list[dict[str, Any]] = [
    {},
    {"random_shuffle": True, "seed": 5, "initial_fill": 16},
    {"shuffle_after_epoch": True, "num_shards": 3, "shard_id": 1, "pad_last_batch": True},
]


@pytest.mark.usefixtures("pipelines_end")
@pytest.mark.parametrize("order", ORDERS, ids=["list", "shuffled", "sharded"])
@pytest.mark.parametrize("from_map", [False, True])
def test_samples_labels_and_order_are_those_of_fn_readers_file(
    images: tuple[Path, Path], order: dict[str, Any], from_map: bool
) -> None:
    root, bmap = images
    expected = take(build(fn.readers.file, file_root=str(root), **order), 35)
    where = {} if from_map else {"file_root": str(root)}
    ours = build(
        readers.file, **where, **order, backend="block", backend_options={"bmap": str(bmap)}
    )
    drop_caches()
    assert take(ours, 35) == expected
    assert {label for _, label in expected} == {0, 1, 3, 4}


@pytest.mark.usefixtures("pipelines_end")
def test_a_pipeline_where_the_file_system_is_not_mounted(tmp_path: Path) -> None:
    with disk(tmp_path, "xfs", partition=True) as made:
        for index in range(20):
            folder = made.mount / f"class{index % 3}"
            folder.mkdir(exist_ok=True)
            (folder / f"{index}.jpg").write_bytes(bytes([index]) * 30_000)
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        expected = take(build(fn.readers.file, file_root=str(made.mount)), 10)
    options = {"bmap": str(bmap), "uri": str(made.image)}
    with pytest.warns(MapNotChecked, match="cannot be checked"):
        ours = build(readers.file, backend="block", backend_options=options)
    assert take(ours, 10) == expected


@pytest.mark.usefixtures("pipelines_end")
def test_a_stale_sample_reaches_the_user_of_a_pipeline(images: tuple[Path, Path]) -> None:
    root, bmap = images
    ours = build(
        readers.file, file_root=str(root), backend="block", backend_options={"bmap": str(bmap)}
    )
    take(ours, 1)
    changed = root / "class1" / "01.jpg"
    changed.write_bytes(b"changed")
    with pytest.raises(StaleMapError, match="python -m bmap_tools create") as caught:
        take(ours, 30)
    assert caught.value.filename == str(changed)


def test_a_map_that_was_edited_is_refused(mapped: tuple[Catalog, Path]) -> None:
    catalog, bmap = mapped
    document = json.loads(bmap.read_text())
    first, second = document["files"][0], document["files"][1]
    first[5], second[5] = second[5], first[5]
    bmap.write_text(json.dumps(document))
    with pytest.raises(MapFormatError, match="edited"):
        BlockReader(catalog, bmap=bmap)
