from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from dali_storage.backends.files import opening as _files
from dali_storage.backends.linux import aio, libc
from dali_storage.backends.memory import MemoryReader
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.catalog import Catalog
from dali_storage.discovery import from_directory, from_files
from dali_storage.errors import SampleSizeChanged
from dali_storage.reader import Reader
from dali_storage.testing import (
    ReaderTests,
    SnapshotReaderTests,
    make_batch,
    make_known_batch,
    read,
)

from .interrupts import LosesNoFiles, interrupted


class TestMemory(SnapshotReaderTests):
    batches = 10_000
    openings = 1_000

    def open(self, catalog: Catalog) -> Reader:
        return MemoryReader(catalog)

    def test_a_missing_file_is_named_when_it_is_opened(self, catalog: Catalog) -> None:
        os.unlink(catalog.path(3))
        with pytest.raises(FileNotFoundError) as caught:
            MemoryReader(catalog)
        assert os.fsencode(caught.value.filename) == catalog.path(3)


class TestPythonFile(LosesNoFiles, ReaderTests):
    batches = 10_000
    openings = 20  # the kernel takes 33 ms to end an AIO context

    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog)


class TestPythonFileOneLane(LosesNoFiles, ReaderTests):
    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog, lanes=1)


class TestPythonFileDirect(LosesNoFiles, ReaderTests):
    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog, direct=True, lanes=3)


def test_a_reader_that_opens_for_writing_does_not_pass(tmp_path: Path) -> None:
    class Writing(ReaderTests):
        def open(self, catalog: Catalog) -> Reader:
            reader = PythonFileReader(catalog)
            reader._files.flags |= os.O_RDWR
            return reader

    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "file").write_bytes(b"bytes")
    catalog = from_directory(tmp_path, file_filters="*")
    with pytest.raises(AssertionError):
        Writing().test_files_are_opened_for_reading_only(catalog, [b"bytes"])


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping the page cache needs root: run as root")
@pytest.mark.parametrize("direct", [False, True])
def test_files_that_are_not_in_the_page_cache_are_read_right(tmp_path: Path, direct: bool) -> None:
    (tmp_path / "class").mkdir()
    contents = [np.random.default_rng(index).bytes(1 + 37_501 * index) for index in range(40)]
    for index, content in enumerate(contents):
        (tmp_path / "class" / f"{index:02d}").write_bytes(content)
    with PythonFileReader(from_directory(tmp_path, file_filters="*"), direct=direct) as reader:
        drop_caches()
        assert read(reader, np.arange(40)) == contents
        drop_caches()
        for index in range(0, 40, 3):  # some cached whole, some in part, some not at all
            with open(tmp_path / "class" / f"{index:02d}", "rb") as file:
                file.read(len(contents[index]) if index % 2 else 5000)
        assert read(reader, np.arange(40)) == contents


def test_a_file_system_without_direct_io_is_refused_at_opening() -> None:
    with pytest.raises(OSError, match="direct=False") as caught:
        PythonFileReader(from_files(["/proc/version"]), direct=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EINVAL, "/proc/version")


def test_a_later_file_without_direct_io_is_refused_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "first").write_bytes(b"first")
    catalog = from_files([str(tmp_path / "first"), "/proc/version"])
    with PythonFileReader(catalog, direct=True) as reader:
        assert read(reader, np.array([0])) == [b"first"]
        with pytest.raises(OSError, match="direct=False"):
            read(reader, np.array([0, 1]))


def test_what_is_not_a_regular_file_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with PythonFileReader(from_files([str(tmp_path / "fifo")])) as reader:
        with pytest.raises(OSError, match="not a regular file") as caught:
            read(reader, np.array([0]))
        assert caught.value.filename == str(tmp_path / "fifo")


