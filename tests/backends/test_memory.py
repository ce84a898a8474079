import os
import weakref
from dataclasses import replace

import numpy as np
import pytest

from dali_storage.backends.memory import MemoryReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import ContainerChangedError
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import SnapshotRangeTests
from dali_storage.testing.probes import raises_naming
from dali_storage.testing.reading import read
from tests.kit.fake_cuda import FastCopies, install, put_on_gpu
from tests.kit.file_reading import of_reading
from tests.kit.tiers import by_tier


class TestMemory(SnapshotRangeTests):
    batches = by_tier(300, 10_000)
    openings = by_tier(30, 1_000)

    def open(self, catalog):
        return MemoryReader(catalog)

    def test_a_missing_file_is_named_when_it_is_opened(self, catalog):
        os.unlink(catalog.path(3))
        with raises_naming(FileNotFoundError, catalog.path(3)):
            MemoryReader(catalog)


RECORD = 3072


@pytest.fixture
def records():
    """Ranges of one size in three files, some of which overlap; and the bytes of the files."""
    random = np.random.default_rng(20)
    contents = [random.integers(0, 256, RECORD * 9, np.uint8) for _ in range(3)]
    starts = [np.arange(8) * RECORD + 77, np.array([1, 0, RECORD * 8]), np.array([5])]
    ranges = Ranges.of_files((each, np.full(each.shape, RECORD)) for each in starts)
    return replace(Catalog.from_names([b"a", b"b", b"c"], ()), ranges=ranges), contents


def test_records_of_one_size_come_from_given_contents_which_are_not_copied(records):
    catalog, contents = records
    assert catalog.ranges is not None
    files = catalog.files(np.arange(len(catalog)))
    expected = [
        contents[file][start : start + RECORD].tobytes()
        for file, start in zip(files, catalog.ranges.starts, strict=True)
    ]
    samples = np.array([11, 0, 8, 9, 9, 7, 10, 1, 0])
    with MemoryReader(catalog, contents=contents) as reader:
        assert read(reader, samples, catalog) == [expected[sample] for sample in samples]
        contents[2][:] = 1
        assert read(reader, np.array([11]), catalog) == [b"\1" * RECORD]


def test_given_contents_are_copied_and_files_are_not(records, tmp_path):
    catalog, contents = records
    with MemoryReader(catalog, contents=contents) as reader:
        assert reader.views is None
    (tmp_path / "x").write_bytes(b"some bytes")
    with MemoryReader(Catalog.from_names([os.fsencode(tmp_path / "x")], ())) as reader:
        assert reader.views is not None
        assert reader.hot(np.zeros(1, np.int64))


def test_closing_forgets_the_contents(records):
    catalog, contents = records
    reader = MemoryReader(catalog, contents=contents)
    forgotten = weakref.ref(contents[0])
    reader.close()
    del contents[0], contents
    records[1].clear()
    assert forgotten() is None


def test_contents_that_end_before_a_range_are_refused(records):
    catalog, contents = records
    contents[1] = contents[1][:-1]
    with pytest.raises(ContainerChangedError, match=r"sample 10: 3,072 bytes at 24,576"):
        MemoryReader(catalog, contents=contents)


@of_reading
class TestMemoryOnAGpu(SnapshotRangeTests):
    @pytest.fixture(autouse=True)
    def cuda(self, monkeypatch):
        install(monkeypatch, FastCopies())

    def open(self, catalog):
        return put_on_gpu(MemoryReader(catalog))
