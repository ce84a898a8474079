"""The cache of objects on a local disk. The oracle is what the store has, and what it was asked."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage import Batch, Catalog, IntArray, Reader
from dali_storage.backends.linux import preadv
from dali_storage.backends.object_store import ObjectStoreReader
from dali_storage.backends.objects.cache import entries as entries_module
from dali_storage.backends.objects.cache import quota as room_module
from dali_storage.backends.objects.cache import samples as cache_module
from dali_storage.backends.objects.cache.samples import Cache
from dali_storage.contract.errors import BackendUnavailable, CacheNotUsed, ObjectReplacedError
from dali_storage.contract.ranges import Ranges
from dali_storage.testing import ObjectTests, SnapshotRangeTests, SnapshotReaderTests
from dali_storage.testing.probes import nothing_is_left
from dali_storage.testing.reading import read
from tests.kit.devices import require, run
from tests.kit.objects.client import FaultServer
from tests.kit.paths import ROOT
from tests.kit.process import descriptors, started, threads

SIZES = (0, 1, 31, 4076, 4095, 4096, 4097, 65536, 100_000, 100_000)  # 4076: a page with the trailer
ALL = np.arange(len(SIZES))
BLOCK, TRAILER, DAY = 4096, 20, 86400


class Store:
    """Objects as a store has them, and a log of what it was asked for."""

    def __init__(self, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.contents = [random.bytes(size) for size in sizes]
        self.versions = [b'"%032x"' % number for number in range(len(sizes))]
        self.log: list[int] = []
        names = [b"s3://bucket/%d.jpg" % number for number in range(len(sizes))]
        self.catalog = Catalog.from_names(names, [0] * len(sizes))

    def expected(self, sample: int) -> bytes:
        return self.contents[sample]


class Shards(Store):
    """Samples that are ranges of two objects; some of them overlap."""

    def __init__(self) -> None:
        super().__init__((50_000, 70_000))
        self.starts = np.array([10, 10, 100, 20_000, 49_999, 0, 10, 30_000, 11])
        self.lengths = np.array([10, 200, 5000, 29_999, 1, 0, 4096, 40_000, 4096])
        self.files = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
        ranges = Ranges.of_columns(self.files, self.starts, self.lengths)
        catalog = self.catalog
        self.catalog = Catalog(catalog.root, catalog.names, catalog.offsets, catalog.labels, ranges)
        self.versions = [self.versions[file] for file in self.files]

    def expected(self, sample: int) -> bytes:
        start, size = self.starts[sample], self.lengths[sample]
        return self.contents[self.files[sample]][start : start + size]


class StoreReader(Reader):
    """Reads a `Store` through a cache."""

    reads_ranges = True
    alignment = 64

    def __init__(self, store: Store, directory: Path, limit: int | None = None) -> None:
        self.store, self.turns = store, 0
        engine: Any = preadv.read
        self.cache = Cache(store.catalog, directory, limit, read=engine)

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return np.array([len(self.store.expected(sample)) for sample in samples.tolist()])

    def read(self, batch: Batch, lane: int) -> None:
        versions = [self.store.versions[sample] for sample in batch.samples.tolist()]
        slots = self.cache.read(batch, versions, self.give_turn)
        for slot in slots.tolist():
            sample, start = int(batch.samples[slot]), int(batch.offsets[slot])
            self.store.log.append(sample)
            content = np.frombuffer(self.store.expected(sample), np.uint8)
            batch.buffer[start : start + content.size] = content
        self.cache.add(batch, versions, slots)
        settle(self.cache)

    def give_turn(self) -> None:
        self.turns += 1

    def close(self) -> None:
        self.cache.close()


def settle(cache: Cache | None) -> None:
    """Wait until everything that was added has been written."""
    if cache and cache._writer and cache._writer.is_alive():
        written = threading.Lock()
        written.acquire()
        cache._backlog.put(written.release)
        assert written.acquire(timeout=10)


def use(reader: StoreReader, samples: IntArray = ALL) -> list[int]:
    """Read samples, which must have their bytes; returns which of them the store was asked for."""
    store = reader.store
    store.log.clear()
    buffer = reader.allocate(8 << 20)
    buffer[:] = 0xA5
    expected = [store.expected(sample) for sample in samples.tolist()]
    assert read(reader, samples, store.catalog, buffer=buffer) == expected
    return sorted(store.log)


def entries(directory: Path) -> list[Path]:
    """The files of all entries, and temporary ones."""
    return sorted(path for path in directory.glob("objects-1/*/*") if path.is_file())


def entry_of(directory: Path, content: bytes) -> Path:
    """The file of the sample with these bytes."""
    (found,) = [path for path in entries(directory) if path.read_bytes()[:-TRAILER] == content]
    return found


def counted(directory: Path) -> int:
    """The bytes that all processes together believe to have written."""
    return int.from_bytes((directory / "objects-1/count").read_bytes()[:8], "little")


def occupied(directory: Path) -> int:
    return sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in entries(directory))


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def reader(store: Store, directory: Path) -> Iterator[StoreReader]:
    with StoreReader(store, directory) as reader:
        yield reader
        assert counted(directory) == occupied(directory)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB of its own."""
    require("mount", "umount")
    (disk := tmp_path / "disk").mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk))
    yield disk
    run("umount", str(disk))


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    """Assert that the block warns once that the cache is not used."""
    with pytest.warns(CacheNotUsed, match=match) as caught:
        yield
    assert len(caught) == 1