def test_a_file_replaced_by_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        batch = make_known_batch(reader, np.array([0]))
        os.unlink(tmp_path / "file")
        os.mkfifo(tmp_path / "file")
        with pytest.raises(SampleSizeChanged):
            reader.read(batch, 0)
        with pytest.raises(OSError, match="not a regular file"):
            reader.sizes(np.array([0]))


def test_a_batch_of_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        assert read(reader, np.zeros(5000, np.int64)) == [b"bytes"] * 5000


@pytest.mark.parametrize("options", [{"lanes": 0}, {"lanes": 65}, {"lanes": 1.5}, {"lanes": "2"}])
def test_wrong_lanes_are_named(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="lanes"):
        PythonFileReader(from_files(["x"]), **options)  # type: ignore[arg-type]


def test_a_wrong_direct_is_named() -> None:
    with pytest.raises(TypeError, match="direct"):
        PythonFileReader(from_files(["x"]), direct="yes")  # type: ignore[arg-type]


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/class"
    os.mkdir(folder)
    with open(folder + b"/\xff\xfe.jpg", "wb") as file:
        file.write(b"bytes")
    with PythonFileReader(from_directory(tmp_path)) as reader:
        assert read(reader, np.array([0])) == [b"bytes"]
        os.unlink(folder + b"/\xff\xfe.jpg")
        with pytest.raises(FileNotFoundError) as caught:
            read(reader, np.array([0]))
        assert os.fsencode(caught.value.filename) == folder + b"/\xff\xfe.jpg"


def forget_pages(path: Path, start: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, start, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize(("old", "new"), [(0, 10), (100, 200), (4096, 8192), (65536, 131072)])
@pytest.mark.parametrize("direct", [False, True])
def test_what_was_appended_and_is_not_cached_is_seen(
    tmp_path: Path, old: int, new: int, direct: bool
) -> None:
    content = np.random.default_rng(old).bytes(new)
    (tmp_path / "file").write_bytes(content[:old])
    with PythonFileReader(from_files([str(tmp_path / "file")]), direct=direct) as reader:
        batch = make_known_batch(reader, np.array([0]))
        with open(tmp_path / "file", "ab") as file:
            file.write(content[old:])
        forget_pages(tmp_path / "file", -(-old // 4096) * 4096)
        with pytest.raises(SampleSizeChanged):
            reader.read(batch, 0)
        assert read(reader, np.array([0])) == [content]


@pytest.mark.parametrize("direct", [False, True])
def test_a_file_larger_than_one_read_can_be(tmp_path: Path, direct: bool) -> None:
    size = (2 << 30) + 4096 + 17  # a read gives 2 GiB - 4 KiB at most
    with open(tmp_path / "file", "wb") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"right")
    with PythonFileReader(from_files([str(tmp_path / "file")]), direct=direct) as reader:
        batch = make_batch(reader, np.array([0]))
        reader.read(batch, 0)
        assert batch.buffer[size - 5 : size].tobytes() == b"right"
        assert not batch.buffer[: 1 << 20].any()


class StuntedAio:
    """Reads no more than 1000 bytes at once, and fails where there is a bad sector."""

    bad = 10**9
    whole = staticmethod(aio.read)

    @classmethod
    def read(  # type: ignore[no-untyped-def]
        cls, depth, fds, iovecs, offsets, rw_flags=0
    ):
        results = np.zeros(len(offsets), np.int64)
        for place, fd in enumerate(np.asarray(fds).tolist()):
            if offsets[place] >= cls.bad:
                results[place] = -errno.EIO
            elif not rw_flags & os.RWF_NOWAIT:
                short = iovecs[place : place + 1, :1].copy()
                short["len"] = np.minimum(short["len"], 1000)
                if not short["len"].any():
                    short = iovecs[place : place + 1]
                results[place] = cls.whole(depth, [fd], short, [offsets[place]])[0]
        return results


@pytest.fixture
def stunted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dali_storage.backends.linux.aio.read", StuntedAio.read)


@pytest.mark.usefixtures("stunted")
def test_short_reads_are_gone_on_with(tmp_path: Path) -> None:
    contents = [
        np.random.default_rng(size).bytes(size) for size in (0, 999, 1000, 1001, 4096, 9999)
    ]
    for index, content in enumerate(contents):
        (tmp_path / f"{index}").write_bytes(content)
    with PythonFileReader(from_files([f"{tmp_path}/{index}" for index in range(6)])) as reader:
        assert read(reader, np.arange(6)) == contents


@pytest.mark.usefixtures("stunted")
def test_a_bad_sector_in_mid_file_is_an_error_and_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(9999))
    monkeypatch.setattr(StuntedAio, "bad", 3000)
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        with pytest.raises(OSError) as caught:
            read(reader, np.array([0]))
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "file"))


