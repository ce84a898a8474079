import errno
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dali_storage.backends.linux import aio, engines
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import SampleSizeChanged
from dali_storage.samples.discovery import from_files
from dali_storage.testing import (
    RangeTests,
    ReaderTests,
    fill,
    make_known_batch,
    read,
)
from dali_storage.testing.packing import packed_contents, write_packed
from dali_storage.testing.probes import raises_naming
from tests.kit.file_reading import FileTests, of_reading, write_files, yielding
from tests.kit.mapped import catalog_of
from tests.kit.sandbox import IO_SETUP, IO_URING_SETUP, PREADV2, run_without
from tests.kit.tiers import by_tier


class TestByDefault(RangeTests, ReaderTests):
    batches = by_tier(300, 5_000)
    openings = by_tier(30, 500)

    def open(self, catalog):
        return PythonFileReader(catalog)


@of_reading
class TestAio(RangeTests, ReaderTests):
    batches = by_tier(300, 5_000)

    def open(self, catalog):
        return PythonFileReader(catalog, io="aio")


@of_reading
class TestDirect(RangeTests, ReaderTests):
    def open(self, catalog):
        return PythonFileReader(catalog, direct=True, lanes=3)


@of_reading
class TestPreadv(RangeTests, ReaderTests):
    batches = by_tier(300, 1_500)

    def open(self, catalog):
        return PythonFileReader(catalog, io="preadv")


def test_a_reader_that_opens_for_writing_does_not_pass(one_file):
    class Writing(ReaderTests):
        def open(self, catalog):
            reader = PythonFileReader(catalog)
            reader._files.flags |= os.O_RDWR
            return reader

    with pytest.raises(AssertionError):
        Writing().test_files_are_opened_for_reading_only(one_file)


class TestFiles(FileTests):
    backend = PythonFileReader
    ways: ClassVar[list[dict[str, Any]]] = [
        {"io": "io_uring"},
        {"io": "io_uring", "direct": True},
        {"io": "aio", "copying_lanes": 1},
        {"io": "aio", "direct": True},
        {"io": "preadv", "copying_lanes": 3},
        {"io": "preadv", "direct": True},
    ]
    ways_of_large = ways[:4] + ways[5:]


def test_a_later_file_without_direct_io_is_refused_when_it_is_read(tmp_path):
    (tmp_path / "first").write_bytes(b"first")
    catalog = from_files([str(tmp_path / "first"), "/proc/version"])
    with PythonFileReader(catalog, direct=True) as reader:
        assert read(reader, np.array([0])) == [b"first"]
        with pytest.raises(OSError, match="direct=False"):
            read(reader, np.array([0, 1]))


def test_a_file_replaced_by_a_fifo_does_not_block(one_file, tmp_path):
    with PythonFileReader(one_file) as reader:
        batch = make_known_batch(reader, np.array([0]))
        os.unlink(tmp_path / "file")
        os.mkfifo(tmp_path / "file")
        with pytest.raises(SampleSizeChanged):
            fill(reader, batch)
        with raises_naming(OSError, tmp_path / "file", "not a regular file"):
            reader.sizes(np.array([0]), 0)


@pytest.mark.parametrize(
    ("options", "of_ranges", "words"),
    [
        ({"io": "io_uring"}, True, "is for whole files.*leave out io"),
        ({"io": "mmap", "direct": True}, True, "io='mmap' and direct=True exclude each other"),
        ({"io": "mmap"}, False, "io='mmap' is for containers: .* leave out io"),
    ],
)
def test_options_that_exclude_each_other_are_refused(tmp_path, options, of_ranges, words):
    catalog = catalog_of([tmp_path / "x"], [(0, 0, 1)]) if of_ranges else from_files(["x"])
    with pytest.raises(ValueError, match=words):
        PythonFileReader(catalog, **options)