def tick() -> None:
    """Wait until the kernel's clock has gone on, so that a change has another time."""
    time.sleep(0.02)


def test_the_store_is_asked_once_for_every_sample(reader: StoreReader) -> None:
    assert use(reader) == [*ALL]
    assert reader.turns  # whoever looks for files may block
    assert use(reader) == []
    assert use(reader, ALL[::-1]) == []


def test_ranges_of_containers_are_entries_by_their_place(directory: Path) -> None:
    store = Shards()
    samples = np.arange(9)
    with StoreReader(store, directory) as reader:
        assert use(reader, samples[3:]) == [3, 4, 6, 7, 8]  # 5 is empty
        assert use(reader, samples) == [0, 1, 2]
        assert use(reader, samples[::-1]) == []
    with StoreReader(store, directory) as other:
        assert use(other, samples) == []


def test_a_damaged_range_does_not_harm_those_that_overlap_it(directory: Path) -> None:
    with StoreReader(store := Shards(), directory) as reader:
        use(reader, samples := np.arange(9))
        tick()
        entry = entry_of(directory, store.expected(2))
        entry.write_bytes(bytes(len(entry.read_bytes())))
        for order in (samples, samples[::-1]):
            assert use(reader, order) in ([2], [])


def test_samples_may_be_in_a_batch_more_than_once(reader: StoreReader, directory: Path) -> None:
    samples = np.array([8, 8, 1, 8, 1])
    assert use(reader, samples) == [1, 1, 8, 8, 8]
    assert len(entries(directory)) == 2
    assert use(reader, samples) == []


def test_batches_may_be_large(directory: Path) -> None:
    store = Store((100,) * 200)
    with StoreReader(store, directory) as reader:
        assert use(reader, np.arange(0, 200, 2)) == [*range(0, 200, 2)]
        assert use(reader, np.arange(200)) == [*range(1, 200, 2)]
        assert use(reader, np.arange(200)) == []


def test_readers_share_a_directory(store: Store, directory: Path) -> None:
    with StoreReader(store, directory) as one, StoreReader(store, directory) as other:
        assert use(one, ALL[:6]) == [*range(6)]
        assert use(other) == [*range(6, len(SIZES))]
        assert use(one) == []
    with StoreReader(store, directory) as later:
        assert use(later) == []


def test_another_version_is_another_entry(store: Store, directory: Path) -> None:
    with StoreReader(store, directory) as reader:
        use(reader)
    old, store.contents[8], store.versions[8] = store.contents[8], bytes(100_000), b'"new"'
    with StoreReader(store, directory) as reader:
        assert use(reader) == [8]
        assert use(reader) == []
    store.contents[8], store.versions[8] = old, b'"%032x"' % 8
    with StoreReader(store, directory) as reader:
        assert use(reader) == []  # nothing was thrown away


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((b"s3://b/k", b"v1"), (b"s3://b/kv", b"1")),
        ((b"s3://b/1", b"1 1 0 3\n"), (b"s3://b/11", b" 1 0 3\n")),
        ((b"s3://b/k", b"v"), (b"s3://c/k", b"v")),
        ((b"s3://b/k", b"v"), (b"s3://b/k", b"w")),
    ],
)
def test_no_two_objects_have_one_entry(
    directory: Path, one: tuple[bytes, bytes], other: tuple[bytes, bytes]
) -> None:
    store = Store((3, 3))
    store.catalog = Catalog.from_names([one[0], other[0]], [0, 0])
    store.versions = [one[1], other[1]]
    with StoreReader(store, directory) as reader:
        assert use(reader, np.array([0])) == [0]
        assert use(reader, np.array([0, 1])) == [1]


def test_stores_with_the_same_urls_are_told_apart(store: Store, directory: Path) -> None:
    engine: Any = preadv.read
    with StoreReader(store, directory) as reader, StoreReader(store, directory) as other:
        use(reader)
        other.cache.close()
        other.cache = Cache(store.catalog, directory, None, read=engine, store=b"elsewhere")
        assert use(other) == [*ALL]


def _replace(path: Path, content: bytes) -> None:
    Path(f"{path}-new").write_bytes(content)
    os.rename(f"{path}-new", path)


