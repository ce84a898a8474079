"""python-file with io="mmap": batches are views of mapped containers."""

import errno
import mmap
import os
import resource
import signal
import subprocess
import sys
import weakref
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage.backends.files import containers, mapped
from dali_storage.backends.linux import libc, mapping
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import NotMapped
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import RangeTests, ReaderTests
from dali_storage.testing.packing import packed_contents, write_packed
from dali_storage.testing.probes import raises_naming
from dali_storage.testing.reading import in_lane, read
from tests.kit.file_reading import write_files
from tests.kit.mapped import catalog_of
from tests.kit.paths import ROOT
from tests.kit.process import descriptors, is_mapped
from tests.kit.tiers import by_tier


class ByViews(PythonFileReader):
    """It reads by copying views, so that the promises of `read()` are tested of `views()`."""

    def read(self, batch, lane):
        if self.views is None:  # whole files
            return super().read(batch, lane)
        views = self.views(batch.samples, lane)
        if views is None or (views.sizes != batch.sizes).any():  # parts of samples
            return super().read(batch, lane)
        for at, one in zip(batch.offsets.tolist(), views.slices(), strict=True):
            batch.buffer[at : at + one.nbytes] = one
        return None


class TestMapped(RangeTests, ReaderTests):
    batches = by_tier(300, 5_000)
    openings = by_tier(30, 500)

    def open(self, catalog):
        return ByViews(catalog, io=None if catalog.ranges is None else "mmap")


@pytest.fixture
def packed(tmp_path):
    (tmp_path / "class").mkdir()
    return write_packed(tmp_path)


def views(reader, samples):
    return in_lane(partial(reader.views, np.array(samples), 0))


def bytes_of(found):
    return [bytes(each) for each in found.slices()]


def test_samples_are_hot_from_their_first_views_until_this_process_waits_for_a_page(
    packed, monkeypatch
):
    faults = SimpleNamespace(ru_majflt=7)
    monkeypatch.setattr(resource, "getrusage", lambda _: faults)
    samples, expected = np.arange(13), packed_contents()
    with PythonFileReader(packed, io="mmap") as reader:
        assert not reader.hot(samples)
        for _ in range(2):
            assert bytes_of(views(reader, samples)) == expected
            with monkeypatch.context() as patch:
                patch.setattr(mapping, "populate", None)
                assert [reader.hot(samples), reader.hot(samples)] == [True, True]
                assert bytes_of(reader.views(samples, reader.lanes)) == expected
            faults.ru_majflt += 1
            assert not reader.hot(samples)


def test_a_page_that_a_lane_waits_for_makes_nothing_less_hot(packed, monkeypatch):
    faults, populate, hot = SimpleNamespace(ru_majflt=7), mapping.populate, []
    monkeypatch.setattr(resource, "getrusage", lambda _: faults)

    def wait(addresses, lengths):
        faults.ru_majflt += 1
        hot.append(reader.hot(np.arange(3)))
        return populate(addresses, lengths)

    with PythonFileReader(packed, io="mmap") as reader:
        views(reader, [0, 1, 2])
        assert reader.hot(np.arange(3))
        monkeypatch.setattr(mapping, "populate", wait)
        for sample in range(3, 6):
            views(reader, [sample])
        assert [*hot, reader.hot(np.arange(3))] == [True] * 4


def test_views_cannot_be_written_to_and_outlive_the_reader_by_which_all_is_unmapped(packed):
    with PythonFileReader(packed, io="mmap") as reader:
        found = views(reader, [12])
        memory, expected = weakref.ref(found.buffer), packed_contents()[12]
        (piece,) = found.slices()
        del found
    assert piece.readonly
    assert bytes(piece) == expected
    assert is_mapped(packed.path(12))
    del piece
    assert memory() is None
    assert not is_mapped(packed.path(12))
    assert descriptors(os.fsdecode(packed.root)) == set()


def test_without_process_madvise_each_span_is_populated_by_itself(packed, monkeypatch):
    """Before Linux 6.13, or in a sandbox."""
    called, madvise = [], libc.madvise
    with PythonFileReader(packed, io="mmap") as reader:
        monkeypatch.setattr(libc, "syscall", lambda *_: -1)
        monkeypatch.setattr(libc, "madvise", lambda *it: called.append(it[2]) or madvise(*it))
        assert bytes_of(views(reader, range(13))) == packed_contents()
    assert {*called} == {mmap.MADV_WILLNEED, mapping._POPULATE_READ}
    assert called == sorted(called)  # every span is asked for before one is waited for


@pytest.mark.long
def test_many_spans_are_populated_by_one_batch(tmp_path, monkeypatch):
    """More than process_madvise takes, of more containers than may be open."""
    monkeypatch.setattr(containers, "_MOST_OPEN", 2)
    count, size = 500, 5 * mmap.PAGESIZE
    random = np.random.default_rng(0)
    contents = [random.bytes(count * size) for _ in range(5)]
    files, rows = write_files(tmp_path, contents), np.arange(count * 5)
    ranges = Ranges.of_columns(rows // count, rows % count * size, rows * 0 + 10)
    catalog = replace(files, ranges=ranges)
    order = random.permutation(rows)
    with PythonFileReader(catalog, io="mmap") as reader:
        found = bytes_of(views(reader, order))
        expected = [contents[row // count][row % count * size :][:10] for row in order]
        assert found == expected
        assert len(descriptors(tmp_path)) <= 3


def test_ranges_behind_8_gib_are_viewed(tmp_path):
    starts = [(4 << 30) - 3, (8 << 30) + 4097]
    for name in ("0", "1"):
        with open(tmp_path / name, "wb") as file:
            for start in starts:
                file.seek(start)
                file.write(b"right")
    rows = [(number, start, 5) for number in (0, 1) for start in starts]
    catalog = catalog_of([tmp_path / "0", tmp_path / "1"], rows)
    with PythonFileReader(catalog, io="mmap") as reader:
        assert bytes_of(views(reader, [3, 0, 2, 1])) == [b"right"] * 4


def test_what_cannot_be_populated_is_read_and_so_named(packed, monkeypatch):
    samples = np.arange(13)
    monkeypatch.setattr(mapping, "populate", lambda *_: False)
    with ByViews(packed, io="mmap") as reader:
        assert views(reader, samples) is None
        assert not reader.hot(samples)
        assert read(reader, samples, packed) == packed_contents()
        reader._engine = lambda fds, iovecs, starts, flags: np.full(len(starts), -errno.EIO)
        with raises_naming(OSError, packed.path(4), "sample 4: 513 bytes"):
            read(reader, np.array([4]), packed)


def test_a_map_that_is_refused_is_an_error_with_its_path(packed, monkeypatch):
    monkeypatch.setattr(mapping, "_FIXED", 0x100000)  # MAP_FIXED_NOREPLACE
    refused = raises_naming(OSError, packed.path(1), "the file cannot be mapped: leave out")
    with PythonFileReader(packed, io="mmap") as reader, refused:
        views(reader, [1])


def test_by_default_a_container_that_cannot_be_mapped_is_read(packed, monkeypatch):
    monkeypatch.setattr(mapping, "_FIXED", 0x100000)  # MAP_FIXED_NOREPLACE
    with PythonFileReader(packed) as reader:
        assert views(reader, [1]) is None
        assert read(reader, np.arange(13), packed) == packed_contents()


# --- What a user can break -----------------------------------------------------------------------

BREAK = """
import os, sys
from pathlib import Path
import numpy as np
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import ContainerChangedError
from tests.backends.files.test_mapped import change, views
from dali_storage.testing.packing import packed_contents, write_packed

root, way = Path(sys.argv[1]), sys.argv[2]
(root / "class").mkdir()
catalog = write_packed(root)
with PythonFileReader(catalog, io="mmap") as reader:
    found = views(reader, [12, 11])
    change(Path(os.fsdecode(catalog.path(12))), way)
    for call in (lambda: views(reader, [12]), lambda: reader.views(np.array([12]), 0)):
        try:
            call()
        except ContainerChangedError as error:
            print(type(error).__name__, error.filename == os.fsdecode(catalog.path(12)))
    last = bytes(found.slices()[0])
    print("same" if last == packed_contents()[12] else "other", flush=True)
    if way == "write to the view":
        import ctypes
        ctypes.memset(found.buffer.ctypes.data + int(found.offsets[0]), 1, 1)
"""


def change(path, way):
    """What somebody does to a container of which there are views."""
    if way == "truncate":
        os.truncate(path, 5000)
    elif way == "rewrite":
        with open(path, "r+b") as file:
            file.seek(1 << 19)
            file.write(b"new bytes")


@pytest.mark.parametrize(
    ("way", "status", "printed"),
    [
        ("truncate", -signal.SIGBUS, ["ContainerChangedError True"] * 2),
        ("rewrite", 0, ["ContainerChangedError True"] * 2 + ["other"]),
        ("write to the view", -signal.SIGSEGV, ["same"]),
    ],
)
def test_a_container_that_is_broken_under_its_views(tmp_path, way, status, printed):
    """The next batch is refused. What has been delivered is what the documentation says."""
    command = [sys.executable, "-c", BREAK, str(tmp_path), way]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=6000)
    assert done.returncode == status, done.stderr
    assert done.stdout.splitlines() == printed


# --- Refused, and copied instead -----------------------------------------------------------------


def test_more_containers_than_can_be_mapped_are_refused(packed, monkeypatch, tmp_path):
    (tmp_path / "most").write_text("11\n")
    monkeypatch.setattr(mapped, "_MOST", tmp_path / "most")
    with pytest.raises(ValueError, match=r"3 containers are more than a quarter .* \(11\)"):
        PythonFileReader(packed, io="mmap")


def no_addresses(*_):
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("module", "name", "value", "why"),
    [
        (resource, "getrlimit", lambda _: (1 << 46, -1), r"RLIMIT_AS.*ulimit -v unlimited"),
        (mapping, "_POPULATE_READ", 1_000_000, r"use Linux 5\.14 or newer"),
        (mapping, "reserve", no_addresses, r"cannot map 8,388,608 bytes"),
        (mapped, "is_local", lambda it: not it.endswith(b"2"), r"container2 is not on a known loc"),
    ],
)
def test_where_maps_are_not_safe_batches_are_copied_with_a_warning(
    packed, monkeypatch, module, name, value, why
):
    *_, status = PythonFileReader.devices()  # for the doctor
    assert (status.name, status.problem) == ("io='mmap'", None)
    monkeypatch.setattr(module, name, value)
    *_, status = PythonFileReader.devices()
    assert (status.problem is None) == (name in ("reserve", "is_local"))
    with pytest.warns(NotMapped, match=rf"copied despite io='mmap': .*{why}") as seen:
        reader = PythonFileReader(packed, io="mmap")
    assert seen[0].filename == __file__
    with reader:
        assert reader.views is None
        assert read(reader, np.arange(13), packed) == packed_contents()
