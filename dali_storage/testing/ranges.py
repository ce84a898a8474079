"""The additional promises of a reader of ranges.

These classes come before the others in the list of bases:

    class TestMyReader(RangeTests, ReaderTests):
        def open(self, catalog: Catalog) -> Reader:
            return MyReader(catalog)
"""

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from ..contract.catalog import Catalog, state_of
from ..contract.errors import ContainerChangedError, StaleMapError
from ..contract.format import Wanted
from ..contract.reader import Reader
from ..contract.views import Views
from .contract import SnapshotReaderTests, only
from .probes import raises_naming
from .reading import fill, make_batch, read


def rewrite(path: Path) -> None:
    """Rewrite a file in place, with the same size."""
    with open(path, "r+b") as file:
        file.write(b"other")


def append(path: Path) -> None:
    """Make a file longer."""
    with open(path, "ab") as file:
        file.write(b"more")


def _replace(path: Path) -> None:
    """Replace a file by another one of the same size and time."""
    twin, before = path.with_name("twin"), os.stat(path)
    twin.write_bytes(bytes(before.st_size))
    os.utime(twin, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(twin, path)


def _truncate(path: Path) -> None:
    os.truncate(path, 5000)


def _cut_the_end(path: Path) -> None:
    os.truncate(path, os.stat(path).st_size - 1)


@contextmanager
def guarded(catalog: Catalog, sample: int) -> Iterator[tuple[Catalog, mmap.mmap]]:
    """Yield a catalog with a guard, and a mapping: writes to the file through it set no time."""
    file = int(catalog.files(np.array([sample]))[0])
    with open(catalog.path(sample), "r+b") as opened, mmap.mmap(opened.fileno(), 0) as memory:
        memory[100:110] = guard = memory[100:110]  # later writes to this page set no time
        yield replace(catalog, guards={file: [(100, guard)]}), memory


CHANGES = [rewrite, append, _replace, _truncate, _cut_the_end]


class SnapshotRangeTests(SnapshotReaderTests):
    """Tests of ranges for all readers of ranges, also with extent maps."""

    packings: ClassVar[tuple[str, ...]] = ("files", "ranges")

    @only("ranges")
    @pytest.mark.parametrize("cut", [1, 600_000])
    def test_a_range_beyond_the_end_of_its_file_is_refused(
        self, catalog: Catalog, cut: int
    ) -> None:
        path = self.file(catalog, 12)
        os.truncate(path, path.stat().st_size - cut)
        refused = raises_naming((ContainerChangedError, StaleMapError), catalog.path(12))
        with refused, self.open(catalog) as reader:  # perhaps when it is opened
            read(reader, np.array([2, 12, 4]), catalog)

    @only("ranges")
    @pytest.mark.parametrize("change", CHANGES, ids=lambda it: it.__name__)
    def test_a_container_that_has_changed_since_the_samples_were_found_is_refused(
        self, catalog: Catalog, change: Callable[[Path], None]
    ) -> None:
        paths = catalog.file_paths(np.arange(catalog.file_count))
        found = replace(catalog, states=np.array([state_of(os.stat(path)) for path in paths]))
        change(self.file(catalog, 6))
        refused = raises_naming((ContainerChangedError, StaleMapError), catalog.path(6))
        with refused, self.open(found) as reader:  # perhaps when it is opened
            read(reader, np.array([2, 6, 10]), found)

    @only("ranges")
    def test_a_container_without_its_guard_is_refused(self, catalog: Catalog) -> None:
        refused = raises_naming((ContainerChangedError, StaleMapError), catalog.path(6))
        with guarded(catalog, 6) as (found, memory):
            memory[105] ^= 1
            with refused, self.open(found) as reader:  # perhaps when it is opened
                read(reader, np.array([2, 6, 10]), found)

    @only("ranges")
    def test_empty_ranges_are_read_alone_and_with_others(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        assert read(reader, np.array([0]), catalog) == [b""]
        assert read(reader, np.array([0, 0]), catalog) == [b"", b""]
        assert read(reader, np.array([0, 3, 0]), catalog) == [b"", contents[3], b""]

    @only("ranges")
    def test_parts_of_ranges_are_read(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        samples = np.array([2, 12, 0, 11, 2, 10])
        whole = [contents[sample] for sample in samples]
        starts = np.array([len(content) // 3 for content in whole])
        sizes = np.array([len(content) // 2 for content in whole])
        parts = Wanted(starts, sizes, Views.slices)
        slices = map(slice, starts.tolist(), (starts + sizes).tolist())
        expected = [content[part] for content, part in zip(whole, slices, strict=True)]
        assert read(reader, samples, catalog, wanted=parts) == expected

    @only("ranges")
    def test_ranges_that_lie_close_together_are_one_read(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            batch = make_batch(reader, np.array([12, 11, 10]), catalog)
            assert len(batch.spans) == 1


class RangeTests(SnapshotRangeTests):
    """Tests of the promises about containers that change; a base class beside `ReaderTests`."""

    directory_error: ClassVar[type[OSError]]

    @only("ranges")
    @pytest.mark.parametrize("change", CHANGES, ids=lambda it: it.__name__)
    def test_a_container_that_changes_is_refused(
        self, catalog: Catalog, contents: list[bytes], change: Callable[[Path], None]
    ) -> None:
        with self.open(catalog) as reader:
            read(reader, np.arange(len(contents)), catalog)
            change(self.file(catalog, 6))
            for _ in range(2):  # the second time, too
                with raises_naming(ContainerChangedError, catalog.path(6)):
                    read(reader, np.array([4, 6, 10]), catalog)
            self.others_are_right(reader, catalog, contents, broken=6)

    @only("ranges")
    def test_a_container_that_loses_its_guard_is_refused(self, catalog: Catalog) -> None:
        with guarded(catalog, 6) as (found, memory), self.open(found) as reader:
            read(reader, np.array([4, 6, 10]), found)
            memory[105] ^= 1
            for _ in range(2):  # the second time, too
                with raises_naming(ContainerChangedError, catalog.path(6)):
                    read(reader, np.array([4, 6, 10]), found)

    @only("ranges")
    def test_a_container_that_changes_between_batch_and_read_is_refused(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        read(reader, np.arange(len(contents)), catalog)
        batch = make_batch(reader, np.array([4, 6, 10]), catalog)
        rewrite(self.file(catalog, 6))
        with raises_naming(ContainerChangedError, catalog.path(6)):
            fill(reader, batch)

    @only("ranges")
    @pytest.mark.parametrize("samples", [[2, 10, 9, 6], [6, 9, 10, 2]])
    def test_the_first_container_of_a_batch_that_changed_is_named(
        self, reader: Reader, catalog: Catalog, contents: list[bytes], samples: list[int]
    ) -> None:
        read(reader, np.arange(len(contents)), catalog)
        for changed in (9, 10):
            append(self.file(catalog, changed))
        with raises_naming(ContainerChangedError, catalog.path(samples[1])):
            read(reader, np.array(samples), catalog)

    @only("ranges")
    @pytest.mark.parametrize("samples", [[2, 10, 9, 6], [6, 9, 10, 2]])
    def test_the_first_missing_container_of_a_batch_is_named(
        self, reader: Reader, catalog: Catalog, samples: list[int]
    ) -> None:
        for missing in (9, 10):
            os.unlink(self.file(catalog, missing))
        with raises_naming(FileNotFoundError, catalog.path(samples[1])):
            read(reader, np.array(samples), catalog)

    @only("ranges")
    def test_a_directory_as_container_is_named(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        os.unlink(self.file(catalog, 4))
        os.mkdir(self.file(catalog, 4))
        with raises_naming(self.directory_error, catalog.path(4)):
            read(reader, np.array([2, 4, 6]), catalog)
        self.others_are_right(reader, catalog, contents, broken=4)
