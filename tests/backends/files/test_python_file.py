from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.backends.linux import aio, preadv
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import SampleSizeChanged
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.reader import Reader
from dali_storage.samples.discovery import from_directory, from_files
from dali_storage.testing import (
    RangeTests,
    ReaderTests,
    fill,
    make_batch,
    make_known_batch,
    read,
)
from dali_storage.testing.packing import packed_contents, write_packed
from tests.kit.dali import build, take
from tests.kit.sandbox import IO_SETUP, PREADV2, run_without
from tests.kit.trees import Tree


class TestAio(RangeTests, ReaderTests):
    batches = 5_000
    openings = 500

    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog)


class TestOneLane(RangeTests, ReaderTests):
    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog, lanes=1)


class TestDirect(RangeTests, ReaderTests):
    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog, direct=True, lanes=3)


class TestPreadv(RangeTests, ReaderTests):
    batches = 1_500

    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog, io="preadv")


class TestPreadvDirect(RangeTests, ReaderTests):
    def open(self, catalog: Catalog) -> Reader:
        return PythonFileReader(catalog, io="preadv", direct=True)


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
        Writing().test_files_are_opened_for_reading_only(catalog)


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


@pytest.mark.skipif(os.geteuid() != 0, reason="dropping the page cache needs root: run as root")
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("io", ["aio", "preadv"])
def test_files_that_are_not_in_the_page_cache_are_read_right(
    tmp_path: Path, direct: bool, io: Any
) -> None:
    (tmp_path / "class").mkdir()
    contents = [np.random.default_rng(index).bytes(1 + 37_501 * index) for index in range(40)]
    for index, content in enumerate(contents):
        (tmp_path / "class" / f"{index:02d}").write_bytes(content)
    catalog = from_directory(tmp_path, file_filters="*")
    with PythonFileReader(catalog, direct=direct, io=io) as reader:
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


def test_what_is_not_a_regular_file_is_named_without_blocking(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with PythonFileReader(from_files([str(tmp_path / "fifo")])) as reader:
        with pytest.raises(OSError, match="not a regular file") as caught:
            read(reader, np.array([0]))
        assert caught.value.filename == str(tmp_path / "fifo")


def test_a_file_replaced_by_a_fifo_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        batch = make_known_batch(reader, np.array([0]))
        os.unlink(tmp_path / "file")
        os.mkfifo(tmp_path / "file")
        with pytest.raises(SampleSizeChanged):
            fill(reader, batch)
        with pytest.raises(OSError, match="not a regular file"):
            reader.sizes(np.array([0]), 0)


def test_a_batch_of_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        assert read(reader, np.zeros(5000, np.int64)) == [b"bytes"] * 5000


@pytest.mark.parametrize("option", ["lanes", "copying_lanes"])
@pytest.mark.parametrize("value", [0, 65, 1.5, "2", True])
def test_a_wrong_number_of_lanes_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"python-file: {option} must be"):
        PythonFileReader(from_files(["x"]), **{option: value})  # type: ignore[arg-type]


def test_a_wrong_direct_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="python-file: direct must be"):
        PythonFileReader(from_files(["x"]), direct="yes")  # type: ignore[arg-type]


def test_a_wrong_io_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="python-file: io must be one of aio, preadv, not 'mmap'"):
        PythonFileReader(from_files(["x"]), io="mmap")  # type: ignore[arg-type]


@pytest.mark.parametrize("copying_lanes", [None, 1, 64])
def test_copying_lanes_are_for_the_prefetcher(copying_lanes: int | None) -> None:
    with PythonFileReader(from_files(["x"]), copying_lanes=copying_lanes) as reader:
        assert reader.cooperative
        assert reader.copying_lanes == copying_lanes


@pytest.mark.parametrize(("copying_lanes", "expected"), [(None, 3), (1, 1), (64, 64)])
def test_lanes_copy_ranges_on_all_processors(
    monkeypatch: pytest.MonkeyPatch, copying_lanes: int | None, expected: int
) -> None:
    monkeypatch.setattr("dali_storage.backends.python_file.processors", lambda: 3)
    ranges = Ranges.of_columns(np.array([0]), np.array([0]), np.array([1]))
    catalog = replace(Catalog.from_names([b"x"], []), ranges=ranges)
    with PythonFileReader(catalog, copying_lanes=copying_lanes) as reader:
        assert reader.copying_lanes == expected


