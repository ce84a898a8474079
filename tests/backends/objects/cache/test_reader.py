"""The backend with a cache."""

import sys
from contextlib import suppress
from dataclasses import replace

import pytest

from dali_storage.backends.linux import engines
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.contract.errors import BackendUnavailable, ObjectReplacedError
from dali_storage.testing import SnapshotRangeTests, SnapshotReaderTests
from dali_storage.testing.reading import in_lane, read
from tests.kit.file_reading import yielding
from tests.kit.objects.cached import ALL, flip, nothing_is_left, one_warning, settle, tick
from tests.kit.objects.client import FOR_EVER, Served, publish, unlisted


@pytest.mark.long
class TestPromises(Served, SnapshotRangeTests, SnapshotReaderTests):
    """Those of a reader hold with a cache, too. It keeps what it has, as a snapshot does."""

    batches = 50
    openings = 2

    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.cache = tmp_path / "cache"

    def open(self, catalog):
        return ObjectStoreReader(catalog, cache=self.cache)


@pytest.fixture
def listed(server, store):
    """The objects of the store on the server, as a listing has them."""
    return publish(server.put, store.catalog, store.contents)


@pytest.fixture
def epoch(folder):
    """Reads samples with a reader of its own."""

    def run(catalog, samples=ALL, **options):
        with ObjectStoreReader(catalog, cache=folder, **options) as reader:
            return read(reader, samples, catalog)

    return run


def asked(server):
    """The objects that were asked for since the last call."""
    return sorted(request.key for request in server.log(clear=True))


def test_only_samples_that_are_missing_are_asked_for(
    listed, store, server, folder, epoch, request_threads
):
    epoch(listed, ALL[:6])
    assert len(asked(server)) == 6
    assert epoch(listed, ALL[::-1]) == store.contents[::-1]
    assert asked(server) == [f"bucket/{number}.jpg" for number in range(6, 10)]
    with ObjectStoreReader(listed, cache=folder) as reader:
        assert read(reader, ALL, listed) == store.contents
        assert not request_threads()
    assert asked(server) == []
    epoch(listed, endpoint=server.url.replace("127.0.0.1", "localhost"))  # another store
    assert len(asked(server)) == len(ALL)


def test_an_object_that_was_replaced_is_refused_unless_it_is_in_the_cache(
    listed, store, server, epoch
):
    server.put("bucket/8.jpg", bytes(100_000))
    with pytest.raises(ObjectReplacedError):
        epoch(listed)
    server.put("bucket/8.jpg", store.contents[8])
    assert epoch(listed) == store.contents  # the new one was not kept
    server.put("bucket/8.jpg", bytes(100_000))
    assert epoch(listed) == store.contents


@pytest.mark.parametrize("mode", ["cut", "short", "foreign-etag", "403", "cut-swap"])
def test_a_wrong_answer_is_not_kept(listed, store, server, epoch, mode):
    server.fail(mode, 1, key="bucket/9.jpg")
    with suppress(OSError):
        epoch(listed, retry=1)
    server.put("bucket/9.jpg", store.contents[9])
    server.heal()
    assert epoch(listed) == epoch(listed) == store.contents


def test_objects_without_strong_versions_are_not_kept(listed, store, server, folder, epoch):
    for kind in ("HEAD", "GET"):
        server.fail("no-etag", FOR_EVER, on=kind)
    with one_warning("'s3://bucket/0.jpg' has no strong ETag"):
        assert epoch(unlisted(listed)) == store.contents
    assert not folder.entries()


def test_a_reader_gives_its_turn_away_before_it_asks(listed, folder):
    turns = []
    with ObjectStoreReader(listed, cache=folder) as reader:
        assert reader.cooperative
        assert reader._cache
        # The page cache has all that was written.
        reader._cache._engine = lambda *arguments: engines.preadv(*arguments[:3])
        with yielding(lambda: turns.append(1)):
            read(reader, ALL, listed)
            assert turns
            settle(reader._cache)
            turns.clear()
            read(reader, ALL, listed)
            assert not turns
            tick()
            for entry in folder.entries():
                flip(-1)(entry)
            read(reader, ALL, listed)
            assert turns
            turns.clear()
    with ObjectStoreReader(replace(listed, versions=None), cache=folder) as reader:
        with yielding(lambda: turns.append(1)):
            in_lane(lambda: reader.sizes(ALL, 0))
        assert turns
    with ObjectStoreReader(listed) as reader:
        assert not reader.cooperative


def test_without_google_crc32c_only_the_cache_is_refused(listed, store, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    for name in ("samples", "entries"):
        monkeypatch.delitem(sys.modules, f"dali_storage.backends.objects.cache.{name}")
    with ObjectStoreReader(listed) as reader:
        assert read(reader, ALL, listed) == store.contents
    with (
        nothing_is_left(folder.parent),
        pytest.raises(BackendUnavailable, match="google_crc32c") as caught,
    ):
        ObjectStoreReader(listed, cache=folder)
    assert "[object-store]" in caught.value.remedy
    assert not folder.exists()
