"""Records of one size out of containers. What is expected is what was written into these."""

from __future__ import annotations

import os
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage.backends.block import BlockReader
from dali_storage.backends.memory import MemoryReader
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract._types import IntArray
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import SampleChangedError, SampleSizeChanged
from dali_storage.contract.reader import Batch, Reader
from dali_storage.loaders.datasets.in_memory import RecordsReader, read_whole
from dali_storage.testing import SnapshotReaderTests, nothing_is_left, read

from .conftest import open_files
from .fake_cuda import Cuda, put_on_gpu
from .layouts import make_map
from .mapped import NEEDS_ROOT

SIZE = 5003  # bytes of a record
BEFORE = 77  # bytes of a container before its first record
CONTAINERS = (b"c0", b"c1", b"c2")


def write_containers(directory: Path, contents: list[bytes]) -> Catalog:
    """Deal records out to files of different lengths; returns the catalog of the files."""
    for index, name in enumerate(CONTAINERS):
        records = b"".join(contents[index :: len(CONTAINERS)])
        content = b"h" * BEFORE + records + b"t" * index
        (directory / os.fsdecode(name)).write_bytes(content)
    return Catalog.from_names(CONTAINERS, [0] * len(CONTAINERS), os.fsencode(directory))


def catalog_of_records(directory: Path, count: int) -> Catalog:
    names = [b"%s#%d" % (CONTAINERS[i % len(CONTAINERS)], i) for i in range(count)]
    return Catalog.from_names(names, range(count), os.fsencode(directory))


def open_records(catalog: Catalog, open_reader: Any = MemoryReader) -> RecordsReader:
    """A reader of the records of `write_containers()`, in their order."""
    files = Catalog.from_names(CONTAINERS, [0] * len(CONTAINERS), catalog.root)
    memory, places = read_whole(files, open_reader)
    container, place = np.arange(len(catalog)) % 3, np.arange(len(catalog)) // 3
    starts = np.array([each.start for each in places])[container] + BEFORE + place * SIZE
    return RecordsReader(catalog, memory=memory, starts=starts, size_bytes=SIZE)


@pytest.fixture
def contents() -> list[bytes]:
    random = np.random.default_rng(20)
    return [random.bytes(SIZE) for _ in range(17)]


class TestRecords(SnapshotReaderTests):
    batches = 5_000
    openings = 200

    @pytest.fixture
    def contents(self, contents: list[bytes]) -> list[bytes]:
        return contents

    @pytest.fixture
    def catalog(self, directory: Path, contents: list[bytes]) -> Catalog:
        write_containers(directory, contents)
        return catalog_of_records(directory, len(contents))

    def open(self, catalog: Catalog) -> Reader:
        return open_records(catalog)

    def test_files_that_change_or_vanish_later_are_not_noticed(
        self, reader: Reader, directory: Path, contents: list[bytes]
    ) -> None:
        for name in CONTAINERS:
            (directory / os.fsdecode(name)).unlink()
        assert read(reader, np.arange(len(contents))) == contents


@pytest.mark.parametrize(
    "open_reader",
    [
        MemoryReader,
        partial(PythonFileReader, lanes=1),
        partial(PythonFileReader, direct=True, lanes=2),
        partial(PythonFileReader, io="preadv", direct=True),
    ],
    ids=["memory", "python-file", "direct", "preadv"],
)
def test_any_backend_reads_the_containers_and_is_closed(
    tmp_path: Path, contents: list[bytes], open_reader: Any
) -> None:
    write_containers(tmp_path, contents)
    before = open_files()
    with open_records(catalog_of_records(tmp_path, 17), open_reader) as reader:
        assert open_files() <= before
        assert read(reader, np.array([16, 0, 3, 16, 8])) == [contents[i] for i in (16, 0, 3, 16, 8)]


@NEEDS_ROOT
def test_the_block_backend_reads_the_containers(
    root: Path, tmp_path: Path, contents: list[bytes]
) -> None:
    write_containers(root, contents)
    bmap = make_map(root, tmp_path / "bmap.json")
    with open_records(catalog_of_records(root, 17), partial(BlockReader, bmap=bmap)) as reader:
        assert read(reader, np.arange(17)) == contents


