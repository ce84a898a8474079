"""The promises about files that all backends share which read them from a file system."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage.contract.catalog import Catalog
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.reader import Reader
from dali_storage.contract.stages import turn_given_by
from dali_storage.samples.discovery import from_directory, from_files
from dali_storage.testing import fill, make_batch, read
from dali_storage.testing.probes import raises_naming
from dali_storage.testing.reading import in_lane
from tests.kit.bmap.files import as_nobody
from tests.kit.devices import evict

_OF_READING = (
    *("bytes_are_those_of_the_files", "nothing_else_is_written", "all_lanes_read_at_once"),
    *("a_buffer_is_used_again", "many_batches_leave_nothing", "closed_readers_leave_nothing"),
    *("files_are_opened_for_reading_only", "a_changed_file_is_refused", "a_missing_file_is_named"),
    *("a_changed_size_is_reported_and_then_known", "a_container_that_changes_is_refused"),
)


def of_reading(tests: type) -> type:
    """For a class that inherits the promises of readers: only those that depend on how it reads.

    All others are tested by another class for the same backend.
    """
    for name in dir(tests):
        if name.startswith("test_") and name.removeprefix("test_") not in _OF_READING:
            setattr(tests, name, None)
    return tests


@contextmanager
def yielding(call: Callable[[], None]) -> Iterator[None]:
    """Call a function where a read in the lane of the shipped tests yields its turn."""
    before = in_lane(partial(turn_given_by, call))
    try:
        yield
    finally:
        in_lane(partial(turn_given_by, before))


def write_files(directory: Path, contents: Iterable[bytes]) -> Catalog:
    """Write files, which are named by numbers; return their catalog."""
    paths = []
    for index, content in enumerate(contents):
        paths.append(directory / str(index))
        paths[-1].write_bytes(content)
    return from_files([*map(str, paths)])


class FileTests:
    """The promises of a backend that reads files, in each of its `ways`.

    Attributes:
        backend: the class.
        ways: options to read with.
        ways_of_large: options to read a large file with.
    """

    backend: ClassVar[type[Reader]]
    ways: ClassVar[list[dict[str, Any]]]
    ways_of_large: ClassVar[list[dict[str, Any]]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "way" in metafunc.fixturenames:
            metafunc.parametrize("way", self.ways, ids=str)
        if "way_of_large" in metafunc.fixturenames:
            metafunc.parametrize("way_of_large", self.ways_of_large, ids=str)

    def open(self, catalog: Catalog, **options: Any) -> Reader:
        return self.backend(catalog, **options)

    def test_files_that_are_not_in_the_page_cache_are_read_right(
        self, tmp_path: Path, way: dict[str, Any]
    ) -> None:
        """On tmpfs, or if the kernel keeps pages, it cannot show this: they are read from there."""
        contents = [np.random.default_rng(index).bytes(1 + 37_501 * index) for index in range(40)]
        with self.open(write_files(tmp_path, contents), **way) as reader:
            evict(tmp_path.iterdir())
            assert read(reader, np.arange(40)) == contents
            evict(tmp_path.iterdir())
            for index in range(0, 40, 3):  # some cached whole, some in part, some not at all
                with open(tmp_path / f"{index}", "rb") as file:
                    file.read(len(contents[index]) if index % 2 else 5000)
            assert read(reader, np.arange(40)) == contents

    def test_a_file_system_without_direct_io_is_refused_at_opening(self) -> None:
        files, one = from_files(["/proc/version"]), np.ones(1, np.int64)
        for catalog in (files, replace(files, ranges=Ranges.of_columns(one - 1, one, one))):
            with raises_naming(OSError, "/proc/version", "direct=False") as caught:
                self.open(catalog, direct=True)
            assert caught.value.errno == errno.EINVAL

    def test_a_batch_may_have_more_files_than_a_process_may_open(
        self, one_file: Catalog, way: dict[str, Any]
    ) -> None:
        with self.open(one_file, **way) as reader:
            assert read(reader, np.zeros(5000, np.int64)) == [b"bytes"] * 5000

    def test_a_file_without_permission_is_named(self, tmp_path: Path, way: dict[str, Any]) -> None:
        for name in "ab":
            (tmp_path / name).write_text(name)
        (tmp_path / "b").chmod(0)
        catalog = from_files([f"{tmp_path}/a", f"{tmp_path}/b"])
        with self.open(catalog, **way) as reader:
            assert read(reader, np.array([0])) == [b"a"]
            with as_nobody(), raises_naming(PermissionError, catalog.path(1)):
                read(reader, np.array([1]))
            assert read(reader, np.array([0])) == [b"a"]

    def test_a_name_may_be_long_and_not_utf8(self, tmp_path: Path) -> None:
        folder = os.fsencode(tmp_path) + b"/class"
        deep = folder + (b"/" + b"\xff" * 100) * 10
        os.makedirs(deep)
        paths = [folder + b"/\xff\xfe.jpg", deep + b"/\xff\xfe.jpg"]
        for path in paths:
            Path(os.fsdecode(path)).write_bytes(b"bytes")
        for catalog in (from_directory(tmp_path), from_files(list(map(os.fsdecode, paths)))):
            with self.open(catalog, **self.ways[0]) as reader:
                assert read(reader, np.arange(len(catalog))) == [b"bytes"] * len(catalog)
                path = catalog.path(0)
                os.unlink(path)
                with raises_naming(FileNotFoundError, path):
                    read(reader, np.array([0]))
                Path(os.fsdecode(path)).write_bytes(b"bytes")

    @pytest.mark.long
    def test_a_file_may_be_larger_than_one_read(
        self, tmp_path: Path, way_of_large: dict[str, Any]
    ) -> None:
        size = (2 << 30) + 4096 + 17  # a read gives 2 GiB - 4 KiB at most
        with open(tmp_path / "file", "wb") as file:
            file.truncate(size)
            file.seek(size - 5)
            file.write(b"right")
        with self.open(from_files([str(tmp_path / "file")]), **way_of_large) as reader:
            batch = make_batch(reader, np.array([0]))
            batch.buffer[size - 5 : size] = 255
            fill(reader, batch)
            assert batch.buffer[size - 5 : size].tobytes() == b"right"
            assert not batch.buffer[: 1 << 20].any()
