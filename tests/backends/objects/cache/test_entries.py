"""The cache of objects on a local disk. The oracle is what the store has, and what it was asked."""

import errno
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from dali_storage import Catalog
from dali_storage.backends.linux import engines
from dali_storage.backends.objects.cache import entries as entries_module
from dali_storage.backends.objects.cache import samples as cache_module
from dali_storage.testing.reading import read
from tests.kit.objects.cached import (
    ALL,
    SIZES,
    TRAILER,
    Shards,
    Store,
    StoreReader,
    failing,
    flip,
    one_warning,
    tick,
)
from tests.kit.process import descriptors

NINE = np.arange(9)  # samples of Shards


def test_the_store_is_asked_once_for_every_sample(reader, folder):
    assert reader.use() == [*ALL]
    assert reader.turns  # whoever looks for files may block
    assert reader.use() == reader.use(ALL[::-1]) == []
    with StoreReader(reader.store, folder) as later:
        assert later.use() == []
    assert not folder.temporary()


def test_readers_share_a_directory(store, folder):
    with StoreReader(store, folder) as one, StoreReader(store, folder) as other:
        assert one.use(ALL[:6]) == [*range(6)]
        assert other.use() == [*range(6, len(SIZES))]
        assert one.use() == []


def test_ranges_of_containers_are_entries_by_their_place(folder):
    store = Shards()
    with StoreReader(store, folder) as reader:
        assert reader.use(NINE[3:]) == [3, 4, 6, 7, 8]  # 5 is empty
        assert reader.use(NINE) == [0, 1, 2]
        assert reader.use(NINE[::-1]) == []
    with StoreReader(store, folder) as other:
        assert other.use(NINE) == []


def test_a_damaged_range_does_not_harm_those_that_overlap_it(folder):
    with StoreReader(Shards(), folder) as reader:
        reader.use(NINE)
        tick()
        entry = reader.entry(2)
        entry.write_bytes(bytes(len(entry.read_bytes())))
        for order in (NINE, NINE[::-1]):
            assert reader.use(order) in ([2], [])


def test_a_sample_may_be_in_a_batch_more_than_once(reader, folder):
    samples = [8, 8, 1, 8, 1]
    assert reader.use(samples) == [1, 1, 8, 8, 8]
    assert len(folder.entries()) == 2
    assert reader.use(samples) == []


def test_a_batch_may_have_more_samples_than_files_are_open_at_once(folder):
    with StoreReader(Store((100,) * 200), folder) as reader:
        assert reader.use(np.arange(0, 200, 2)) == [*range(0, 200, 2)]
        assert reader.use(np.arange(200)) == [*range(1, 200, 2)]
        assert reader.use(np.arange(200)) == []


def test_another_version_is_another_entry_and_the_old_one_stays(store, folder):
    old = store.contents[8], store.versions[8]
    for content, version, asked in ((*old, [*ALL]), (bytes(100_000), b'"new"', [8]), (*old, [])):
        store.contents[8], store.versions[8] = content, version
        with StoreReader(store, folder) as reader:
            assert reader.use() == asked
            assert reader.use() == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"s3://b/k", b"v1"), (b"s3://b/kv", b"1")),
        ((b"s3://b/1", b"1 1 0 3\n"), (b"s3://b/11", b" 1 0 3\n")),
        ((b"s3://b/k", b"v"), (b"s3://c/k", b"v")),
        ((b"s3://b/k", b"v"), (b"s3://b/k", b"w")),
    ],
)
def test_no_two_objects_have_one_entry(folder, one, other):
    store = Store((3, 3))
    store.catalog = Catalog.from_names([one[0], other[0]], [0, 0])
    store.versions = [one[1], other[1]]
    with StoreReader(store, folder) as reader:
        assert reader.use([0]) == [0]
        assert reader.use([0, 1]) == [1]


def test_stores_with_the_same_urls_have_entries_of_their_own(reader, folder):
    reader.use()
    with StoreReader(reader.store, folder, place=b"elsewhere") as other:
        assert other.use() == [*ALL]


def _replace(path, content):
    Path(f"{path}-new").write_bytes(content)
    os.rename(f"{path}-new", path)


