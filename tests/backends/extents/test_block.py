"""The block backend, on loop devices and their images. What is expected is what was written."""

import shutil
import struct
from typing import Any, ClassVar

import numpy as np
import pytest
from nvidia.dali import fn

import bmap_tools
from dali_storage import readers
from dali_storage.backends.block import BlockReader
from dali_storage.contract.errors import BackendUnavailable, MapNotChecked
from dali_storage.testing import read
from dali_storage.testing.probes import raises_naming
from tests.kit import parity
from tests.kit.containers import write_numbered_tars
from tests.kit.dali import build, take
from tests.kit.devices import disk, run
from tests.kit.fake_cuda import FastCopies, install, put_on_gpu
from tests.kit.layouts import make_map
from tests.kit.mapped import (
    DISKS,
    NEEDS_ROOT,
    OTHER_DISKS,
    OnDisk,
    RawDiskTests,
    break_aio,
    map_files,
    nothing_stays_open,
)
from tests.kit.tiers import by_tier

pytestmark = NEEDS_ROOT


class OfBlock(OnDisk):
    backend = BlockReader


class TestOnExt4(OfBlock):
    batches = by_tier(300, 5_000)
    openings = by_tier(3, 10)  # the kernel takes 33 ms to end an AIO context


@pytest.mark.long
class TestIntoTheMemoryOfAGpu(OfBlock):
    """It reads by addresses, fills holes, and copies the files without extents."""

    @pytest.fixture(autouse=True)
    def cuda(self, monkeypatch):
        install(monkeypatch, FastCopies())

    def open(self, catalog):
        return put_on_gpu(super().open(catalog))


@pytest.mark.long
class TestOnXfs(OfBlock):
    file_system = "xfs"


@pytest.mark.long
class TestOnXfsOf4096ByteSectorsByItsImage(OfBlock):
    file_system, sector, partition = "xfs", 4096, True

    def uri(self):
        return self.disk_used.image


@pytest.mark.long
class TestOnExt4PartitionByItsDiskInManySmallReads(OfBlock):
    sector, partition = 4096, True
    options: ClassVar[dict[str, Any]] = {"queue_depth": 3, "lanes": 3, "max_transfer": 4096}

    def uri(self):
        return self.disk_used.disk


class TestOnDisks(RawDiskTests):
    backend = BlockReader
    ways: ClassVar[list[dict[str, Any]]] = [{"max_transfer": 64 << 10}]
    disks: ClassVar[list[Any]] = [
        *DISKS,
        *(pytest.param(made_of, marks=pytest.mark.long) for made_of in OTHER_DISKS),
    ]
    break_sector = staticmethod(break_aio)


def test_files_that_share_extents_are_read_right(tmp_path):
    with disk(tmp_path, "xfs") as made:
        folder = made.mount / "class"
        folder.mkdir()
        (folder / "a").write_bytes(np.random.default_rng(0).bytes(500_000))
        for copy in ("b", "c"):
            run("cp", "--reflink=always", str(folder / "a"), str(folder / copy))
        with open(folder / "b", "r+b") as file:
            file.seek(100_000)
            file.write(b"copied on write" * 1000)
        mapped = map_files(made.mount, tmp_path / "bmap.json")
        assert mapped.read() == mapped.contents


def test_a_device_without_contexts_does_not_stay_open(mapped, ext4, monkeypatch):
    refusal = BackendUnavailable("no contexts")
    monkeypatch.setattr("dali_storage.backends.linux.aio.unavailable", lambda depth: refusal)
    with nothing_stays_open(ext4.device), pytest.raises(BackendUnavailable):
        mapped.open()


def test_a_read_that_the_kernel_has_merged_with_a_bad_one_is_not_blamed(mapped, monkeypatch):
    position = int(bmap_tools.load(mapped.bmap).extents[1, 1])
    with mapped.open() as reader:
        with monkeypatch.context() as patch:
            break_aio(patch, position, merges=True)
            for samples in ([0, 1, 2], [2, 0, 1]):
                with raises_naming(OSError, mapped.catalog.path(1)):
                    read(reader, np.array(samples))
        break_aio(monkeypatch, position, times=1, merges=True)
        assert read(reader, np.arange(3)) == mapped.contents


@pytest.mark.usefixtures("pipelines_end")
def test_pipelines_read_where_the_file_system_is_not_mounted(tmp_path):
    """The samples, labels and order of fn.readers.file, from the directories of the map."""
    order = {"random_shuffle": True, "seed": 5, "initial_fill": 16}
    with disk(tmp_path, "xfs", partition=True) as made:
        for index in range(40):
            folder = made.mount / f"class{index % 4}"
            folder.mkdir(exist_ok=True)
            (folder / f"{index}.jpg").write_bytes(bytes([index]) * (30_000 + index))
        (made.mount / "class1b").mkdir()
        (made.mount / "class2" / "deeper").mkdir()
        for path in ("class2/notes.txt", "class2/deeper/x.jpg", "x.jpg"):
            (made.mount / path).write_bytes(b"no sample")
        (tar,), (index,) = write_numbered_tars(made.mount, [20])
        index = shutil.copy(index, tmp_path)
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        expected = take(build(fn.readers.file, file_root=str(made.mount), **order), 35)
        given = {"backend": "block", "backend_options": {"bmap": str(bmap)}}
        for place in ({}, {"file_root": str(made.mount)}):
            assert take(build(readers.file, **order, **place, **given), 35) == expected
    assert {label for _, label in expected} == {0, 1, 3, 4}
    storage = {"backend": "block", "backend_options": {"bmap": str(bmap), "uri": str(made.image)}}
    lists = [[f"class{number % 4}/{number}.jpg" for number in part] for part in ((0, 7), (5, 1))]
    with pytest.warns(MapNotChecked, match="cannot check whether"):
        assert take(build(readers.file, **order, **storage), 35) == expected
    of_tar = storage | {"paths": tar, "index_paths": index, "ext": "n"}
    with pytest.warns(MapNotChecked, match="cannot check whether"):
        ours = parity.build(readers.webdataset, 4, {}, **of_tar)
    assert parity.contents(ours) == [[struct.pack("<q", number) for number in range(4)]]
    with pytest.warns(MapNotChecked, match="cannot check whether"):
        ours = parity.build(
            readers.columns, 2, {}, files=lists, file_root=str(made.mount), **storage
        )
    found = [[bytes([number]) * (30_000 + number) for number in part] for part in ((0, 7), (5, 1))]
    assert parity.contents(ours) == found
    with pytest.raises(ValueError, match="file_root must be the mounted directory"):
        readers.columns(["class0/{}.jpg"], **storage)