def test_a_size_that_another_lane_finds_changed_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * 100)
    with PythonFileReader(from_files([str(tmp_path / "a"), str(tmp_path / "b")])) as reader:
        read(reader, np.array([0]))

        def meanwhile(fds: list[int], paths: list[bytes], local: bool) -> np.ndarray:
            reader._files.forget(np.array([0]))  # as read() in another lane does
            monkeypatch.undo()
            return _files.regular_sizes(fds, paths, local)

        monkeypatch.setattr("dali_storage.backends.files.samples.regular_sizes", meanwhile)
        assert reader.sizes(np.array([0, 1])).tolist() == [100, 100]


def test_files_that_are_not_on_a_local_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, nothing is called with the interpreter lock held."""
    assert _files.is_local(os.fsencode(tmp_path))
    assert not _files.is_local(b"/proc")
    assert not _files.is_local(b"/no/such/directory")
    monkeypatch.setattr(_files, "_LOCAL", frozenset())
    monkeypatch.setattr(libc, "openat2_with_gil", None)
    monkeypatch.setattr(libc, "statx_with_gil", None)
    contents = [bytes([index]) * 5000 * index for index in range(5)]
    for index, content in enumerate(contents):
        (tmp_path / f"{index}").write_bytes(content)
    with PythonFileReader(from_files([f"{tmp_path}/{index}" for index in range(5)])) as reader:
        assert read(reader, np.arange(5)) == contents
        assert read(reader, np.arange(5)) == contents


def test_a_kernel_without_openat2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    monkeypatch.setattr(_files, "_OPENAT2", 100_000)  # ENOSYS
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        assert read(reader, np.array([0, 0])) == [b"bytes"] * 2


def test_a_kernel_without_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmap.MADV_HUGEPAGE", 1_000_000)  # EINVAL
    (tmp_path / "file").write_bytes(b"bytes")
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        assert read(reader, np.array([0])) == [b"bytes"]


def test_those_are_closed_that_are_to_be() -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    before, still_open = len(os.listdir("/proc/self/fd")), set(fds)
    for closed in ([], [-1, -1], [fds[3]], [fds[0], -1, fds[7], fds[1], fds[5]]):
        _files.close_all(closed)
        still_open -= set(closed)
        assert {fd for fd in fds if os.path.lexists(f"/proc/self/fd/{fd}")} == still_open
        assert len(os.listdir("/proc/self/fd")) == before - len(fds) + len(still_open)
    _files.close_all(still_open)


@pytest.mark.parametrize("point", range(1, 20))
def test_ctrl_c_leaves_none_open_of_those_that_are_to_be_closed(point: int) -> None:
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(8)]
    with contextlib.suppress(KeyboardInterrupt), interrupted(_files.close_all, point):
        _files.close_all([-1, *fds[:3], *fds[5:]])
    still_open = [fd for fd in fds if os.path.lexists(f"/proc/self/fd/{fd}")]
    _files.close_all(still_open)
    assert still_open == fds[3:5]


def test_an_open_file_that_cannot_be_sized_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught:
        _files.regular_sizes([1_000_000], [b"the/path"], local=True)
    assert (caught.value.errno, caught.value.filename) == (errno.EBADF, "the/path")