DAMAGES = {
    "a bit at the start": flip(-100_000 - TRAILER),
    "a bit in the middle": flip(-50_000),
    "the last bit": flip(-TRAILER - 1),
    "a digest": flip(-TRAILER),
    "a checksum": flip(-1),
    "zeros": lambda path: path.write_bytes(bytes(100_000 + TRAILER)),
    "a torn page": lambda path: path.write_bytes(
        path.read_bytes()[:4096] + bytes(4096) + path.read_bytes()[8192:]
    ),
    "nothing": lambda path: os.truncate(path, 0),
    "a part": lambda path: os.truncate(path, 50_000),
    "no trailer": lambda path: os.truncate(path, 100_000),
    "a part of the trailer": lambda path: os.truncate(path, 100_000 + TRAILER - 1),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "a foreign file": lambda path: _replace(path, b"hello"),
    "a foreign file of the same size": lambda path: _replace(path, b"x" * (100_000 + TRAILER)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_entry_is_fetched_again(reader, folder, damage):
    reader.use()
    reader.use()
    before = folder.counted()
    with StoreReader(reader.store, folder) as fresh:  # checks it for the first time
        for user in (fresh, reader):
            tick()
            damage(reader.entry(8))
            assert user.use() == [8]
            assert reader.use() == fresh.use() == []
    assert folder.counted() == before


@pytest.mark.parametrize("samples", [[8], [8, 8]])  # the second time, it is in the page cache
def test_damage_as_old_as_the_entry_is_noticed_when_the_entry_comes_from_the_disk(
    store, folder, samples
):
    def first_from_disk(*arguments):
        results = engines.preadv(*arguments)
        results[:1] *= not arguments[3]  # it is not in the page cache
        return results

    with StoreReader(store, folder) as reader:
        reader.use()
        reader.use()
        entry = reader.entry(8)
        flip(-50_000)(entry)
        reader.cache._checked[8] = entry.stat().st_ctime_ns  # as if it had been so when checked
        reader.cache._engine, reader.turns = first_from_disk, 0
        assert reader.use(samples) == samples
        assert reader.turns > 0


def test_entries_that_changed_places_are_fetched_again(store, folder):
    with StoreReader(store, folder) as reader:
        reader.use()
        one, other = reader.entry(8), reader.entry(9)
        os.rename(one, folder / "between")
        os.rename(other, one)
        os.rename(folder / "between", other)
        assert reader.use() == [8, 9]
    with StoreReader(store, folder) as reader:
        assert reader.use() == []


def test_a_damaged_entry_that_cannot_be_removed_is_never_used(reader, monkeypatch):
    reader.use()
    tick()
    flip(-1)(reader.entry(8))
    monkeypatch.setattr(os, "unlink", failing(errno.EROFS))
    with one_warning("no more samples are cached"):
        assert reader.use() == [8]
    assert reader.use() == [8]


class TestHangingDisk:
    """Entries are written while batches are read."""

    @pytest.fixture
    def go_on(self, monkeypatch):
        """Nothing is written until it is set. Only close() waits for it."""
        go_on, write = threading.Event(), os.write
        monkeypatch.setattr(os, "write", lambda *a: go_on.wait() and write(*a))
        monkeypatch.setattr(StoreReader, "settles", False)
        monkeypatch.setattr(cache_module, "_CLOSING_S", 120)
        yield go_on
        go_on.set()

    def test_a_slow_disk_delays_no_batch(self, folder, go_on):
        store = Store((100,) * 40)
        with StoreReader(store, folder) as reader:
            for sample in range(40):
                assert reader.use([sample]) == [sample]
            assert reader.cache._backlog.qsize() < 10  # memory has a bound
            go_on.set()
        with StoreReader(store, folder) as reader:
            assert 30 < len(reader.use(np.arange(40))) < 40

    def test_the_buffer_of_a_batch_may_be_used_before_it_is_written(self, store, folder, go_on):
        with StoreReader(store, folder) as reader:
            buffer = reader.allocate(1 << 20)
            read(reader, ALL, buffer=buffer)
            buffer[:] = 0
            go_on.set()
        with StoreReader(store, folder) as reader:
            assert reader.use() == []

    def test_closing_waits_for_entries_that_are_not_written(
        self, store, folder, go_on, monkeypatch
    ):
        join = threading.Thread.join
        monkeypatch.setattr(threading.Thread, "join", lambda *a: go_on.set() or join(*a))
        with StoreReader(store, folder) as reader:
            reader.use()
        assert len(folder.entries()) == len(SIZES)

    def test_closing_does_not_wait_for_ever(self, store, folder, go_on, monkeypatch):
        monkeypatch.setattr(cache_module, "_CLOSING_S", 0.05)
        with StoreReader(store, folder) as reader:
            for sample in (7, 8, 9):
                reader.use([sample])
            writer = reader.cache._writer
        go_on.set()
        assert writer
        writer.join(60)
        assert not writer.is_alive()
        assert not descriptors(folder)
        assert len(folder.entries()) < 2  # what waited is dropped
        assert folder.counted() == folder.occupied()


def test_two_layouts_share_a_directory(reader, folder, monkeypatch):
    reader.use()
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    monkeypatch.setattr(entries_module, "_LAYOUT", b"objects-2")
    with StoreReader(reader.store, folder) as newer:
        assert newer.use() == [*ALL]
        assert newer.use() == []
    assert {path: path.read_bytes() for path in files} == files