READ = """
import sys
import numpy as np
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.samples.discovery import from_files
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import fill, read

print(f"works: {PythonFileReader.unavailable() is None}")
for io in (None, "aio", "preadv"):
    try:
        with PythonFileReader(from_files([sys.argv[1]]), io=io) as reader:
            print(f"{io} reads {read(reader, np.array([0]))[0].decode()} by {reader.io}")
    except BackendUnavailable as error:
        print(f"{io} is refused: {error}")
"""


def test_without_kernel_aio_preadv_reads_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    run = run_without([IO_SETUP], READ, tmp_path / "file")
    lines = run.stdout.splitlines()
    assert lines[:2] == ["works: True", "None reads bytes by preadv"], run.stderr
    assert "aio is refused: kernel AIO: io_setup failed (Operation not permitted)" in lines[2]
    assert "seccomp" in lines[2]
    assert lines[2].endswith("or use the python-file option io='preadv'")
    assert lines[3:] == ["preadv reads bytes by preadv"]
    assert run.stderr.count("RuntimeWarning: python-file: reading by preadv, which is slower") == 1


def test_without_preadv_kernel_aio_reads(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    run = run_without([PREADV2], READ, tmp_path / "file")
    lines = run.stdout.splitlines()
    assert lines[:3] == ["works: True", "None reads bytes by aio", "aio reads bytes by aio"]
    assert lines[3].startswith("preadv is refused: preadv2 failed (Operation not permitted)")
    assert lines[3].endswith("or use the python-file option io='aio'")
    assert run.stderr == ""


def test_without_either_the_backend_is_unavailable(tmp_path: Path) -> None:
    run = run_without([IO_SETUP, PREADV2], READ, tmp_path / "file")
    lines = run.stdout.splitlines()
    assert lines[0] == "works: False", run.stderr
    assert [" is refused: " in line for line in lines[1:]] == [True] * 3


def aio_contexts() -> int:
    """How many contexts of kernel AIO this process has: each has a ring that is mapped."""
    return Path("/proc/self/maps").read_text().count("[aio]")


def test_a_thousand_open_readers_share_the_contexts_of_those_that_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    catalog = from_files([str(tmp_path / "file")])
    before = aio_contexts()
    readers = [PythonFileReader(catalog, io="aio", lanes=3) for _ in range(1000)]
    for reader in readers:
        for lane in range(3):
            assert read(reader, np.array([0]), lane=lane) == [b"bytes"]
    assert aio_contexts() <= before + 1
    start = time.monotonic()
    for reader in readers:
        reader.close()
    assert (time.monotonic() - start) / len(readers) < 0.005  # to destroy a context takes 30 ms


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
@pytest.mark.parametrize("io", ["aio", "preadv"])
def test_what_was_appended_and_is_not_cached_is_seen(
    tmp_path: Path, old: int, new: int, direct: bool, io: Any
) -> None:
    content = np.random.default_rng(old).bytes(new)
    (tmp_path / "file").write_bytes(content[:old])
    with PythonFileReader(from_files([str(tmp_path / "file")]), direct=direct, io=io) as reader:
        batch = make_known_batch(reader, np.array([0]))
        with open(tmp_path / "file", "ab") as file:
            file.write(content[old:])
        forget_pages(tmp_path / "file", -(-old // 4096) * 4096)
        with pytest.raises(SampleSizeChanged):
            fill(reader, batch)
        assert read(reader, np.array([0])) == [content]


@pytest.mark.parametrize(("io", "direct"), [("aio", False), ("aio", True), ("preadv", True)])
def test_a_file_larger_than_one_read_can_be(tmp_path: Path, io: Any, direct: bool) -> None:
    size = (2 << 30) + 4096 + 17  # a read gives 2 GiB - 4 KiB at most
    with open(tmp_path / "file", "wb") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"right")
    with PythonFileReader(from_files([str(tmp_path / "file")]), direct=direct, io=io) as reader:
        batch = make_batch(reader, np.array([0]))
        fill(reader, batch)
        assert batch.buffer[size - 5 : size].tobytes() == b"right"
        assert not batch.buffer[: 1 << 20].any()


@pytest.mark.parametrize("io", ["aio", "preadv"])
def test_a_turn_is_yielded_before_a_range_blocks_and_kept_while_ranges_are_cached(
    tmp_path: Path, io: Any
) -> None:
    (tmp_path / "class").mkdir()
    catalog = write_packed(tmp_path)
    yielded: list[int] = []
    with PythonFileReader(catalog, io=io) as reader:
        reader.yield_turn = lambda: yielded.append(1)
        samples = np.arange(len(catalog))
        assert read(reader, samples, catalog) == packed_contents()
        del yielded[:]  # a container may have blocked to be opened
        assert read(reader, samples, catalog) == packed_contents()
        assert not yielded
        forget_pages(Path(os.fsdecode(catalog.path(12))), 1 << 20)
        assert read(reader, samples, catalog) == packed_contents()
        assert yielded
    with PythonFileReader(catalog, io=io, direct=True) as reader:
        reader.yield_turn = lambda: yielded.append(2)
        assert read(reader, samples, catalog) == packed_contents()
        assert 2 in yielded


def test_a_kernel_without_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mmap.MADV_HUGEPAGE", 1_000_000)  # EINVAL
    (tmp_path / "file").write_bytes(b"bytes")
    with PythonFileReader(from_files([str(tmp_path / "file")])) as reader:
        assert read(reader, np.array([0])) == [b"bytes"]


class Stunted:
    """Reads no more than 1000 bytes at once, and fails where there is a bad sector."""

    bad = 10**9

    @classmethod
    def read(cls, whole, fds, iovecs, offsets, rw_flags=0):  # type: ignore[no-untyped-def]
        results = np.zeros(len(offsets), np.int64)
        for index, fd in enumerate(np.asarray(fds).tolist()):
            if offsets[index] >= cls.bad:
                results[index] = -errno.EIO
            elif not rw_flags & os.RWF_NOWAIT:
                short = iovecs[index : index + 1, :1].copy()
                short["len"] = np.minimum(short["len"], 1000)
                if not short["len"].any():
                    short = iovecs[index : index + 1]
                results[index] = whole([fd], short, [offsets[index]])[0]
        return results


@pytest.fixture(params=["aio", "preadv"])
def stunted_io(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An `io` whose reads are stunted."""
    by_aio, by_preadv = aio.read, preadv.read

    def read_by_aio(depth: int, *arguments: Any) -> Any:
        return Stunted.read(partial(by_aio, depth), *arguments)

    monkeypatch.setattr(aio, "read", read_by_aio)
    monkeypatch.setattr(preadv, "read", partial(Stunted.read, by_preadv))
    return request.param


def test_a_short_read_is_continued(tmp_path: Path, stunted_io: Any) -> None:
    contents = [
        np.random.default_rng(size).bytes(size) for size in (0, 999, 1000, 1001, 4096, 9999)
    ]
    for index, content in enumerate(contents):
        (tmp_path / f"{index}").write_bytes(content)
    with PythonFileReader(
        from_files([f"{tmp_path}/{index}" for index in range(6)]), io=stunted_io
    ) as reader:
        assert read(reader, np.arange(6)) == contents


def test_a_bad_sector_in_mid_file_is_an_error_and_not_a_change_of_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stunted_io: Any
) -> None:
    (tmp_path / "file").write_bytes(bytes(9999))
    monkeypatch.setattr(Stunted, "bad", 3000)
    with PythonFileReader(from_files([str(tmp_path / "file")]), io=stunted_io) as reader:
        with pytest.raises(OSError) as caught:
            read(reader, np.array([0]))
        assert (caught.value.errno, caught.value.filename) == (errno.EIO, str(tmp_path / "file"))


@pytest.mark.parametrize("io", ["aio", "preadv"])
@pytest.mark.parametrize("copying_lanes", [None, 1, 3])
def test_a_pipeline_gets_the_samples_of_dali_in_its_order(
    tree: Tree, io: str, copying_lanes: int | None
) -> None:
    arguments = {"file_root": str(tree(60)), "random_shuffle": True, "seed": 5, "name": "Reader"}
    options = {"io": io, "copying_lanes": copying_lanes}
    ours = build(readers.file, backend="python-file", backend_options=options, **arguments)
    dali = build(fn.readers.file, dont_use_mmap=True, **arguments)  # by mmap it refuses empty files
    assert take(ours, 40) == take(dali, 40)
