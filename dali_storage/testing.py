"""What every backend must pass, ours or not: subclass `ReaderTests`, open a reader, run pytest.

    class TestMyReader(ReaderTests):
        def open(self, catalog: Catalog) -> Reader:
            return MyReader(catalog)

The expected bytes are made here and written to files by Python itself; no code under test has a
part in them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import signal
import struct
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from ._types import IntArray
from .catalog import Catalog
from .discovery import from_directory
from .errors import SampleSizeChanged, StaleMapError
from .reader import Batch, Reader

SIZES = (0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, 131071, 131072, 131073, (3 << 20) + 17)
"""Bytes: the edges of sectors, blocks, pages and commands."""

_IN_MODIFY, _IN_CLOSE_WRITE = 0x2, 0x8  # <sys/inotify.h>; the second: was open for writing
_GUARD = 0xA5  # what the memory holds where no sample may be written
# Bytes that may be added, however many the batches were: allocators keep some for later, and the
# kernel may make a huge page of 2 MiB out of what was in use before. A lost buffer is as large.
_GROWTH = 4 << 20


class SnapshotReaderTests:
    """One test a promise of `dali_storage.reader`, but for those about files that change.

    For a reader that keeps the bytes it was opened with; all others take `ReaderTests`.

    Attributes:
        batches: how many are read by one reader, to see that nothing is left of them.
        openings: how many readers are opened and closed, to see the same.
        interrupts: how often a read is interrupted, at random moments.
    """

    batches: ClassVar[int] = 300
    openings: ClassVar[int] = 3
    interrupts: ClassVar[int] = 20

    def open(self, catalog: Catalog) -> Reader:
        """A reader of the backend under test on `catalog`; overridden by every subclass."""
        raise NotImplementedError

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        """Where the files of a test are made; overridden where they must be on a certain disk."""
        return tmp_path

    @pytest.fixture
    def contents(self) -> list[bytes]:
        """The bytes of every sample, by its index."""
        random = np.random.default_rng(20)
        return [random.bytes(size) for size in SIZES]

    @pytest.fixture
    def catalog(self, directory: Path, contents: list[bytes]) -> Catalog:
        """The same bytes as files in a directory that the test may change."""
        (directory / "class").mkdir()
        for index, content in enumerate(contents):
            (directory / "class" / f"{index:03d}").write_bytes(content)
        return from_directory(directory, file_filters="*")

    @pytest.fixture
    def reader(self, catalog: Catalog) -> Iterator[Reader]:
        """An open reader, closed when the test ends."""
        with self.open(catalog) as reader:
            yield reader

    def test_sizes_are_those_of_the_files(self, reader: Reader, contents: list[bytes]) -> None:
        samples = np.arange(len(contents))[::-1]
        sizes = reader.sizes(samples)
        assert sizes.dtype == np.int64
        assert sizes.tolist() == [len(content) for content in contents[::-1]]

    def test_bytes_are_those_of_the_files(self, reader: Reader, contents: list[bytes]) -> None:
        assert read(reader, np.arange(len(contents))) == contents

    def test_samples_come_in_any_order_and_more_than_once(
        self, reader: Reader, contents: list[bytes]
    ) -> None:
        samples = np.array([5, 0, 12, 5, 5, 1, 12, 0])
        assert read(reader, samples) == [contents[sample] for sample in samples]

    def test_every_sample_alone(self, reader: Reader, contents: list[bytes]) -> None:
        assert [read(reader, np.array([sample]))[0] for sample in range(len(contents))] == contents

    def test_a_batch_of_many_samples(self, reader: Reader, contents: list[bytes]) -> None:
        samples = np.tile(np.arange(12), 100)  # all but the largest
        assert read(reader, samples) == [contents[sample] for sample in samples]

    def test_an_empty_batch(self, reader: Reader) -> None:
        assert read(reader, np.empty(0, np.int64)) == []

    def test_a_buffer_may_hold_older_bytes(self, reader: Reader, contents: list[bytes]) -> None:
        buffer = reader.allocate(8 << 20)
        for samples in (np.arange(12), np.arange(12)[::-1], np.array([12, 0])):
            assert read(reader, samples, buffer=buffer) == [contents[sample] for sample in samples]

    def test_nothing_is_written_outside_of_the_samples(
        self, reader: Reader, contents: list[bytes]
    ) -> None:
        samples = np.arange(len(contents))
        batch = make_batch(reader, samples, gap=3 * reader.alignment)
        batch.buffer[:] = _GUARD
        reader.read(batch, 0)
        outside = np.ones(batch.buffer.size, bool)
        for start, size in zip(batch.offsets.tolist(), batch.sizes.tolist(), strict=True):
            outside[start : start + -(-size // reader.alignment) * reader.alignment] = False
        assert outside.any()
        assert (batch.buffer[outside] == _GUARD).all()

    def test_alignment_and_lanes_are_sound(self, reader: Reader) -> None:
        assert reader.alignment > 0
        assert reader.alignment & (reader.alignment - 1) == 0
        assert reader.lanes >= 1

    @pytest.mark.parametrize("nbytes", [0, 1, 4097, 5 << 20])
    def test_allocate_gives_aligned_memory_that_can_be_written(
        self, reader: Reader, nbytes: int
    ) -> None:
        buffer = reader.allocate(nbytes)
        assert buffer.ndim == 1
        assert buffer.dtype == np.dtype(np.uint8)
        assert buffer.size >= nbytes
        assert buffer.ctypes.data % reader.alignment == 0
        buffer[:] = _GUARD
        assert (buffer == _GUARD).all()

    def test_all_lanes_read_at_once(self, reader: Reader, contents: list[bytes]) -> None:
        samples = [
            np.random.default_rng(lane).integers(0, len(contents), 50)
            for lane in range(reader.lanes)
        ]
        barrier = threading.Barrier(reader.lanes)

        def run(lane: int) -> list[list[bytes]]:
            barrier.wait()
            return [read(reader, samples[lane], lane=lane) for _ in range(5)]

        with ThreadPoolExecutor(reader.lanes) as threads:
            for lane, results in enumerate(threads.map(run, range(reader.lanes))):
                assert results == [[contents[sample] for sample in samples[lane]]] * 5

    def test_closing_twice_is_fine(self, catalog: Catalog) -> None:
        reader = self.open(catalog)
        read(reader, np.array([3]))
        reader.close()
        reader.close()

    def test_nothing_is_left_of_many_batches(self, reader: Reader, contents: list[bytes]) -> None:
        def run(batches: int) -> None:
            for number in range(batches):
                if number % 8 == 0:
                    buffer = reader.allocate(8 * max(reader.alignment, 1 << 13))
                    buffer[:] = _GUARD  # memory that was never written to takes none
                samples = np.arange(number % 3, 8)
                assert read(reader, samples, buffer=buffer) == contents[number % 3 : 8]

        run(100)  # caches are filled
        with nothing_is_left():
            run(self.batches)

    def test_nothing_is_left_of_closed_readers(
        self, catalog: Catalog, contents: list[bytes]
    ) -> None:
        def run(openings: int, samples: IntArray) -> None:
            for _ in range(openings):
                with self.open(catalog) as reader:
                    assert read(reader, samples) == [contents[sample] for sample in samples]

        run(3, np.arange(len(contents)))  # what a library opens once and for all is not counted
        with nothing_is_left():
            run(self.openings, np.arange(8))

    # One that comes in a destructor is told, and nothing is interrupted.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_ctrl_c_leaves_nothing_under_way(self, reader: Reader, contents: list[bytes]) -> None:
        samples = np.tile(np.arange(12), 4)
        expected = [contents[sample] for sample in samples]
        batch = make_batch(reader, samples)
        seconds = min(timeit.repeat(lambda: reader.read(batch, 0), number=1, repeat=3))
        interrupted = 0
        for moment in np.random.default_rng(9).uniform(0, seconds, self.interrupts):
            if _is_interrupted(lambda: reader.read(batch, 0), moment):
                interrupted += 1
                batch.buffer[:] = _GUARD
                time.sleep(0.001)
                assert (batch.buffer == _GUARD).all()
            assert read(reader, samples) == expected
        assert interrupted

    def test_files_are_opened_for_reading_only(
        self, catalog: Catalog, contents: list[bytes]
    ) -> None:
        with _watching(os.path.dirname(catalog.path(0))) as events:
            with self.open(catalog) as reader:
                read(reader, np.arange(len(contents)))
            assert not events() & (_IN_MODIFY | _IN_CLOSE_WRITE)

    def test_an_unknown_option_is_refused(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            backend = type(reader)
        with pytest.raises(TypeError, match="no_such_option"):
            backend(catalog, no_such_option=1)  # type: ignore[call-arg]


class ReaderTests(SnapshotReaderTests):
    """Every promise of `dali_storage.reader`."""

    def test_a_missing_file_is_named(self, catalog: Catalog, contents: list[bytes]) -> None:
        with self.open(catalog) as reader:
            os.unlink(catalog.path(4))
            self.fails(reader, catalog, 4, errno.ENOENT)
            self.others_are_right(reader, contents, broken=4)

    def test_a_file_that_goes_missing_after_it_was_sized_is_named(
        self, catalog: Catalog, contents: list[bytes]
    ) -> None:
        with self.open(catalog) as reader:
            batch = make_known_batch(reader, np.array([2, 4, 6]))
            os.unlink(catalog.path(4))
            with pytest.raises(OSError) as caught:
                reader.read(batch, 0)
            assert _names(caught.value, catalog.path(4))
            self.others_are_right(reader, contents, broken=4)

    def test_the_first_failing_sample_of_a_batch_is_named(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            batch = make_known_batch(reader, np.array([2, 9, 4, 6]))
            os.unlink(catalog.path(9))
            os.unlink(catalog.path(4))
            with pytest.raises(OSError) as caught:
                reader.read(batch, 0)
            assert _names(caught.value, catalog.path(9))

    def test_a_directory_in_place_of_a_file_is_named(
        self, catalog: Catalog, contents: list[bytes]
    ) -> None:
        with self.open(catalog) as reader:
            batch = make_known_batch(reader, np.array([2, 4, 6]))
            os.unlink(catalog.path(4))
            os.mkdir(catalog.path(4))
            with pytest.raises(IsADirectoryError) as caught:
                reader.read(batch, 0)
            assert _names(caught.value, catalog.path(4))
            self.others_are_right(reader, contents, broken=4)

    @pytest.mark.parametrize("new_size", [0, 1, 4095, 4096, 4097, 8192, 70000])
    def test_a_changed_size_is_told_and_then_known(
        self, catalog: Catalog, contents: list[bytes], new_size: int
    ) -> None:
        changed = 6 if new_size != len(contents[6]) else 7
        with self.open(catalog) as reader:
            batch = make_known_batch(reader, np.array([2, changed, 4]))
            content = bytes(range(1, 252)) * 300
            Path(os.fsdecode(catalog.path(changed))).write_bytes(content[:new_size])
            with pytest.raises(SampleSizeChanged) as caught:
                reader.read(batch, 0)
            assert caught.value.samples.tolist() == [changed]
            assert read(reader, np.array([2, changed, 4])) == [
                contents[2],
                content[:new_size],
                contents[4],
            ]

    def fails(self, reader: Reader, catalog: Catalog, sample: int, number: int) -> None:
        """Reading `sample` raises OSError `number` and names its path."""
        with pytest.raises(OSError) as caught:
            read(reader, np.array([sample]))
        assert caught.value.errno == number
        assert _names(caught.value, catalog.path(sample))

    def others_are_right(self, reader: Reader, contents: list[bytes], broken: int) -> None:
        """Nothing of a failure is left in the reader."""
        samples = np.array([sample for sample in range(len(contents)) if sample != broken])
        assert read(reader, samples) == [contents[sample] for sample in samples]


def _rewrite(path: Path) -> None:
    with open(path, "r+b") as file:  # in place, as long as it was
        file.write(b"other")


def _append(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b"more")


def _replace(path: Path) -> None:
    twin = path.with_name("twin")
    twin.write_bytes(path.read_bytes())
    os.replace(twin, path)


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


class MappedReaderTests(SnapshotReaderTests):
    """The promises about files that change, of a reader that goes by an extent map.

    It gives out the bytes that were mapped or none: whatever was done to a file since is refused.
    `open()` makes the map of the catalog's root as it is then.
    """

    @pytest.mark.parametrize(
        "change",
        [
            *(_rewrite, _append, _replace, _make_directory, os.unlink, os.utime),
            lambda path: os.truncate(path, 5),
            lambda path: os.truncate(path, 0),
        ],
        ids=["rewrite", "append", "replace", "mkdir", "unlink", "touch", "truncate", "empty"],
    )
    @pytest.mark.parametrize("known", [False, True], ids=["at first use", "later"])
    def test_a_file_that_is_changed_is_refused(
        self, catalog: Catalog, contents: list[bytes], change: Callable[[Path], None], known: bool
    ) -> None:
        changed = 6
        with self.open(catalog) as reader:
            if known:
                read(reader, np.arange(len(contents)))
            change(Path(os.fsdecode(catalog.path(changed))))
            for _ in range(2):  # it is not believed the second time
                with pytest.raises(StaleMapError) as caught:
                    read(reader, np.array([2, changed, 4]))
                assert _names(caught.value, catalog.path(changed))
            samples = np.delete(np.arange(len(contents)), changed)
            assert read(reader, samples) == [contents[sample] for sample in samples]

    def test_a_file_that_is_changed_between_its_sizing_and_its_reading_is_refused(
        self, catalog: Catalog
    ) -> None:
        with self.open(catalog) as reader:
            batch = make_batch(reader, np.array([2, 6, 4]))
            _append(Path(os.fsdecode(catalog.path(6))))
            with pytest.raises(StaleMapError) as caught:
                reader.read(batch, 0)
            assert _names(caught.value, catalog.path(6))

    def test_the_first_changed_sample_of_a_batch_is_named(self, catalog: Catalog) -> None:
        with self.open(catalog) as reader:
            for changed in (4, 9):
                _append(Path(os.fsdecode(catalog.path(changed))))
            with pytest.raises(StaleMapError) as caught:
                read(reader, np.array([2, 9, 4, 6]))
            assert _names(caught.value, catalog.path(9))

    def test_a_sample_that_was_not_there_when_it_was_mapped_is_refused(
        self, catalog: Catalog, directory: Path
    ) -> None:
        with self.open(catalog) as reader:
            (directory / "class" / "new").write_bytes(b"bytes")
            grown = from_directory(directory, file_filters="*")
            with pytest.raises(StaleMapError, match="1 of 14 samples are not in the map"):
                self.reopen(reader, grown)

    def reopen(self, reader: Reader, catalog: Catalog) -> Reader:
        """Another reader with the map of `reader`, on `catalog`; overridden by every subclass."""
        raise NotImplementedError


def make_batch(
    reader: Reader,
    samples: IntArray,
    *,
    gap: int = 0,
    buffer: npt.NDArray[np.uint8] | None = None,
) -> Batch:
    """A batch of `samples` with `gap` bytes before each, in a new buffer or in `buffer`."""
    sizes = reader.sizes(samples)
    slots = -(-sizes // reader.alignment) * reader.alignment + gap
    offsets = np.cumsum(slots) - slots + gap
    if buffer is None:
        buffer = reader.allocate(int(slots.sum()) + gap)
    return Batch(samples, sizes, offsets, buffer)


def make_known_batch(reader: Reader, samples: IntArray) -> Batch:
    """The same of samples that have been read before: nothing of them is open any more."""
    read(reader, samples)
    return make_batch(reader, samples)


def read(
    reader: Reader,
    samples: IntArray,
    *,
    lane: int = 0,
    buffer: npt.NDArray[np.uint8] | None = None,
) -> list[bytes]:
    """The bytes of `samples`, sized, laid out and read as a prefetcher would."""
    batch = make_batch(reader, samples, buffer=buffer)
    reader.read(batch, lane)
    ends = batch.offsets + batch.sizes
    pieces = zip(batch.offsets.tolist(), ends.tolist(), strict=True)
    return [batch.buffer[start:end].tobytes() for start, end in pieces]


@contextmanager
def nothing_is_left() -> Iterator[None]:
    """Asserts that there are no more open files, threads and memory afterwards than before."""
    before = _footprint()
    yield
    after = _footprint()
    assert after[0] <= before[0], "files stay open"
    assert after[1] <= before[1], "threads do not end"
    assert after[2] - before[2] < _GROWTH, "memory is not freed"


def _is_interrupted(call: Callable[[], None], seconds: float) -> bool:
    """Whether a Ctrl-C that comes some time after the beginning of a call ends it.

    The signal is the timer's, and does what that of Ctrl-C does.
    """
    handler, timer = signal.signal(signal.SIGALRM, signal.default_int_handler), (0.0, 0.0)
    try:
        timer = signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    finally:  # a time limit of the tests' own may go by the same timer
        signal.signal(signal.SIGALRM, handler or signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    return False


@contextmanager
def _watching(directory: bytes) -> Iterator[Callable[[], int]]:
    """Yields what tells which events, IN_* of inotify(7), the files in a directory have had.

    The kernel says so whatever the system call was; Python's audit hooks know of its own only.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        watch = libc.inotify_add_watch(fd, directory, _IN_MODIFY | _IN_CLOSE_WRITE)
        assert watch >= 0, os.strerror(ctypes.get_errno())

        def events() -> int:
            try:
                queue, seen = os.read(fd, 1 << 16), 0
            except BlockingIOError:
                return 0
            while queue:
                _, mask, _, length = struct.unpack_from("=iIII", queue)
                seen, queue = seen | mask, queue[16 + length :]
            return seen

        yield events
    finally:
        os.close(fd)


def _footprint() -> tuple[int, int, int]:
    """Open files, threads of any language, bytes in memory: of this process."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)  # gives back what is free; it would be some MiB, or none
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has just ended
            names.append(Path("/proc/self/task", task, "comm").read_text())
    # io_uring's are the kernel's own: they come and go, and do not hold anything open.
    threads = sum(not name.startswith("iou-") for name in names)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    return len(os.listdir("/proc/self/fd")), threads, resident


def _names(error: OSError, path: bytes) -> bool:
    return isinstance(error.filename, str) and os.fsencode(error.filename) == path