@pytest.mark.parametrize(("given", "of_ranges"), [(None, 3), (1, 1), (64, 64)])
def test_lanes_copy_ranges_on_all_processors(monkeypatch, given, of_ranges):
    monkeypatch.setattr("dali_storage.backends.python_file.processors", lambda: 3)
    ranges = catalog_of([Path("x")], [(0, 0, 1)])
    for catalog, lanes in ((from_files(["x"]), given), (ranges, of_ranges)):
        with PythonFileReader(catalog, copying_lanes=given) as reader:
            assert (reader.cooperative, reader.copying_lanes) == (True, lanes)


READ = """
import sys
import numpy as np
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.samples.discovery import from_files
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.testing import fill, read

print(f"works: {PythonFileReader.unavailable() is None}")
print(f"the doctor: {[*PythonFileReader.devices()][0].problem}")
for io in (None, "io_uring", "aio", "preadv"):
    try:
        with PythonFileReader(from_files([sys.argv[1]]), io=io) as reader:
            reader.sizes(np.array([0]), 0)
            print(f"{io} reads {read(reader, np.array([0]))[0].decode()} by {reader.io}")
    except BackendUnavailable as error:
        print(f"{io} is refused: {error}")
"""


IOS = "io_uring", "aio", "preadv"
WHY = {
    "io_uring": r"io_uring is refused \({}\); allow io_uring_s.*kernel\.io_uring_disabled=0",
    "aio": r"kernel AIO: io_setup failed \({}\).*seccomp",
    "preadv": r"preadv2 failed \({}\)",
}
SANDBOXES = [  # what is forbidden; by what is read without io, and by each
    ([IO_URING_SETUP], errno.EPERM, ["aio", None, "aio", "preadv"]),
    ([IO_URING_SETUP], errno.ENOSYS, ["aio", None, "aio", "preadv"]),
    ([IO_URING_SETUP + 1], errno.EPERM, ["aio", None, "aio", "preadv"]),  # io_uring_enter
    ([IO_URING_SETUP, IO_SETUP], errno.EPERM, ["preadv", None, None, "preadv"]),
    ([IO_SETUP], errno.EPERM, ["io_uring", "io_uring", None, "preadv"]),
    ([PREADV2], errno.EPERM, ["io_uring", "io_uring", "aio", None]),
    ([IO_URING_SETUP, IO_SETUP, PREADV2], errno.EPERM, [None] * 4),
]


@pytest.mark.parametrize(("calls", "number", "reads"), SANDBOXES)
def test_what_a_sandbox_forbids_is_refused_by_name_and_others_read(one_file, calls, number, reads):
    run = run_without(calls, READ, os.fsdecode(one_file.path(0)), number=number)
    works, doctor, *lines = run.stdout.splitlines()
    assert works == f"works: {any(reads)}", run.stderr
    assert doctor.startswith("the doctor: " + ("None" if reads[1] else "io_uring is refused"))
    for io, by, line in zip((None, *IOS), reads, lines, strict=True):
        if by:
            assert line == f"{io} reads bytes by {by}"
        elif io:
            why = WHY[io].format(os.strerror(number))
            assert re.match(f"{io} is refused: {why}.*or leave out the python-file option io", line)
    slower = "RuntimeWarning: python-file: reading by preadv, which is slower"
    assert run.stderr.count(slower) == (reads[0] == "preadv")
    assert not run.stderr or reads[0] in ("preadv", None)


def forget_pages(path, start):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, start, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize(("old", "new"), [(0, 10), (100, 200), (4096, 8192), (1 << 20, 3 << 20)])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("io", ["io_uring", "aio", "preadv"])
def test_what_was_appended_and_is_not_cached_is_seen(tmp_path, old, new, direct, io):
    content, path = np.random.default_rng(old).bytes(new), tmp_path / "0"
    with PythonFileReader(write_files(tmp_path, [content[:old]]), direct=direct, io=io) as reader:
        batch = make_known_batch(reader, np.array([0]))
        with path.open("ab") as file:
            file.write(content[old:])
        forget_pages(path, -(-old // 4096) * 4096)
        with pytest.raises(SampleSizeChanged):
            fill(reader, batch)
        assert read(reader, np.array([0])) == [content]


@pytest.mark.parametrize("io", ["aio", "preadv"])
def test_a_turn_is_yielded_before_a_range_blocks_and_kept_while_ranges_are_cached(
    tmp_path, io, monkeypatch
):
    (tmp_path / "class").mkdir()
    catalog = write_packed(tmp_path)
    samples, yielded, cached = np.arange(len(catalog)), list[bool](), [True]
    with PythonFileReader(catalog, io=io) as reader:
        whole = reader._engine

        def look(fds, iovecs, starts, rw_flags):
            """Whether pages are cached is the test's business, and not the kernel's."""
            results = whole(fds, iovecs, starts, 0)
            if rw_flags & os.RWF_NOWAIT and not cached[0]:
                results[:] = -errno.EAGAIN
            return results

        assert read(reader, samples, catalog) == packed_contents()  # containers are open from now
        monkeypatch.setattr(reader, "_engine", look)
        for cached[0] in (True, False):
            with yielding(lambda: yielded.append(cached[0])):
                assert read(reader, samples, catalog) == packed_contents()
            assert set(yielded) == ({False} if not cached[0] else set())
    with PythonFileReader(catalog, io=io, direct=True) as reader:
        del yielded[:]
        with yielding(lambda: yielded.append(True)):
            assert read(reader, samples, catalog) == packed_contents()
        assert yielded


@pytest.mark.parametrize("io", ["aio", "preadv"])
@pytest.mark.parametrize("cached", [True, False])
def test_the_beginning_of_a_large_file_is_read_before_the_rest(tmp_path, io, cached, monkeypatch):
    contents, asked = [bytes(range(250)) * 4000, b"small"], list[list[int]]()
    with PythonFileReader(write_files(tmp_path, contents), io=io) as reader:
        whole = reader._engine

        def look(fds, iovecs, starts, rw_flags):
            asked.append(iovecs["len"].sum(axis=1).tolist())
            if rw_flags & os.RWF_NOWAIT and not cached:
                return np.full(len(fds), -errno.EAGAIN)
            return whole(fds, iovecs, starts, 0)

        monkeypatch.setattr(reader, "_engine", look)
        assert read(reader, np.arange(2)) == contents
    every = [1_000_001, 6]  # the sizes and one byte
    assert asked == [[16384], *([[983_617, 6]] if cached else [[6], every])]


def test_files_are_read_by_a_kernel_without_huge_pages(one_file, monkeypatch):
    monkeypatch.setattr("mmap.MADV_HUGEPAGE", 1_000_000)  # EINVAL
    with PythonFileReader(one_file) as reader:
        assert read(reader, np.array([0])) == [b"bytes"]


class Stunted:
    """Reads no more than 1000 bytes at once, and fails where there is a bad sector."""

    bad = 10**9

    @classmethod
    def read(cls, whole, fds, iovecs, offsets, rw_flags=0):
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
def stunted_io(request, monkeypatch):
    """An `io` whose reads are stunted."""
    by_aio, by_preadv = aio.read, engines.preadv

    def read_by_aio(depth, *arguments):
        return Stunted.read(partial(by_aio, depth), *arguments)

    monkeypatch.setattr(aio, "read", read_by_aio)
    monkeypatch.setattr(engines, "preadv", partial(Stunted.read, by_preadv))
    return request.param


def test_a_short_read_is_continued(tmp_path, stunted_io):
    contents = [os.urandom(size) for size in (0, 999, 1000, 1001, 4096, 9999)]
    with PythonFileReader(write_files(tmp_path, contents), io=stunted_io) as reader:
        assert read(reader, np.arange(6)) == contents


def test_a_bad_sector_in_mid_file_is_an_error_and_not_a_change_of_size(
    tmp_path, monkeypatch, stunted_io
):
    monkeypatch.setattr(Stunted, "bad", 3000)
    with PythonFileReader(write_files(tmp_path, [bytes(9999)]), io=stunted_io) as reader:
        with raises_naming(OSError, tmp_path / "0") as caught:
            read(reader, np.array([0]))
        assert caught.value.errno == errno.EIO
