"""The block backend, on loop devices and their images. What is expected is what was written."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from nvidia.dali import fn

import bmap_tools
from dali_storage import readers
from dali_storage.backends.block import BlockReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked, StaleMapError
from dali_storage.contract.reader import Reader
from dali_storage.samples.discovery import from_directory
from dali_storage.testing import read
from tests.kit.dali import build, take
from tests.kit.devices import Disk, disk, drop_caches, loop_device, run
from tests.kit.fake_cuda import Cuda, FastCopies, install, put_on_gpu
from tests.kit.layouts import contents_of, make_hostile_files, make_map, write_sparse
from tests.kit.mapped import NEEDS_ROOT, FailingAio, OnDisk, require_permission_to_be_named
from tests.kit.process import open_files

pytestmark = NEEDS_ROOT


class OfBlock(OnDisk):
    backend = BlockReader


class TestOnExt4(OfBlock):
    batches = 5_000
    openings = 10  # the kernel takes 33 ms to end an AIO context


class TestIntoTheMemoryOfAGpu(OfBlock):
    """It reads by addresses, fills holes, and copies the files without extents."""

    @pytest.fixture(autouse=True)
    def cuda(self, monkeypatch: pytest.MonkeyPatch) -> None:
        install(monkeypatch, FastCopies())

    def open(self, catalog: Catalog) -> Reader:
        return put_on_gpu(super().open(catalog))


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


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_holes_of_an_older_buffer_are_zeros(
    root: Path, tmp_path: Path, gpus: Cuda, device: str
) -> None:
    (root / "class").mkdir()
    write_sparse(root / "class" / "a", 40_000, [(8192, 9000)], np.random.default_rng(0))
    catalog = from_directory(root, file_filters="*")
    with BlockReader(catalog, bmap=make_map(root, tmp_path / "bmap")) as reader:
        if device == "gpu":
            put_on_gpu(reader)
        buffer = reader.allocate(1 << 20)
        buffer[:] = 0xFF
        assert read(reader, np.array([0]), buffer=buffer) == contents_of(catalog)


def test_a_file_beyond_2_tib_is_read_right(tmp_path: Path) -> None:
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


def test_files_that_share_extents_are_read_right(tmp_path: Path) -> None:
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


# Files that have no extents


# Which device


def test_a_user_who_may_not_read_the_device(mapped: tuple[Catalog, Path], ext4: Disk) -> None:
    require_permission_to_be_named(BlockReader, mapped, ext4.device)


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
    def refuse(depth: int) -> BackendUnavailable:
        return BackendUnavailable("no contexts")

    catalog, bmap = mapped
    before = open_files()
    monkeypatch.setattr("dali_storage.backends.linux.aio.unavailable", refuse)
    with pytest.raises(BackendUnavailable):
        BlockReader(catalog, bmap=bmap)
    (tmp_path / "other").touch()
    os.truncate(tmp_path / "other", 320 << 20)
    with pytest.raises(StaleMapError):
        BlockReader(catalog, bmap=bmap, uri=tmp_path / "other")
    assert open_files() <= before


# Which samples


# Reads that fail


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
def test_a_bad_sector_is_reported_with_sample_extent_and_lba(
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
    what = (
        f"cannot read {length} bytes" if outcome < 0 else f"short read: {outcome} of {length} bytes"
    )
    assert f": {what} at LBA {physical // 512} of /dev/loop" in str(caught.value)
    extent = f"(extent 0, logical {logical}, physical {physical}, length {length})"
    assert extent in str(caught.value)
    assert read(reader, np.array([0, 2])) == [contents[0], contents[2]]


def test_a_read_that_the_kernel_has_merged_with_a_bad_one_is_not_blamed(
    failing: tuple[Reader, list[bytes]],
    mapped: tuple[Catalog, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FailingAio, "merges", True)
    reader, contents = failing
    for samples in ([0, 1, 2], [2, 0, 1]):
        with pytest.raises(OSError) as caught:
            read(reader, np.array(samples))
        assert caught.value.filename == os.fsdecode(mapped[0].path(1))
    monkeypatch.setattr(FailingAio, "times", 1)
    assert read(reader, np.arange(3)) == contents


def test_a_read_that_fails_once_is_retried(
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
    with pytest.warns(MapNotChecked, match="cannot check whether"):
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


def test_a_closed_reader_does_not_read(mapped: tuple[Catalog, Path]) -> None:
    with BlockReader(mapped[0], bmap=mapped[1]) as reader:
        pass
    with pytest.raises(ValueError, match="closed"):
        read(reader, np.arange(len(mapped[0])))
