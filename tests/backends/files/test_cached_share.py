"""By default: what of a data set is read through the page cache, and what around it."""

import ctypes
import errno
import mmap
import os
from dataclasses import replace

import numpy as np
import pytest

from dali_storage import readers
from dali_storage.backends.files import containers, opening, samples
from dali_storage.backends.files.samples import SampleFiles
from dali_storage.backends.linux import aio
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import ContainerChangedError
from dali_storage.contract.options import Choice
from dali_storage.contract.ranges import Ranges
from dali_storage.samples.discovery import from_files
from dali_storage.testing import RangeTests, ReaderTests, read
from dali_storage.testing.probes import raises_naming
from tests.kit.dali import pipeline_of
from tests.kit.devices import evict
from tests.kit.file_reading import of_reading
from tests.kit.mapped import catalog_of

MANY = 10_000_000


@pytest.fixture
def disk(monkeypatch):
    """Sets the bytes that are used on a local disk, and the memory for the page cache."""

    def set_to(used, memory):
        monkeypatch.setattr(opening, "used_bytes", lambda directory: used)
        monkeypatch.setattr(samples, "cache_memory", lambda: memory)

    return set_to


@pytest.fixture
def half(disk, monkeypatch):
    """Half of every data set is cached, of containers every other 4 KiB or so."""
    disk(1 << 50, 0)
    monkeypatch.setattr(samples, "cached_share", lambda nbytes, memory: Choice(0.5, "half"))
    monkeypatch.setattr(samples, "_REGION", 12)


def files_of(directory, sizes):
    names = [f"{number:04}" for number in range(len(sizes))]
    for name, size in zip(names, sizes, strict=True):
        if size is not None:
            (directory / name).write_bytes(os.urandom(size))
    return from_files([str(directory / name) for name in names])


@of_reading
@pytest.mark.usefixtures("half")
class TestHalfCached(RangeTests, ReaderTests):
    def open(self, catalog):
        return PythonFileReader(catalog)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.usefixtures("half")
def test_the_share_stays_in_the_page_cache_and_the_rest_does_not_come_there(tmp_path, whole):
    catalog = files_of(tmp_path, [70_000] * 64)
    if not whole:
        starts = np.tile(np.array([0, 1 << 16]), 64)
        ranges = Ranges.of_columns(np.arange(128) // 2, starts, np.full(128, 4096))
        catalog = replace(catalog, ranges=ranges)
    paths = [tmp_path / f"{number:04}" for number in range(64)]
    evict(paths)
    if any(is_cached(path, 0) for path in paths):
        pytest.skip(
            "the page cache of this file system cannot be emptied: use a disk for --basetemp"
        )
    with PythonFileReader(catalog) as reader:
        every = np.arange(len(catalog))
        read(reader, every, catalog)
        files, starts = catalog.files(every), catalog.starts(every)
        chosen = reader._files.cached(files, starts)
        places = zip(files.tolist(), starts.tolist(), strict=True)
        cached = np.array([is_cached(paths[file], start) for file, start in places])
    assert 0.4 < chosen.mean() < 0.6
    assert cached[chosen].all()
    # The kernel may read pages beside a cached one ahead.
    assert {*files[cached].tolist()} == {*files[chosen].tolist()} < {*range(64)}


def is_cached(path, start):
    # Not by RWF_NOWAIT, which starts readahead.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as memory:
        page = np.zeros(1, np.uint8)
        view = np.frombuffer(memory, np.uint8)
        address = view.ctypes.data + start
        assert (
            ctypes.CDLL(None).mincore(*map(ctypes.c_void_p, (address, 4096, page.ctypes.data))) == 0
        )
        del view
        return bool(page[0] & 1)


@pytest.mark.parametrize("starts", [None, np.arange(10_000) << 20])
def test_shares_are_nested_even_and_the_same_everywhere(disk, monkeypatch, starts):
    files, before = np.zeros(10_000, np.int64), np.zeros(10_000, bool)
    files = np.arange(10_000) if starts is None else np.full(10_000, 3)
    for share in (0.0, 0.01, 0.3, 0.6, 0.99):
        disk(1 << 50, 1)
        monkeypatch.setattr(samples, "cached_share", lambda *_, it=share: Choice(it, ""))
        cached = SampleFiles(from_files([__file__]), direct=None).cached(files, starts)
        assert (cached >= before).all()
        assert abs(cached.reshape(10, -1).mean(axis=1) - share).max() < 0.01
        before = cached


@pytest.mark.parametrize(
    ("nbytes", "memory", "share", "why"),
    [
        (
            150 * 10**9,
            102 * 10**9,
            0.408,
            "150 GB, is larger than the memory that may hold it, 61",
        ),
        (60, 100, 1.0, "fits"),
        (61, 100, 60 / 61, "98% of it is cached"),
        (10**9, 0, 0.0, "1.0 GB, is larger than the memory that may hold it, 0.0 GB"),
        (0, 0, 1.0, "fits"),
        (10**15, None, 1.0, "unknown"),
    ],
)
def test_what_fits_is_cached(nbytes, memory, share, why):
    chosen = samples.cached_share(nbytes, memory)
    assert chosen.value == pytest.approx(share)
    assert why in str(chosen)


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ([1, 4096, 4097], 4 * 4096),
        ([None, 5000, None, 0], 2 * 8192),  # as if the missing ones were like the others
        ([None], 0),
        ([10] * 999 + [40_960_000], 999 * 4096 + 40_960_000),
        ([4096] * 2500, 2500 * 4096),
    ],
)
def test_a_data_set_is_as_large_as_its_pages(tmp_path, disk, sizes, total):
    disk(1 << 50, 1)
    assert SampleFiles(files_of(tmp_path, sizes), direct=None)._total() == total