def _flip(position: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(position, os.SEEK_END)
            (byte,) = file.read(1)
            file.seek(position, os.SEEK_END)
            file.write(bytes([byte ^ 1]))

    return damage


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a bit at the start": _flip(-100_000 - TRAILER),
    "a bit in the middle": _flip(-50_000),
    "the last bit": _flip(-TRAILER - 1),
    "a digest": _flip(-TRAILER),
    "a checksum": _flip(-1),
    "zeros": lambda path: path.write_bytes(bytes(100_000 + TRAILER)) and None,
    "a torn page": lambda path: (
        path.write_bytes(path.read_bytes()[:4096] + bytes(4096) + path.read_bytes()[8192:]) and None
    ),
    "nothing": lambda path: os.truncate(path, 0),
    "a part": lambda path: os.truncate(path, 50_000),
    "no trailer": lambda path: os.truncate(path, 100_000),
    "a part of the trailer": lambda path: os.truncate(path, 100_000 + TRAILER - 1),
    "one byte more": lambda path: path.write_bytes(path.read_bytes() + b"\0") and None,
    "a foreign file": lambda path: _replace(path, b"hello"),
    "a foreign file of the same size": lambda path: _replace(path, b"x" * (100_000 + TRAILER)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
def test_a_damaged_entry_is_fetched_again(
    reader: StoreReader, directory: Path, damage: Callable[[Path], None]
) -> None:
    use(reader)
    use(reader)
    before = counted(directory)
    with StoreReader(reader.store, directory) as fresh:  # checks it for the first time
        for user in (fresh, reader):
            tick()
            damage(entry_of(directory, reader.store.expected(8)))
            assert use(user) == [8]
            assert use(reader) == use(fresh) == []
    assert counted(directory) == before


def checked_and_damaged(reader: StoreReader, directory: Path) -> Path:
    """The entry of sample 8, which was damaged after it was read and checked."""
    use(reader)
    use(reader)
    entry = entry_of(directory, reader.store.expected(8))
    _flip(-50_000)(entry)
    return entry


def test_damage_that_is_as_old_as_the_entry_is_noticed_when_it_comes_from_the_disk(
    store: Store, directory: Path
) -> None:
    with StoreReader(store, directory) as reader:
        entry = checked_and_damaged(reader, directory)
        fd = os.open(entry, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        reader.cache._checked[8] = os.fstat(fd).st_ctime_ns  # as if it had been so when checked
        os.close(fd)
        reader.turns = 0
        assert use(reader) == [8]
        assert reader.turns > 0  # it really came from the disk


def test_a_sample_that_is_damaged_where_it_is_read_first_is_wrong_everywhere(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One read makes the kernel read ahead; the next one has it from memory."""
    with StoreReader(store, directory) as reader:
        entry = checked_and_damaged(reader, directory)
        reader.cache._checked[8] = entry.stat().st_ctime_ns

        def first_from_disk(*arguments: Any) -> IntArray:
            results = preadv.read(*arguments)
            results[:1] *= not arguments[3]
            return results

        reader.cache._engine = first_from_disk
        assert use(reader, np.array([8, 8])) == [8, 8]


class TestHangingDisk:
    """Entries are written while batches are read."""

    @pytest.fixture
    def go_on(self, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
        """Nothing is written until it is set, and nobody waits for it."""
        go_on, write = threading.Event(), os.write
        monkeypatch.setattr(os, "write", lambda *a: go_on.wait(10) and write(*a))
        monkeypatch.setattr(f"{__name__}.settle", lambda cache: None)
        return go_on

    def test_it_holds_nobody_up(self, directory: Path, go_on: threading.Event) -> None:
        store = Store((100,) * 40)
        with StoreReader(store, directory) as reader:
            for sample in range(40):
                assert use(reader, np.array([sample])) == [sample]
            assert reader.cache._backlog.qsize() < 10  # memory has a bound
            go_on.set()
        with StoreReader(store, directory) as reader:
            assert 30 < len(use(reader, np.arange(40))) < 40

    def test_the_buffer_of_a_batch_is_used_again(
        self, store: Store, directory: Path, go_on: threading.Event
    ) -> None:
        with StoreReader(store, directory) as reader:
            buffer = reader.allocate(1 << 20)
            read(reader, ALL, buffer=buffer)
            buffer[:] = 0
            go_on.set()
        with StoreReader(store, directory) as reader:
            assert use(reader) == []

    def test_closing_waits_for_what_is_left(
        self, store: Store, directory: Path, go_on: threading.Event
    ) -> None:
        with StoreReader(store, directory) as reader:
            use(reader)
            (timer := threading.Timer(0.1, go_on.set)).start()
        assert len(entries(directory)) == len(SIZES)
        timer.join()

    def test_closing_does_not_wait_for_ever(
        self, store: Store, directory: Path, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cache_module, "_CLOSING_S", 0.05)
        with StoreReader(store, directory) as reader:
            for sample in (7, 8, 9):
                use(reader, np.array([sample]))
            writer = reader.cache._writer
        go_on.set()
        assert writer
        writer.join(60)
        assert not writer.is_alive()
        assert not descriptors(directory)
        assert len(entries(directory)) < 2  # what waited is dropped
        assert counted(directory) == occupied(directory)


def test_entries_that_changed_places_are_fetched_again(store: Store, directory: Path) -> None:
    with StoreReader(store, directory) as reader:
        use(reader)
        one, other = (entry_of(directory, store.expected(sample)) for sample in (8, 9))
        os.rename(one, directory / "between")
        os.rename(other, one)
        os.rename(directory / "between", other)
        assert use(reader) == [8, 9]
    with StoreReader(store, directory) as reader:
        assert use(reader) == []


def test_what_cannot_be_removed_is_never_used(
    reader: StoreReader, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(reader)
    tick()
    _flip(-1)(entry_of(directory, reader.store.expected(8)))
    monkeypatch.setattr(os, "unlink", failing(errno.EROFS))
    with one_warning("nothing more is added"):
        assert use(reader) == [8]
    assert use(reader) == [8]


def test_closing_leaves_nothing_open(store: Store, directory: Path) -> None:
    with nothing_is_left():
        for _ in range(3):
            with StoreReader(store, directory) as reader:
                use(reader)
                reader.close()
    assert not [path for path in entries(directory) if path.suffix]


def test_threads_use_it_together(store: Store, directory: Path) -> None:
    faults = []
    with StoreReader(store, directory) as reader:

        def work(seed: int) -> None:
            random = np.random.default_rng(seed)
            for _ in range(30):
                samples = random.integers(0, len(SIZES), 5)
                expected = [store.expected(sample) for sample in samples.tolist()]
                if read(reader, samples, store.catalog) != expected:
                    faults.append(samples)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        assert use(reader) == []
        assert counted(directory) == occupied(directory)


class TestOpening:
    def test_the_directory_is_created_for_its_user_alone(
        self, reader: StoreReader, directory: Path
    ) -> None:
        use(reader)
        assert directory.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in entries(directory)} == {0o600}

    def test_a_relative_path_stays_where_it_was(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with StoreReader(store, Path("cache")) as reader:
            monkeypatch.chdir("/")
            use(reader)
            assert use(reader) == []

    @pytest.mark.parametrize(
        ("path", "number"), [("file", errno.ENOTDIR), ("missing/cache", errno.ENOENT)]
    )
    def test_what_is_no_directory_is_refused(
        self, store: Store, tmp_path: Path, path: str, number: int
    ) -> None:
        (tmp_path / "file").touch()
        with nothing_is_left(), pytest.raises(OSError, match="the option cache") as caught:
            StoreReader(store, tmp_path / path)
        assert caught.value.errno == number
        assert caught.value.filename == str(tmp_path / path)

    def test_a_directory_that_cannot_be_written_is_refused(
        self, store: Store, small_disk: Path
    ) -> None:
        run("mount", "-o", "remount,ro", str(small_disk))
        with (
            nothing_is_left(),
            pytest.raises(OSError, match="this user can write") as caught,
        ):
            StoreReader(store, small_disk)
        assert caught.value.errno == errno.EROFS

    def test_the_cache_of_another_user_is_refused(self, directory: Path) -> None:
        if os.geteuid():
            pytest.skip("needs root, to be two users")
        with StoreReader(Store(), directory):
            pass
        directory.chmod(0o777)
        directory.parent.chmod(0o755)
        script = """if 1:
            import os
            from dali_storage.backends.objects.cache.entries import Entries
            os.setuid(65534)
            os.mkdir("cache/mine")
            try:
                Entries(b"cache", None, b"")
            except PermissionError as error:
                print(error)
        """
        command = [sys.executable, "-c", script]
        python = os.environ | {"PYTHONPATH": str(ROOT)}
        at = {"cwd": directory.parent, "env": python}
        told = subprocess.run(command, check=True, capture_output=True, text=True, **at).stdout  # type: ignore[call-overload]
        assert "no other user has a cache: 'cache'" in told

    def test_two_layouts_share_a_directory(
        self, store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with StoreReader(store, directory) as reader:
            use(reader)
        files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
        monkeypatch.setattr(entries_module, "_LAYOUT", b"objects-2")
        with StoreReader(store, directory) as newer:
            assert use(newer) == [*ALL]
            assert use(newer) == []
        assert {path: path.read_bytes() for path in files} == files


class TestPromises(SnapshotRangeTests, SnapshotReaderTests):
    """Those of a reader hold with a cache, too. It keeps what it has, as a snapshot does."""

    batches = 50
    openings = 2
    settling = ObjectTests.settling

    @pytest.fixture(autouse=True)
    def bucket(self, server: FaultServer, directory: Path, tmp_path: Path) -> None:
        self.served, self.cache = directory, tmp_path / "cache"
        server.serve("data", directory)

    def open(self, catalog: Catalog) -> Reader:
        return ObjectStoreReader(catalog, cache=self.cache)

    def published(self, catalog: Catalog) -> Catalog:
        return replace(catalog, root=b"s3://data")

    def file(self, catalog: Catalog, sample: int) -> Path:
        return self.served / os.fsdecode(catalog.name(sample))


class TestReader:
    """The backend with a cache."""

    @pytest.fixture
    def listed(self, server: FaultServer, store: Store) -> Catalog:
        """The objects of the store on the server, as a listing has them."""
        for number, content in enumerate(store.contents):
            server.put(f"bucket/{number}.jpg", content)
        sizes = np.array(SIZES)
        etags = [b'"%s"' % md5(c).hexdigest().encode() for c in store.contents]
        return replace(store.catalog, sizes=sizes, versions=np.array(etags))

    @pytest.fixture
    def unlisted(self, listed: Catalog) -> Catalog:
        return replace(listed, sizes=None, versions=None)

    def read(
        self, catalog: Catalog, directory: Path, samples: IntArray = ALL, **options: Any
    ) -> Any:
        with ObjectStoreReader(catalog, cache=directory, **options) as reader:
            return read(reader, samples, catalog)

    def test_a_second_epoch_asks_for_nothing(
        self, listed: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        assert self.read(listed, directory) == store.contents
        assert len(server.log(clear=True)) == len(SIZES)
        before = threads()
        with ObjectStoreReader(listed, cache=directory) as reader:
            assert read(reader, ALL, listed) == store.contents
            assert threads() <= before
        assert server.log() == []

    def test_only_what_is_missing_is_asked_for(
        self, listed: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        self.read(listed, directory, ALL[:6])
        server.log(clear=True)
        assert self.read(listed, directory, ALL[::-1]) == store.contents[::-1]
        asked = sorted(request.key for request in server.log())
        assert asked == [f"bucket/{number}.jpg" for number in range(6, 10)]

    def test_versions_that_nobody_listed_are_asked_once(
        self, unlisted: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        self.read(unlisted, directory)
        server.log(clear=True)
        with ObjectStoreReader(unlisted, cache=directory) as reader:
            for _ in range(2):
                assert read(reader, ALL, unlisted) == store.contents
        assert [request.kind for request in server.log()] == ["HEAD"] * len(SIZES)

    def test_a_new_version_is_read_from_the_store(
        self, unlisted: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        self.read(unlisted, directory)
        changed = bytes(100_000)
        server.put("bucket/8.jpg", changed)
        for _ in range(2):
            contents = self.read(unlisted, directory)
            assert contents == [*store.contents[:8], changed, store.contents[9]]

    def test_an_object_that_was_replaced_is_refused_and_not_kept(
        self, listed: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        server.put("bucket/8.jpg", bytes(100_000))
        with pytest.raises(ObjectReplacedError):
            self.read(listed, directory)
        server.put("bucket/8.jpg", store.contents[8])
        assert self.read(listed, directory) == store.contents

    def test_a_replaced_object_is_what_was_listed_while_it_is_in_the_cache(
        self, listed: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        self.read(listed, directory)
        server.put("bucket/8.jpg", bytes(100_000))
        assert self.read(listed, directory) == store.contents

    @pytest.mark.parametrize("mode", ["cut", "short", "foreign-etag", "403", "cut-swap"])
    def test_nothing_wrong_is_kept(
        self, listed: Catalog, store: Store, server: FaultServer, directory: Path, mode: str
    ) -> None:
        server.fail(mode, 1, key="bucket/9.jpg")
        with suppress(OSError):
            self.read(listed, directory, retry=1)
        server.put("bucket/9.jpg", store.contents[9])
        server.heal()
        assert self.read(listed, directory) == self.read(listed, directory) == store.contents

    def test_endpoints_are_told_apart(
        self, listed: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        self.read(listed, directory)
        server.log(clear=True)
        self.read(listed, directory, endpoint=server.url.replace("127.0.0.1", "localhost"))
        assert len(server.log()) == len(SIZES)

    def test_ranges_of_containers(self, server: FaultServer, directory: Path) -> None:
        shards = Shards()
        for number, content in enumerate(shards.contents):
            server.put(f"bucket/{number}.jpg", content)
        expected = [shards.expected(sample) for sample in range(9)]
        assert self.read(shards.catalog, directory, np.arange(0, 9, 2)) == expected[::2]
        assert self.read(shards.catalog, directory, np.arange(9)) == expected
        server.log(clear=True)
        assert self.read(shards.catalog, directory, np.arange(9)[::-1]) == expected[::-1]
        assert {request.kind for request in server.log()} == {"HEAD"}

    def test_without_strong_versions_nothing_is_kept(
        self, unlisted: Catalog, store: Store, server: FaultServer, directory: Path
    ) -> None:
        server.fail("no-etag", 1000, on="HEAD")
        server.fail("no-etag", 1000, on="GET")
        with one_warning("no strong ETag of 's3://bucket/0.jpg'"):
            assert self.read(unlisted, directory) == store.contents
        assert not entries(directory)

    def test_its_turn_is_given_away_before_it_asks(self, listed: Catalog, directory: Path) -> None:
        turns: list[int] = []
        with ObjectStoreReader(listed, cache=directory) as reader:
            assert reader.cooperative
            reader.yield_turn = lambda: turns.append(1)
            read(reader, ALL, listed)
            assert turns
            settle(reader._cache)
            turns.clear()
            read(reader, ALL, listed)
            assert not turns
            tick()
            for entry in entries(directory):
                _flip(-1)(entry)
            read(reader, ALL, listed)
            assert turns
            turns.clear()
        with ObjectStoreReader(replace(listed, versions=None), cache=directory) as reader:
            reader.yield_turn = lambda: turns.append(1)
            reader.sizes(ALL, 0)
            assert turns
        with ObjectStoreReader(listed) as reader:
            assert not reader.cooperative

    def test_without_google_crc32c_only_the_cache_is_refused(
        self, listed: Catalog, store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "google_crc32c", None)
        for name in ("samples", "entries"):
            monkeypatch.delitem(sys.modules, f"dali_storage.backends.objects.cache.{name}")
        with ObjectStoreReader(listed) as reader:
            assert read(reader, ALL, listed) == store.contents
        with nothing_is_left(), pytest.raises(BackendUnavailable, match="google-crc32c") as caught:
            ObjectStoreReader(listed, cache=directory)
        assert "dali-storage[object-store]" in caught.value.remedy
        assert not directory.exists()

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"cache_bytes": 1 << 30}, "cache_bytes needs cache"),
            ({"cache": "x", "check": False}, "cache needs check=True"),
            ({"cache": "x", "cache_bytes": 0}, "cache_bytes must be an integer"),
            ({"cache": "x", "cache_bytes": "1G"}, "cache_bytes must be an integer"),
            ({"cache": ""}, "cache must be the path of a directory, not ''"),
            ({"cache": "a\0b"}, "cache must be the path of a directory, not 'a.x00b'"),
            ({"cache": 17}, "cache must be the path of a directory, not 17"),
        ],
    )
    def test_wrong_options(
        self, listed: Catalog, tmp_path: Path, options: Any, message: str
    ) -> None:
        with nothing_is_left(), pytest.raises(ValueError, match=message):
            ObjectStoreReader(listed, **options)


class TestRoom:
    """How much is written."""

    def test_nothing_is_added_to_a_full_directory(self, store: Store, directory: Path) -> None:
        limit = 2 * BLOCK + occupied_by(100_000)
        with StoreReader(store, directory, limit) as reader:
            assert use(reader, np.array([8, 4, 0, 1])) == [0, 1, 4, 8]
            assert use(reader, np.array([8, 4, 0, 1])) == [0, 1]  # 4 needs two blocks
            assert use(reader) == [0, 1, 2, 3, 5, 6, 7, 9]
            assert occupied(directory) == counted(directory) == limit
            assert use(reader, np.array([4, 8])) == []
        with StoreReader(store, directory, limit + BLOCK) as reader:
            assert use(reader, np.array([8, 4, 0, 1])) == [0, 1]
            assert use(reader, np.array([8, 4, 0, 1])) == [1]

    def test_what_was_damaged_makes_room(self, store: Store, directory: Path) -> None:
        with StoreReader(store, directory, occupied_by(100_000)) as reader:
            use(reader, np.array([8]))
            tick()
            os.truncate(entries(directory)[0], 0)
            assert use(reader, np.array([8])) == [8]
            assert use(reader, np.array([8])) == []

    def test_four_processes_keep_to_one_limit(self, directory: Path) -> None:
        limit = 3_000_000
        seeds = (0, 0, 1, 2)  # two write the same entries
        with ExitStack() as stack:
            processes = [stack.enter_context(fill(directory, limit, seed)) for seed in seeds]
            assert [process.wait(60) for process in processes] == [0] * 4
        assert limit - occupied_by(20_000) < occupied(directory) <= limit
        assert counted(directory) == occupied(directory)
        assert not [path for path in entries(directory) if path.suffix]

    def test_threads_count_together(
        self, store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def slow(*arguments: Any, pread: Any = os.pread) -> Any:
            found = pread(*arguments)
            time.sleep(0.001)
            return found

        with StoreReader(store, directory) as reader:
            take, granted = reader.cache._entries._room.take, [0]
            take(0)
            monkeypatch.setattr(os, "pread", slow)
            work = lambda: granted.extend(take(BLOCK) for _ in range(10))  # noqa: E731
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert counted(directory) == sum(granted) > 10 * BLOCK

    def test_a_tenth_of_the_disk_stays_free_without_a_limit(self, small_disk: Path) -> None:
        store = Store((4000,) * 300)
        with StoreReader(store, small_disk) as reader:
            for start in range(0, 300, 20):
                use(reader, np.arange(start, start + 20))
        status = os.statvfs(small_disk)
        assert status.f_blocks // 10 <= status.f_bavail < status.f_blocks // 5
        assert not [path for path in entries(small_disk) if path.suffix]

    def test_a_process_that_was_stopped_while_it_counted_stops_nobody_else(
        self, store: Store, directory: Path
    ) -> None:
        with StoreReader(store, directory) as reader, StoreReader(store, directory) as other:
            with other.cache._entries._room._locked() as locked:
                assert locked
                assert use(reader) == [*ALL]
            assert use(reader) == [*ALL]
            assert use(reader) == []

    @pytest.mark.parametrize("record", [b"", bytes(20), b"\xff" * 20, b"torn"])
    def test_a_count_that_was_lost_is_made_anew(
        self, store: Store, directory: Path, record: bytes
    ) -> None:
        limit = 3 * occupied_by(100_000)
        with StoreReader(store, directory, limit) as reader:
            use(reader, np.array([8, 9]))
        (directory / "objects-1/count").write_bytes(record)
        store.contents += Store((100_000,) * 2, 1).contents
        with StoreReader(store, directory, limit) as reader:
            use(reader, np.array([7, 6, 8]))
            assert occupied(directory) == counted(directory) <= limit


class TestSweeping:
    """When the directory is full, what nobody uses any more is removed."""

    LIMIT = 2 * 102_400

    @pytest.fixture
    def full(self, store: Store, directory: Path) -> Iterator[StoreReader]:
        with StoreReader(store, directory, self.LIMIT) as reader:
            use(reader, np.array([8, 9]))
            yield reader

    def age(self, path: Path, days: float, unread: float | None = None) -> None:
        now = time.time()
        os.utime(path, (now - (days if unread is None else unread) * DAY, now - days * DAY))

    def later(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pretend that the last time was two days ago."""
        monkeypatch.setattr(room_module.time, "time", lambda now=time.time: now() + 2 * DAY)

    def test_old_entries_make_room_for_new_ones(
        self, full: StoreReader, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.age(entry_of(directory, full.store.expected(8)), 31)
        assert use(full, np.array([7])) == use(full, np.array([7])) == [7]  # swept today
        self.later(monkeypatch)
        assert use(full, np.array([7])) == [7]
        assert use(full, np.array([7, 9])) == []
        assert use(full, np.array([8])) == [8]
        assert counted(directory) == occupied(directory) <= self.LIMIT

    def test_entries_that_were_read_of_late_stay(
        self, full: StoreReader, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.age(entry_of(directory, full.store.expected(8)), 40, unread=20)
        self.age(entry_of(directory, full.store.expected(9)), 40, unread=27)
        self.later(monkeypatch)
        assert use(full, np.array([7])) == [7]
        assert use(full, np.array([8, 9])) == []

    def test_it_is_done_once_a_day(
        self, full: StoreReader, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sweep, sweeps = room_module.Quota._sweep, []
        count = lambda room: sweeps.append(1) or sweep(room)  # noqa: E731
        monkeypatch.setattr(room_module.Quota, "_sweep", count)
        self.later(monkeypatch)
        for _ in range(3):
            use(full, np.array([7, 6]))
        assert sweeps == [1]

    def test_what_was_counted_but_never_written_is_free_again(
        self, store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with StoreReader(store, directory, self.LIMIT) as reader:
            reader.cache._entries._room.take(self.LIMIT)  # and killed
            assert use(reader, np.array([8])) == use(reader, np.array([8])) == [8]
            self.later(monkeypatch)
            assert use(reader, np.array([8])) == [8]
            assert use(reader, np.array([8])) == []

    def test_what_crashed_writers_left_is_removed(
        self, full: StoreReader, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entry = entries(directory)[0]
        old, new = (entry.with_name(f"{name}.tmp") for name in ("old", "new"))
        for path, days in ((old, -2 + 2 / 24), (new, -2)):  # from two days later on
            path.write_bytes(b"part")
            self.age(path, days)
        self.later(monkeypatch)
        use(full, np.array([7]))
        assert new.exists()
        assert not old.exists()

    def test_other_files_stay(
        self, full: StoreReader, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for path in (directory / "mine", directory / "objects-1/count", directory / "objects-2/a"):
            path.parent.mkdir(exist_ok=True)
            path.open("a").close()
            self.age(path, 100)
        self.later(monkeypatch)
        use(full, np.array([7]))
        assert (directory / "mine").exists()
        assert (directory / "objects-1/count").exists()
        assert (directory / "objects-2/a").exists()


class TestFailures:
    """What the disk does to a cache costs no byte and no error, but one warning."""

    def test_a_writer_that_was_killed(self, directory: Path) -> None:
        with fill(directory, 1 << 30, 0, "dies") as writer:
            assert writer.wait(60) == -signal.SIGKILL
        (temporary,) = (path for path in entries(directory) if path.suffix)
        store, samples = Store((20_000,)), np.array([0])
        store.versions = [b"0"]
        with StoreReader(store, directory) as reader:
            assert use(reader, samples) == [0]
            assert use(reader, samples) == [0]  # it might be written just now
            os.utime(temporary, (time.time() - 7200,) * 2)
            assert use(reader, samples) == [0]  # removes it
            assert use(reader, samples) == [0]
            assert use(reader, samples) == []
        assert not temporary.exists()

    def test_writers_that_are_killed_at_any_moment(self, directory: Path) -> None:
        limit = 3_000_000
        for round_ in range(3):
            with fill(directory, limit, 0) as writer:
                while writer.poll() is None and len(entries(directory)) < 30 * round_:
                    time.sleep(0.001)
            assert occupied(directory) <= limit
        store = Store((20_000,) * 200)
        store.versions = [b"0"] * 200
        with StoreReader(store, directory, limit) as reader:
            assert len(use(reader, np.arange(200))) < 200
            assert limit >= counted(directory) >= occupied(directory)

    def test_no_thread_for_writing(
        self, store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", start)
        with StoreReader(store, directory) as reader:
            with one_warning("can't start new thread; nothing more is added"):
                assert use(reader) == [*ALL]
            assert use(reader) == [*ALL]

    def test_a_full_disk(self, small_disk: Path) -> None:
        store = Store((100_000,) * 20)
        with StoreReader(store, small_disk, 1 << 30) as reader:
            with one_warning(f"cache='{small_disk}'.*No space left"):
                use(reader, np.arange(20))
            assert counted(small_disk) == occupied(small_disk)
            use(reader, np.arange(20))
            assert use(reader, np.arange(5)) == []
        assert not [path for path in entries(small_disk) if path.suffix]

    @pytest.mark.parametrize("call", ["open", "write", "rename", "pwrite", "pread", "statvfs"])
    def test_a_call_that_fails(
        self,
        store: Store,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
    ) -> None:
        with StoreReader(store, directory) as reader:
            use(reader, ALL[:5])
            with monkeypatch.context() as patch:
                patch.setattr(os, call, failing(errno.EDQUOT))
                with one_warning("nothing more is added"):
                    assert use(reader, ALL[3:]) == [5, 6, 7, 8, 9]
                    assert use(reader) == [5, 6, 7, 8, 9]
            assert use(reader) == [5, 6, 7, 8, 9]
        assert not [path for path in entries(directory) if path.suffix]

    def test_entries_that_cannot_be_read(self, store: Store, directory: Path) -> None:
        with StoreReader(store, directory) as reader:
            use(reader)

            def fail(fds: Any, iovecs: Any, offsets: Any, flags: int = 0) -> IntArray:
                return np.full(len(iovecs), -errno.EIO, np.int64)

            works, reader.cache._engine = reader.cache._engine, fail
            with one_warning("Input/output error"):
                assert use(reader) == [*ALL]
                assert use(reader) == [*ALL]
            reader.cache._engine = works
            assert use(reader) == [*ALL]  # nothing was added

    def test_the_directory_is_deleted(self, store: Store, directory: Path) -> None:
        with StoreReader(store, directory) as reader:
            use(reader, ALL[:5])
            shutil.rmtree(directory)
            with one_warning("No such file"):
                assert use(reader) == [*ALL]
                assert use(reader) == [*ALL]
            assert not directory.exists()
        with StoreReader(store, directory) as reader, warnings.catch_warnings():
            warnings.simplefilter("error")
            use(reader)
            assert use(reader) == []

    def test_too_many_open_files(self, store: Store, directory: Path) -> None:
        script = f"""if 1:
            import os, resource, numpy as np
            from pathlib import Path
            from tests.test_objects_cache import *
            with StoreReader(Store(), Path({str(directory)!r})) as reader:
                assert use(reader) == [*ALL]
                _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
                fds = len(os.listdir("/proc/self/fd"))
                resource.setrlimit(resource.RLIMIT_NOFILE, (fds + 3, hard))
                asked = use(reader)
                assert 0 < len(asked) < len(ALL), asked
                resource.setrlimit(resource.RLIMIT_NOFILE, (fds + 100, hard))
                assert use(reader) == []
        """
        subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def occupied_by(size: int) -> int:
    return -(-(size + TRAILER) // BLOCK) * BLOCK


_FILL = """if 1:
    import os, signal, sys, numpy as np
    from dali_storage.backends.objects.cache.entries import Entries
    directory, limit, seed, rename = sys.argv[1:]
    if rename == "dies":
        os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    random = np.random.default_rng(int(seed))
    contents = [np.frombuffer(random.bytes(20_000), np.uint8) for _ in range(200)]
    entries = Entries(os.fsencode(directory), int(limit), b"")
    digests = [
        entries.digest(b"s3://bucket/%d.jpg" % i, seed.encode(), 0, 20_000) for i in range(200)
    ]
    for i in range(0, 200, 8):
        entries.add(digests[i : i + 8], contents[i : i + 8])
"""


def fill(
    directory: Path, limit: int, seed: int, rename: str = ""
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A process that writes what a `Store` of 200 samples of 20,000 bytes has."""
    return started([sys.executable, "-c", _FILL, directory, limit, seed, rename])


def failing(number: int) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail
