"""Containers that are kept open: which ones, for how long, and what is noticed of their changes."""

import errno
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from dali_storage.backends.files import containers
from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.errors import ContainerChangedError
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import make_batch, read
from dali_storage.testing.probes import raises_naming
from tests.kit.file_reading import write_files
from tests.kit.mapped import catalog_of
from tests.kit.process import descriptors, room_for
from tests.kit.tiers import by_tier

_BYTES = 6000  # of a container, which has two ranges: 0 to 3999 and 3000 to 5999


def content(number):
    return np.random.default_rng(number).bytes(_BYTES)


def expected(sample):
    return content(sample // 2)[3000:] if sample % 2 else content(sample // 2)[:4000]


@pytest.fixture
def make(tmp_path):
    """Writes containers long ago; returns the catalog of their ranges, two of each."""

    def write(count):
        write_files(tmp_path, map(content, range(count)))
        paths = [tmp_path / str(number) for number in range(count)]
        for path in paths:
            os.utime(path, (1, 1))
        rows = ((number, *it) for number in range(count) for it in ((0, 4000), (3000, 3000)))
        return catalog_of(paths, [*rows])

    return write


def paths_open(catalog):
    """The containers that this process has open, once for each descriptor."""
    return [path for _, path in sorted(descriptors(os.path.dirname(os.fsdecode(catalog.path(0)))))]


def check(reader, catalog, samples, lane=0):
    got = read(reader, np.array(samples), catalog, lane=lane)
    assert got == [expected(sample) for sample in samples]


def test_containers_stay_open_once_and_no_more_than_a_quarter_of_the_limit(make, monkeypatch):
    catalog = make(100)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (160, 160))
    with PythonFileReader(catalog) as reader:
        for start in range(0, 200, 20):
            check(reader, catalog, list(range(start, start + 20)))
            check(reader, catalog, list(range(start, start + 20)), lane=1)
            opened = paths_open(catalog)
            assert len(opened) == len(set(opened)) == min(10 + start // 2, 40)
        newest = {os.fsdecode(catalog.path(sample)) for sample in range(120, 200)}
        assert set(opened) == newest  # those used last
        check(reader, catalog, [120])
        check(reader, catalog, [0])
        assert os.fsdecode(catalog.path(120)) in paths_open(catalog)
        assert os.fsdecode(catalog.path(122)) not in paths_open(catalog)
    assert paths_open(catalog) == []


def test_all_lanes_share_few_descriptors(make, monkeypatch):
    monkeypatch.setattr(containers, "_MOST_OPEN", 2)
    catalog, most = make(30), list[int]()
    with PythonFileReader(catalog, lanes=4) as reader:

        def run(lane):
            random = np.random.default_rng(lane)
            for _ in range(by_tier(20, 100)):
                check(reader, catalog, random.integers(0, 60, 8).tolist(), lane)
                most.append(len(paths_open(catalog)))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(run, range(4)))
    assert max(most) <= 4 + 4  # each lane holds one that stays open, and opens another


def test_a_lane_that_has_read_lets_others_close_its_containers(make, monkeypatch):
    monkeypatch.setattr(containers, "_MOST_OPEN", 3)
    catalog = make(8)
    with PythonFileReader(catalog) as reader:
        check(reader, catalog, [0])
        check(reader, catalog, list(range(2, 16)), lane=1)
        assert set(paths_open(catalog)) == {os.fsdecode(catalog.path(row)) for row in (10, 12, 14)}


@pytest.mark.parametrize("left", [0, 1, 3])
def test_few_descriptors_are_enough_for_containers(make, left):
    catalog = make(10)
    samples = [4, *np.random.default_rng(left).permutation(20).tolist()]
    with PythonFileReader(catalog) as reader:
        check(reader, catalog, [4])
        with room_for(left):
            for _ in range(3):
                check(reader, catalog, samples)


def test_a_container_replaced_while_it_was_closed_is_refused(make, tmp_path, monkeypatch):
    """Also if the old one is back when the batch has been read."""
    monkeypatch.setattr(containers, "_MOST_OPEN", 1)
    catalog = make(3)
    twin = tmp_path / "twin"
    twin.write_bytes(bytes(_BYTES))
    os.utime(twin, (1, 1))
    with PythonFileReader(catalog) as reader:
        check(reader, catalog, [0, 2])
        check(reader, catalog, [4])  # closes the others
        (tmp_path / "0").rename(tmp_path / "old")
        twin.rename(tmp_path / "0")
        batch = make_batch(reader, np.array([0, 2]), catalog)

        def put_back(*arguments):
            (tmp_path / "old").rename(tmp_path / "0")
            return before(*arguments)

        before = reader._engine
        monkeypatch.setattr(reader, "_engine", put_back)
        with raises_naming(ContainerChangedError, catalog.path(0), "written or replaced"):
            reader.read(batch, 0)
        monkeypatch.setattr(reader, "_engine", before)
        (tmp_path / "old").rename(tmp_path / "0")
        check(reader, catalog, [0, 2])


def test_a_container_written_while_it_is_read_is_refused(make, tmp_path, monkeypatch):
    catalog = make(3)
    with PythonFileReader(catalog) as reader:
        check(reader, catalog, [0, 2, 4])

        def write(*arguments):
            with open(tmp_path / "1", "r+b") as file:
                file.write(b"x")
            return before(*arguments)

        before = reader._engine
        monkeypatch.setattr(reader, "_engine", write)
        with raises_naming(ContainerChangedError, catalog.path(2)):
            read(reader, np.array([0, 2]), catalog)


@pytest.mark.parametrize("most", [1, 100])
def test_a_container_with_another_mode_or_link_is_not_refused(make, tmp_path, monkeypatch, most):
    """The time of status change changes with each, and with a rename to and fro."""
    monkeypatch.setattr(containers, "_MOST_OPEN", most)
    catalog = make(2)
    with PythonFileReader(catalog) as reader:
        check(reader, catalog, [0, 2])
        os.chmod(tmp_path / "0", 0o400)
        check(reader, catalog, [0, 2])
        os.link(tmp_path / "1", tmp_path / "link")
        os.unlink(tmp_path / "1")
        os.rename(tmp_path / "link", tmp_path / "1")
        check(reader, catalog, [0, 2])


def test_a_directory_in_the_path_that_is_another_now_is_noticed(make, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0").write_bytes(content(0))
    os.symlink("a", tmp_path / "current")
    catalog = catalog_of([tmp_path / "current" / "0"], [(0, 0, 4000)])
    with PythonFileReader(catalog) as reader:
        check(reader, catalog, [0])
        os.unlink(tmp_path / "current")
        os.symlink("b", tmp_path / "current")
        with pytest.raises(ContainerChangedError):
            read(reader, np.array([0]), catalog)


def test_the_first_sample_beyond_the_end_is_named(make, tmp_path):
    catalog = make(2)
    os.truncate(tmp_path / "1", 5000)
    with PythonFileReader(catalog) as reader:
        where = "sample 3: 3,000 bytes at 3,000 ends beyond the container: 5,000"
        with raises_naming(ContainerChangedError, catalog.path(3), where):
            read(reader, np.array([0, 2, 3]), catalog)
        check(reader, catalog, [0, 2])


def test_a_fifo_as_container_is_named_without_blocking(make, tmp_path):
    catalog = make(2)
    os.unlink(tmp_path / "1")
    os.mkfifo(tmp_path / "1")
    with PythonFileReader(catalog) as reader:
        with raises_naming(OSError, catalog.path(2), "not a regular file"):
            read(reader, np.array([0, 2]), catalog)
        check(reader, catalog, [0])


def test_a_range_behind_8_gib_is_read(tmp_path):
    start = (8 << 30) + 4097
    with open(tmp_path / "0", "wb") as file:
        file.seek(start)
        file.write(b"right")
    catalog = catalog_of([tmp_path / "0"], [(0, start, 5)])
    for options in ({}, {"direct": True}, {"io": "preadv"}):
        with PythonFileReader(catalog, **options) as reader:
            assert read(reader, np.array([0, 0]), catalog) == [b"right"] * 2


@pytest.mark.parametrize("options", [{}, {"direct": True}, {"io": "preadv"}])
@pytest.mark.parametrize("fails_again", [True, False])
def test_the_sample_whose_bytes_cannot_be_read_is_named(
    tmp_path, monkeypatch, options, fails_again
):
    """All samples are one span, which is read in pieces of several samples each."""
    size, count, bad = 90_001, 20, 7
    (tmp_path / "0").write_bytes(os.urandom(size * count))
    rows = np.arange(count)
    catalog = catalog_of([tmp_path / "0"], [(0, row * size, size) for row in range(count)])
    left = [2 if fails_again else 1]

    def fail(fds, iovecs, starts, rw_flags):
        results = whole(fds, iovecs, starts, rw_flags)
        ends = starts + iovecs["len"][:, 0].astype(np.int64)
        touches = (starts <= bad * size + 50_000) & (ends > bad * size + 50_000)
        if touches.any() and not rw_flags and left[0]:
            left[0] -= 1
        elif not rw_flags:
            return results
        results[touches] = -errno.EAGAIN if rw_flags else -errno.EIO
        return results

    with PythonFileReader(catalog, **options) as reader:
        whole = reader._engine
        monkeypatch.setattr(reader, "_engine", fail)
        with raises_naming(OSError, catalog.path(bad), f"sample {bad}: 90,001 bytes") as caught:
            read(reader, np.array([*range(bad, count), *range(bad)]), catalog)
        assert caught.value.errno == errno.EIO
        left[0] = 2 if fails_again else 1
        # If it does not fail again, the first sample with bytes in the piece that failed.
        first = bad if fails_again else bad * size // (256 << 10) * (256 << 10) // size
        with pytest.raises(OSError, match=f"sample {first}: 90,001 bytes"):
            read(reader, rows, catalog)
        read(reader, rows, catalog)


def test_a_reader_allocates_nothing_for_each_row_of_a_catalog(tmp_path):
    import tracemalloc

    rows = np.zeros(1_000_000, np.int64)
    files = write_files(tmp_path, [content(0)])
    catalog = replace(files, ranges=Ranges.of_columns(rows, rows, rows + 1))
    tracemalloc.start()
    with PythonFileReader(catalog) as reader:
        assert read(reader, np.array([7]), catalog) == [content(0)[:1]]
        _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20  # half of an array of eight bytes a row