def test_of_ten_million_files_a_thousand_are_sized_and_of_few_used_bytes_none(
    tmp_path, disk, monkeypatch
):
    (tmp_path / "x").write_bytes(bytes(5000))
    offsets = np.arange(MANY + 1)
    catalog = Catalog(os.fsencode(tmp_path), b"x" * MANY, offsets, np.empty(0, np.int32))
    sized, stat = [], os.stat
    monkeypatch.setattr(samples.os, "stat", lambda path: sized.append(path) or stat(path))
    fits = 6e9 / (MANY * 8192)
    for used, share, stats in (
        (1 << 50, fits, 1000),
        (80 << 30, fits, 1000),  # the disk is as full
        (7_000_000_000, fits, 1000),  # compressed, sparse, or on several file systems
        (5_900_000_000, 1, 0),
    ):
        del sized[:]
        disk(used, 10_000_000_000)
        files = SampleFiles(catalog, direct=None)
        assert (files.share.value, len(sized)) == (pytest.approx(share), stats)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(
    ("path", "why"),
    [("/proc/version", "not on a known local disk"), ("/dev/shm/none", "tmpfs")],
)
def test_elsewhere_than_on_a_disk_all_is_read_through_the_page_cache(
    tmp_path, monkeypatch, path, why, linked
):
    monkeypatch.setattr(samples, "cache_memory", lambda: 0)
    if linked:
        (tmp_path / "link").symlink_to(path)
        path = str(tmp_path / "link")
    with PythonFileReader(from_files([path])) as reader:
        assert (reader.unit, reader.choices["direct"].value) == (1, False)
        assert why in repr(reader)


def test_lanes_follow_from_the_file_system_and_the_options_from_nothing(tmp_path):
    for path, lanes in (("/proc/version", 16), (tmp_path / "x", 3)):
        with PythonFileReader(from_files([str(path)])) as reader:
            assert (reader.lanes, reader.choices["lanes"].value) == (lanes, lanes)
            assert f"io={reader.io} (the first that works for whole files)" in repr(reader)
    given = {"lanes": 2, "direct": False, "copying_lanes": 1, "io": "preadv"}
    with PythonFileReader(from_files(["/proc/version"]), **given) as reader:
        assert (reader.lanes, reader.choices) == (2, {})
    with pytest.raises(TypeError, match="direct must be True or False, not 1"):
        PythonFileReader(from_files(["x"]), direct=1)


def test_a_file_system_that_refuses_o_direct_is_read_through_the_page_cache(
    disk, one_file, monkeypatch
):
    disk(1 << 50, 1)
    monkeypatch.setattr(SampleFiles, "_total", lambda self: 1 << 40)
    with PythonFileReader(from_files(["/proc/version"])) as reader:
        assert reader.choices["direct"] == Choice(
            False, "its file system does not support O_DIRECT"
        )
    disk(1 << 50, 0)
    with PythonFileReader(one_file) as reader:
        assert reader.choices["direct"].value
        assert read(reader, np.array([0])) == [b"bytes"]


@pytest.mark.parametrize("of_ranges", [False, True])
def test_a_file_system_that_fails_o_direct_when_it_is_read_is_an_error_that_names_the_option(
    tmp_path, disk, monkeypatch, of_ranges
):
    disk(1 << 50, 0)
    (tmp_path / "file").write_bytes(b"bytes")
    path = tmp_path / "file"
    catalog = catalog_of([path], [(0, 0, 5)]) if of_ranges else from_files([str(path)])
    refuse = lambda depth, fds, *_: np.full(len(fds), -errno.EINVAL)  # noqa: E731
    monkeypatch.setattr(aio, "read", refuse)
    with (
        PythonFileReader(catalog, io="aio") as reader,
        raises_naming(OSError, path, "direct=False"),
    ):
        read(reader, np.array([0]), catalog)


@pytest.mark.usefixtures("half")
def test_a_container_that_is_replaced_between_its_two_openings_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "container"
    path.write_bytes(bytes(1 << 16))
    catalog = catalog_of([path], [(0, row << 12, 4096) for row in range(16)])
    opened = opening.open_each

    def replace_meanwhile(fds, paths, flags):
        if np.ndim(flags) == 0:
            return opened(fds, paths, flags)
        missing = opened(fds, paths[:1], flags[:1])
        (tmp_path / "new").write_bytes(b"\1" * (1 << 16))
        os.replace(tmp_path / "new", path)
        fds[1:] = [-1] * (len(paths) - 1)
        return missing + opened(fds, paths, flags)

    monkeypatch.setattr(opening, "open_each", replace_meanwhile)
    monkeypatch.setattr(containers, "open_cached", lambda *_: False)
    with (
        PythonFileReader(catalog) as reader,
        raises_naming(ContainerChangedError, path, "replaced"),
    ):
        read(reader, np.arange(16), catalog)


@pytest.mark.usefixtures("half")
def test_the_statistics_and_the_report_name_the_choice_and_why(tmp_path):
    files_of(tmp_path, [10] * 4)
    import dali_storage

    names = [str(tmp_path / f"{number:04}") for number in range(4)]
    pipeline = pipeline_of(lambda: readers.file(files=names, name="R"))
    pipeline.run()
    assert dali_storage.statistics(pipeline, "R").choices["direct"] == "True (half)"
    assert "  direct: True (half)\n" in dali_storage.report()
