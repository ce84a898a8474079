"""Objects without a server, a reader that caches them, and what its directory holds."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dali_storage import Batch, Catalog, IntArray, Reader
from dali_storage.backends.linux import engines
from dali_storage.backends.objects.cache.samples import Cache
from dali_storage.contract.errors import CacheNotUsed
from dali_storage.contract.ranges import Ranges
from dali_storage.testing.reading import read
from tests.kit.file_reading import yielding
from tests.kit.process import descriptors, lanes, started

SIZES = (0, 1, 31, 4076, 4095, 4096, 4097, 65536, 100_000, 100_000)  # 4076: a page with the trailer
ALL = np.arange(len(SIZES))
BLOCK, TRAILER, DAY = 4096, 20, 86400


class Folder(type(Path())):  # type: ignore[misc]
    """The directory of a cache."""

    def entries(self) -> list[Path]:
        """The files of all entries, and temporary ones."""
        return sorted(path for path in self.glob("objects-1/*/*") if path.is_file())

    def temporary(self) -> list[Path]:
        """The files that are being written, or never were to their end."""
        return [path for path in self.entries() if path.suffix]

    def counted(self) -> int:
        """The bytes that all processes together believe to have written."""
        return int.from_bytes((self / "objects-1/count").read_bytes()[:8], "little")

    def occupied(self) -> int:
        """The bytes that the entries really take."""
        return sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in self.entries())


class Store:
    """Objects as a store has them, and a log of what it was asked for."""

    def __init__(self, sizes: tuple[int, ...] = SIZES, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.contents = [random.bytes(size) for size in sizes]
        self.versions = [b'"%032x"' % number for number in range(len(sizes))]
        self.log: list[int] = []
        self.files, self.starts = np.arange(len(sizes)), np.zeros(len(sizes), np.int64)
        names = [b"s3://bucket/%d.jpg" % number for number in range(len(sizes))]
        self.catalog = Catalog.from_names(names, [0] * len(sizes))

    def expected(self, sample: int) -> bytes:
        return self.contents[sample]


class Shards(Store):
    """Samples that are ranges of two objects; some of them overlap, and the sixth is empty."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__((50_000, 70_000), seed)
        self.starts = np.array([10, 10, 100, 20_000, 49_999, 0, 10, 30_000, 11])
        self.lengths = np.array([10, 200, 5000, 29_999, 1, 0, 4096, 40_000, 4096])
        self.files = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
        ranges = Ranges.of_columns(self.files, self.starts, self.lengths)
        self.catalog = replace(self.catalog, ranges=ranges)
        self.versions = [self.versions[file] for file in self.files]

    def expected(self, sample: int) -> bytes:
        start, size = self.starts[sample], self.lengths[sample]
        return self.contents[self.files[sample]][start : start + size]


class StoreReader(Reader):
    """Reads a `Store` through a cache.

    Attributes:
        settles: wait after each batch until everything that was added has been written.
        turns: how often the cache was about to block.
    """

    reads_ranges = True
    alignment = 64
    settles = True

    def __init__(self, store: Store, folder: Folder, limit: int | None = None) -> None:
        self.store, self.folder, self.turns = store, folder, 0
        engine: Any = engines.preadv
        self.cache = Cache(store.catalog, folder, limit, read=engine)

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return np.array([len(self.store.expected(sample)) for sample in samples.tolist()])

    def read(self, batch: Batch, lane: int) -> None:
        versions = [self.store.versions[sample] for sample in batch.samples.tolist()]
        with yielding(self.give_turn):
            slots = self.cache.read(batch, versions)
        for slot in slots.tolist():
            sample, start = int(batch.samples[slot]), int(batch.offsets[slot])
            self.store.log.append(sample)
            content = np.frombuffer(self.store.expected(sample), np.uint8)
            batch.buffer[start : start + content.size] = content
        self.cache.add(batch, versions, slots)
        if self.settles:
            settle(self.cache)

    def give_turn(self) -> None:
        self.turns += 1

    def close(self) -> None:
        self.cache.close()

    def use(self, samples: Any = ALL) -> list[int]:
        """Read samples, which must have their bytes; returns which of them the store gave."""
        store, samples = self.store, np.array(samples)
        store.log.clear()
        expected = [store.expected(sample) for sample in samples.tolist()]
        assert read(self, samples, store.catalog) == expected
        return sorted(store.log)

    def entry(self, sample: int) -> Path:
        """The file of a sample's entry."""
        content, paths = self.store.expected(sample), self.folder.entries()
        (found,) = [path for path in paths if path.read_bytes()[:-TRAILER] == content]
        return found


def settle(cache: Cache | None) -> None:
    """Wait until everything that was added has been written."""
    if cache and cache._writer and cache._writer.is_alive():
        written = threading.Lock()
        written.acquire()
        cache._backlog.put(written.release)
        assert written.acquire(timeout=60)


def occupied_by(size: int) -> int:
    """The bytes that the entry of a sample takes."""
    return -(-(size + TRAILER) // BLOCK) * BLOCK


@contextmanager
def one_warning(match: str) -> Iterator[None]:
    """Assert that the block warns once that the cache is not used."""
    with pytest.warns(CacheNotUsed, match=match) as caught:
        yield
    assert len(caught) == 1


@contextmanager
def nothing_is_left(folder: Path) -> Iterator[None]:
    """Assert that the block leaves no thread of ours, and nothing open in a directory."""
    before = lanes()
    yield
    assert lanes() <= before
    assert not descriptors(folder)


def tick() -> None:
    """Wait until the clock of the files' times has gone on, so that a change has another time."""
    clock = 5  # CLOCK_REALTIME_COARSE
    now = time.clock_gettime_ns(clock)
    while time.clock_gettime_ns(clock) == now:
        time.sleep(0.001)


def flip(position: int) -> Callable[[Path], None]:
    """Damages a bit of a file; the position counts from its end."""

    def damage(path: Path) -> None:
        with open(path, "r+b") as file:
            file.seek(position, os.SEEK_END)
            (byte,) = file.read(1)
            file.seek(position, os.SEEK_END)
            file.write(bytes([byte ^ 1]))

    return damage


def failing(number: int) -> Callable[..., Any]:
    """A system call that fails."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


_FILL = """if 1:
    import os, signal, sys, numpy as np
    from dali_storage.backends.objects.cache import quota
    from dali_storage.backends.objects.cache.entries import Entries
    quota._PATIENCE_S = 600  # or else, on a busy machine, one may write less
    folder, limit, seed, rename = sys.argv[1:]
    if rename == "dies":
        os.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    random = np.random.default_rng(int(seed))
    contents = [np.frombuffer(random.bytes(20_000), np.uint8) for _ in range(200)]
    entries = Entries(os.fsencode(folder), int(limit), b"")
    names = [b"s3://bucket/%d.jpg" % i for i in range(200)]
    digests = [entries.digest(name, seed.encode(), 0, 20_000) for name in names]
    for i in range(0, 200, 8):
        entries.add(digests[i : i + 8], contents[i : i + 8])
"""


def fill(
    folder: Path, limit: int, seed: int, rename: str = ""
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A process that writes what a `Store` of 200 samples of 20,000 bytes has."""
    return started([sys.executable, "-c", _FILL, folder, limit, seed, rename])
