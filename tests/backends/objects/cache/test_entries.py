"""The cache of objects on a local disk. The oracle is what the store has, and what it was asked."""

import os
import threading
from contextlib import closing

import numpy as np
import pytest

from dali_storage.backends.linux import engines
from dali_storage.backends.objects.cache import entries as entries_module
from dali_storage.backends.objects.cache import samples as cache_module
from dali_storage.testing.reading import read
from tests.kit.objects.cached import ALL, SIZES, Store, StoreReader, flip
from tests.kit.process import descriptors


def test_a_batch_may_have_more_samples_than_files_are_open_at_once(folder):
    with StoreReader(Store((100,) * 200), folder) as reader:
        assert reader.use(np.arange(0, 200, 2)) == [*range(0, 200, 2)]
        assert reader.use(np.arange(200)) == [*range(1, 200, 2)]
        assert reader.use(np.arange(200)) == []


SAMPLES = [  # store; URL, version, start and size
    (b"", b"s3://b/k", b"v1", 0, 3),
    (b"", b"s3://b/kv", b"1", 0, 3),
    (b"", b"s3://b/1", b"1 1 0 3\n", 0, 3),
    (b"", b"s3://b/11", b" 1 0 3\n", 0, 3),
    (b"", b"s3://c/k", b"v1", 0, 3),
    (b"", b"s3://b/k", b"w1", 0, 3),
    (b"", b"s3://b/k", b"v1", 1, 3),
    (b"", b"s3://b/k", b"v1", 0, 4),
    (b"elsewhere", b"s3://b/k", b"v1", 0, 3),
]


def test_no_two_samples_have_one_entry(folder):
    digests = set[bytes]()
    for store, *sample in SAMPLES:
        with closing(entries_module.Entries(os.fsencode(folder), None, store)) as entries:
            digests.add(entries.digest(*sample))
    assert len(digests) == len(SAMPLES)


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
