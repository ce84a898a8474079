"""The promises of `dali_storage.contract.reader`, one test each."""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import pytest

from ..contract._types import IntArray, address_of
from ..contract.catalog import Catalog
from ..contract.devices import DeviceStatus, devices_of, problem_of
from ..contract.errors import BackendUnavailable, SampleSizeChanged
from ..contract.reader import Reader
from ..contract.views import views_of
from ..samples.discovery import from_directory
from .packing import SIZES, packed_contents, write_packed
from .probes import opened_for_writing, raises_naming, require_lanes, require_no_leak
from .reading import GUARD, fill, in_lane, in_other_files, make_batch, make_known_batch, read

_Test = TypeVar("_Test", bound=Callable[..., None])


def only(packing: str) -> Callable[[_Test], _Test]:
    """Restrict a test to one packing of samples: "files" or "ranges"."""

    def decorate(test: _Test) -> _Test:
        for mark in (
            pytest.mark.parametrize("packing", [packing]),
            pytest.mark.usefixtures("packing"),
        ):
            mark(test)
        return test

    return decorate


class SnapshotReaderTests:
    """The promises of `dali_storage.contract.reader`, without promises about changing files.

    Attributes:
        packings: how samples are stored in the tests: "files", and "ranges" for a reader of ranges.
        batches: the number of batches in the test for leaks.
        connections: the number of connections, with a thread each, a reader may keep in that test.
        openings: the number of readers opened and closed in the test of closed readers.
    """

    packings: ClassVar[tuple[str, ...]] = ("files",)
    batches: ClassVar[int] = 300
    connections: ClassVar[int] = 0
    openings: ClassVar[int] = 3

    def open(self, catalog: Catalog) -> Reader:
        """Open the backend under test on `catalog`; every subclass overrides this."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run every test on all packings, unless `only()` restricts the test to one."""
        marks = metafunc.definition.iter_markers("parametrize")
        is_chosen = any(mark.args[0] == "packing" for mark in marks)
        if "packing" in metafunc.fixturenames and len(self.packings) > 1 and not is_chosen:
            metafunc.parametrize("packing", self.packings)

    @pytest.fixture
    def packing(self) -> str:
        """The packing of samples: "files" or "ranges" of files."""
        return self.packings[0]

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """The directory of the test files; override to put them on another disk."""
        return tmp_path

    @pytest.fixture
    def contents(self, packing: str) -> list[bytes]:
        """The bytes of every sample."""
        if packing == "ranges":
            return packed_contents()
        random = np.random.default_rng(20)
        return [random.bytes(size) for size in SIZES]

    @pytest.fixture
    def catalog(self, directory: Path, contents: list[bytes], packing: str) -> Catalog:
        """The catalog of the same bytes in files, which a test may change."""
        (directory / "class").mkdir()
        if packing == "ranges":
            return self.published(write_packed(directory))
        for index, content in enumerate(contents):
            (directory / "class" / f"{index:03d}").write_bytes(content)
        return self.published(from_directory(directory, file_filters="*"))

    def published(self, catalog: Catalog) -> Catalog:
        """Return the catalog for readers; override to serve the files as objects."""
        return catalog

    def file(self, catalog: Catalog, sample: int) -> Path:
        """Return the file of a sample, for tests with changes."""
        return Path(os.fsdecode(catalog.path(sample)))

    @pytest.fixture
    def reader(self, catalog: Catalog) -> Iterator[Reader]:
        """An open reader, closed when the test ends."""
        with self.open(catalog) as reader:
            yield reader

    def test_ranges_are_tested_if_they_are_read(self, reader: Reader) -> None:
        assert type(reader).reads_ranges == ("ranges" in self.packings), "see `packings`"

    @only("files")
    def test_sizes_are_those_of_the_files(self, reader: Reader, contents: list[bytes]) -> None:
        samples = np.arange(len(contents))[::-1]
        sizes = in_lane(partial(reader.sizes, samples, 0))
        assert sizes.dtype == np.int64
        assert sizes.tolist() == [len(content) for content in contents[::-1]]

    @pytest.mark.parametrize(
        "samples",
        [np.arange(13), [5, 0, 12, 5, 5, 1, 12, 0], np.tile(np.arange(12), 100), []],
        ids=["all", "in any order and repeated", "many", "none"],
    )
    def test_bytes_are_those_of_the_files(
        self, reader: Reader, catalog: Catalog, contents: list[bytes], samples: list[int]
    ) -> None:
        chosen = np.array(samples, np.int64)
        assert read(reader, chosen, catalog) == [contents[sample] for sample in chosen]

    @pytest.mark.parametrize("in_main_thread", [False, True])
    def test_views_are_the_bytes_of_the_files_and_outlive_the_reader(
        self, reader: Reader, contents: list[bytes], in_main_thread: bool
    ) -> None:
        """Only a reader with samples in memory has views."""
        samples = np.array([5, 0, 12, 5, 1])
        find, is_hot = views_of(reader), partial(getattr(reader, "hot", lambda _: False), samples)
        if find is None or (in_main_thread and not is_hot()):
            return
        call = partial(find, samples, reader.lanes if in_main_thread else 0)
        views = call() if in_main_thread else in_lane(call)
        if views is None:
            assert not is_hot()
            return
        slices = views.slices()
        del views
        reader.close()
        assert [bytes(each) for each in slices] == [contents[sample] for sample in samples]

    def test_a_batch_of_one_sample(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        for sample, content in enumerate(contents):
            assert read(reader, np.array([sample]), catalog) == [content]

    def test_a_buffer_is_used_again(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        buffer = reader.allocate(8 << 20)
        for samples in (np.arange(12), np.arange(12)[::-1], np.array([12, 0])):
            expected = [contents[sample] for sample in samples]
            assert read(reader, samples, catalog, buffer=buffer) == expected

    def test_nothing_else_is_written(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        samples = np.arange(len(contents))
        batch = make_batch(reader, samples, catalog, gap=3 * reader.alignment)
        fill(reader, batch)
        outside = np.ones(batch.buffer.nbytes, np.bool_)
        room = -(-batch.spans.sizes // reader.alignment) * reader.alignment
        for start, size in zip(batch.spans.offsets.tolist(), room.tolist(), strict=True):
            outside[start : start + size] = False
        assert outside.any()
        written = np.frombuffer(batch.buffer.tobytes(), np.uint8)
        assert (written[outside] == GUARD).all()

    def test_alignment_and_lanes_are_sound(self, reader: Reader) -> None:
        assert reader.alignment > 0
        assert reader.alignment & (reader.alignment - 1) == 0
        assert reader.unit > 0
        assert reader.unit & (reader.unit - 1) == 0
        assert reader.alignment % reader.unit == 0
        assert reader.lanes >= 1

    @pytest.mark.parametrize("nbytes", [0, 1, 4097, 5 << 20])
    def test_allocated_memory_is_aligned(self, reader: Reader, nbytes: int) -> None:
        buffer = reader.allocate(nbytes)
        assert buffer.nbytes >= nbytes
        assert address_of(buffer) % reader.alignment == 0
        assert buffer[:1].nbytes == min(buffer.nbytes, 1)  # its elements are bytes
        buffer[:] = GUARD
        assert buffer.tobytes() == bytes([GUARD]) * buffer.nbytes

    def test_all_lanes_read_at_once(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        lanes = range(reader.lanes)
        samples = [np.random.default_rng(lane).integers(0, len(contents), 50) for lane in lanes]
        barrier = threading.Barrier(reader.lanes)

        def run(lane: int) -> list[list[bytes]]:
            barrier.wait()
            return [read(reader, samples[lane], catalog, lane=lane) for _ in range(5)]

        with ThreadPoolExecutor(reader.lanes) as threads:
            for lane, results in enumerate(threads.map(run, lanes)):
                assert results == [[contents[sample] for sample in samples[lane]]] * 5

    def test_closing_twice_is_fine(self, catalog: Catalog) -> None:
        reader = self.open(catalog)
        read(reader, np.array([3]), catalog)
        reader.close()
        reader.close()

    def test_many_batches_leave_nothing(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        def run(batches: int) -> None:
            for number in range(batches):
                if number % 8 == 0:
                    buffer = reader.allocate(8 * max(reader.alignment, 1 << 13))
                samples = np.arange(number % 3, 8)
                assert read(reader, samples, catalog, buffer=buffer) == contents[number % 3 : 8]

        run(100)  # fills caches
        require_no_leak(lambda: run(self.batches), self.connections)

    def test_closed_readers_leave_nothing(self, catalog: Catalog, contents: list[bytes]) -> None:
        def run(openings: int, samples: IntArray) -> None:
            expected = [contents[sample] for sample in samples]
            for _ in range(openings):
                with self.open(catalog) as reader:
                    assert read(reader, samples, catalog) == expected

        run(3, np.arange(len(contents)))  # a file opened once per process is not a leak
        require_no_leak(lambda: run(self.openings, np.arange(8)))

    def test_nothing_is_read_in_the_main_thread(
        self, catalog: Catalog, contents: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with self.open(catalog) as reader:
            require_lanes(monkeypatch, type(reader), "sizes", "read")
        with self.open(catalog) as reader:
            assert read(reader, np.arange(len(contents)), catalog) == contents

    def test_files_are_opened_for_reading_only(self, catalog: Catalog) -> None:
        with opened_for_writing(os.fsencode(self.file(catalog, 0).parent)) as was_opened:
            with self.open(catalog) as reader:
                read(reader, np.arange(len(catalog)), catalog)
            assert not was_opened()

    def test_an_unknown_option_is_refused(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            backend = type(reader)
        with pytest.raises(TypeError, match="no_such_option"):
            backend(catalog, no_such_option=1)  # type: ignore[call-arg]

    def test_its_memory_is_where_it_says(self, reader: Reader) -> None:
        assert reader.device in ("cpu", "gpu")
        assert (reader.device == "cpu") == isinstance(reader.allocate(1), np.ndarray)
        if reader.device == "gpu":
            assert reader.gpu is not None
            assert not reader.pinned
            lease = reader.allocate(1)[:]  # as the pool makes it
            ended = weakref.ref(lease)
            piece = lease[:1]
            del lease
            assert ended() is not None, "a slice does not keep its memory alive"
            del piece
            assert ended() is None

    def test_it_reports_on_the_machine(self, reader: Reader) -> None:
        assert isinstance(problem_of(type(reader)), BackendUnavailable | None)
        assert all(isinstance(device, DeviceStatus) for device in devices_of(type(reader)))

    def others_are_right(
        self, reader: Reader, catalog: Catalog, contents: list[bytes], broken: int
    ) -> None:
        """Assert that the reader still reads all samples in other files."""
        samples = in_other_files(catalog, broken)
        assert read(reader, samples, catalog) == [contents[sample] for sample in samples]


class ReaderTests(SnapshotReaderTests):
    """All promises of `dali_storage.contract.reader`, with changing files.

    Attributes:
        directory_error: the error of reading a directory.
    """

    directory_error: ClassVar[type[OSError]] = IsADirectoryError

    def test_a_missing_file_is_named(self, catalog: Catalog, contents: list[bytes]) -> None:
        with self.open(catalog) as reader:
            os.unlink(self.file(catalog, 4))
            with raises_naming(FileNotFoundError, catalog.path(4)):
                read(reader, np.array([4]), catalog)
            self.others_are_right(reader, catalog, contents, broken=4)

    @only("files")
    def test_a_file_that_goes_missing_after_it_was_sized_is_named(
        self, reader: Reader, catalog: Catalog, contents: list[bytes]
    ) -> None:
        batch = make_known_batch(reader, np.array([2, 4, 6]))
        os.unlink(self.file(catalog, 4))
        with raises_naming(OSError, catalog.path(4)):
            fill(reader, batch)
        self.others_are_right(reader, catalog, contents, broken=4)

    @only("files")
    def test_the_first_failing_sample_of_a_batch_is_named(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            batch = make_known_batch(reader, np.array([2, 9, 4, 6]))
            os.unlink(self.file(catalog, 9))
            os.unlink(self.file(catalog, 4))
            with raises_naming(OSError, catalog.path(9)):
                fill(reader, batch)

    @only("files")
    def test_a_directory_as_sample_is_named(self, catalog: Catalog, contents: list[bytes]) -> None:
        with self.open(catalog) as reader:
            batch = make_known_batch(reader, np.array([2, 4, 6]))
            os.unlink(self.file(catalog, 4))
            os.mkdir(self.file(catalog, 4))
            with raises_naming(self.directory_error, catalog.path(4)):
                fill(reader, batch)
            self.others_are_right(reader, catalog, contents, broken=4)

    @only("files")
    @pytest.mark.parametrize("new_size", [0, 1, 4095, 4096, 4097, 8192, 70000])
    def test_a_changed_size_is_reported_and_then_known(
        self, reader: Reader, catalog: Catalog, contents: list[bytes], new_size: int
    ) -> None:
        changed = 6 if new_size != len(contents[6]) else 7
        batch = make_known_batch(reader, np.array([2, changed, 4]))
        content = bytes(range(1, 252)) * 300
        self.file(catalog, changed).write_bytes(content[:new_size])
        with pytest.raises(SampleSizeChanged) as caught:
            fill(reader, batch)
        assert caught.value.samples.tolist() == [changed]
        expected = [contents[2], content[:new_size], contents[4]]
        assert read(reader, np.array([2, changed, 4]), catalog) == expected