class Scripted(MemoryReader):
    """A reader of files that change while they are read.

    Attributes:
        changes: in how many reads a file is found to have changed.
    """

    changes = 0
    closed = False

    def read(self, batch: Batch, lane: int) -> None:
        if self.changes:
            self.changes -= 1
            raise SampleSizeChanged(np.array([1]))
        super().read(batch, lane)

    def close(self) -> None:
        self.closed = True
        super().close()


@pytest.fixture
def scripted(tmp_path: Path, contents: list[bytes]) -> tuple[Catalog, Scripted]:
    files = write_containers(tmp_path, contents)
    return files, Scripted(files)


def test_a_file_that_changes_once_is_read_again(scripted: tuple[Catalog, Scripted]) -> None:
    files, reader = scripted
    reader.changes = 1
    memory, places = read_whole(files, lambda _: reader)
    for index in range(3):
        expected = Path(os.fsdecode(files.path(index))).read_bytes()
        assert memory[places[index]].tobytes() == expected
    assert reader.closed


def test_a_file_that_changes_twice_is_named(scripted: tuple[Catalog, Scripted]) -> None:
    files, reader = scripted
    reader.changes = 2
    with pytest.raises(SampleChangedError) as caught:
        read_whole(files, lambda _: reader)
    assert os.fsencode(caught.value.filename) == files.path(1)
    assert reader.closed


@pytest.mark.parametrize("direct", [False, True])
def test_a_missing_container_is_named(tmp_path: Path, contents: list[bytes], direct: bool) -> None:
    files = write_containers(tmp_path, contents)
    os.unlink(files.path(2))
    before = open_files()
    with pytest.raises(FileNotFoundError) as caught:
        read_whole(files, partial(PythonFileReader, direct=direct))
    assert os.fsencode(caught.value.filename) == files.path(2)
    assert open_files() <= before


def test_a_reader_into_the_memory_of_a_gpu_is_refused(
    scripted: tuple[Catalog, Scripted], gpus: Cuda
) -> None:
    files, reader = scripted
    with pytest.raises(ValueError, match=r"Scripted reads into GPU memory.*\(mem='cpu'\)"):
        read_whole(files, lambda _: put_on_gpu(reader))
    assert reader.closed


def test_the_records_are_in_memory_once(tmp_path: Path) -> None:
    contents = [bytes([i]) * SIZE for i in range(200)] * 10
    write_containers(tmp_path, contents)
    catalog, random = catalog_of_records(tmp_path, len(contents)), np.random.default_rng(0)
    tracemalloc.start()
    try:
        # The containers are in a mapping of their own, which tracemalloc does not see.
        with open_records(catalog, partial(PythonFileReader, lanes=1)) as reader:
            samples = random.integers(0, len(contents), 64)
            assert read(reader, samples) == [contents[sample] for sample in samples]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(contents) * SIZE / 5


def test_closing_frees_the_memory(tmp_path: Path) -> None:
    write_containers(tmp_path, [bytes([i % 251]) * SIZE for i in range(2000)])
    catalog = catalog_of_records(tmp_path, 2000)
    open_records(catalog).close()
    with nothing_is_left():
        reader = open_records(catalog)
        reader.close()


@pytest.mark.parametrize(
    ("starts", "message"),
    [([0], "1 starts for 2"), ([0, 91], "within 100"), ([-1, 0], "within 100")],
)
def test_records_outside_of_the_memory_are_refused(starts: list[int], message: str) -> None:
    catalog = Catalog.from_names([b"a", b"b"], [0, 1])
    memory = np.zeros(100, np.uint8)
    places: IntArray = np.array(starts)
    with pytest.raises(ValueError, match=message):
        RecordsReader(catalog, memory=memory, starts=places, size_bytes=10)


def test_records_may_overlap_and_end_with_the_memory() -> None:
    catalog = Catalog.from_names([b"a", b"b"], [0, 1])
    memory = np.arange(100, dtype=np.uint8)
    reader = RecordsReader(catalog, memory=memory, starts=np.array([89, 90]), size_bytes=10)
    assert read(reader, np.array([1, 0])) == [bytes(range(90, 100)), bytes(range(89, 99))]
