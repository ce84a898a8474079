"""Readers of one cache beside a model. The oracle is what the store has, and what it was asked."""

import errno
import os
import shutil
import tempfile
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dali_storage.backends.objects.cache import quota
from tests.kit.objects.cached import (
    ALL,
    BLOCK,
    TRAILER,
    Folder,
    Shards,
    Store,
    StoreReader,
    failing,
    flip,
    occupied_by,
    one_warning,
    tick,
)


def changed(make):
    """Damages a file by what `make` makes of its content."""
    return lambda path: path.write_bytes(make(path.read_bytes()))


DAMAGES = [
    lambda path: flip(-(path.stat().st_size + 1) // 2)(path),  # a bit
    lambda path: flip(-min(path.stat().st_size, TRAILER + 1))(path),  # the last bit
    flip(-TRAILER),  # a digest
    flip(-1),  # a checksum
    changed(lambda content: bytes(len(content))),  # zeros
    changed(lambda content: content[:4096] + bytes(4096) + content[8192:]),  # a torn page
    changed(lambda content: b""),  # nothing
    changed(lambda content: content[: len(content) // 2]),  # a part
    changed(lambda content: content[:-TRAILER]),  # no trailer
    changed(lambda content: content[:-1]),  # a part of the trailer
    changed(lambda content: content + b"\0"),  # one byte more
    lambda path: (path.unlink(), path.write_bytes(b"hello")),  # a foreign file
    changed(lambda content: b"x" * len(content)),  # a foreign file of the same size
]
CALLS = "open", "write", "rename", "pwrite", "pread", "statvfs"
VERSIONS = b'"0"', b'"1"', b'"2"', b'"3"'
EVENTS = ["", "damage", "damage", "swap", "remove", "replace", "reopen", "fail", "fail", "fail"]


class CacheMachine(RuleBasedStateMachine):
    """Two readers, as of two processes: they share the directory only.

    The model has the entries by sample and version, False for those damaged, and the bytes counted.
    One reader may fill the directory by a block more than the other; or neither has a limit.
    """

    @initialize(
        kind=st.sampled_from([Store, Shards]),
        limits=st.sampled_from([(None, None), (44 * BLOCK, 45 * BLOCK)]),
    )
    def open(self, kind, limits):
        self.folder, self.limits = Folder(tempfile.mkdtemp()) / "cache", limits
        self.patch = patch.object(quota, "_KEPT_FREE", 0)  # the disk may be nearly full
        self.patch.start()
        self.store, self.kinds = kind(), [kind(seed=seed).contents for seed in range(len(VERSIONS))]
        self.entries, self.used = dict[tuple[int, int], bool](), 0
        self.free = {5} if kind is Shards else set[int]()  # an empty range is not asked for
        self.versions = [0 for _ in self.store.contents]
        self.publish()
        self.readers, self.adds = [*map(self.reader, limits)], [True, True]

    def publish(self):
        self.store.versions = [VERSIONS[self.versions[file]] for file in self.store.files]

    def reader(self, limit):
        return StoreReader(self.store, self.folder, limit)

    def path(self, key):
        """The file of an entry."""
        (sample, version), entries = key, self.readers[0].cache._entries
        url, start = self.store.catalog.path(sample), int(self.store.starts[sample])
        place = VERSIONS[version], start, len(self.store.expected(sample))
        return Path(os.fsdecode(entries.path(entries.digest(url, *place))))

    @rule(
        event=st.sampled_from(EVENTS),
        numbers=st.tuples(st.integers(0, 99), st.integers(0, 99)),
        call=st.sampled_from(CALLS),
        reader=st.integers(0, 1),
        samples=st.lists(st.sampled_from([*ALL.tolist()]), min_size=1, max_size=9),
    )
    def read(self, event, numbers, call, reader, samples):
        """After an event; what is not in the cache is asked for, and added if there is room."""
        entries = [key for key, valid in self.entries.items() if valid]
        if event in ("replace", "fail"):
            file = numbers[0] % len(self.versions)
            self.versions[file] = numbers[1] % len(VERSIONS)
            self.store.contents[file] = self.kinds[self.versions[file]][file]
            self.publish()
        if event in ("reopen", "fail"):
            self.readers[reader].close()
            self.readers[reader] = self.reader(self.limits[reader])
            self.adds[reader] = True
        elif entries and event in ("damage", "swap", "remove"):
            self.harm(event, entries, *numbers)
        samples = [sample % len(self.store.files) for sample in samples]
        keys = [(it, self.versions[self.store.files[it]]) for it in samples if it not in self.free]
        asked = [key for key in keys if not self.entries.get(key)]
        damaged = {key for key in asked if key in self.entries}
        fails = event == "fail" and not self.limits[0] and asked
        call = "unlink" if damaged else call
        fault = patch.object(os, call, failing(errno.ENOSPC)) if fails else nullcontext()
        warning = one_warning("No space left.*no more samples are cached")
        with fault, warning if fails else nullcontext():
            assert self.readers[reader].use(samples) == sorted(sample for sample, _ in asked)
        self.adds[reader] &= not fails
        for key in damaged if not fails else ():  # or it cannot be removed
            del self.entries[key]
            self.used -= self.cost(key)
        if self.adds[reader]:
            self.add(asked, self.limits[reader] or 1 << 40)

    def harm(self, event, entries, number, another):
        tick()
        one, other = (entries[each % len(entries)] for each in (number, another))
        path = self.path(one)
        if event == "remove":
            path.unlink()  # it stays counted
            del self.entries[one]
        elif event == "damage":  # half of them, by other means each
            for position, key in enumerate(entries[another % 2 :: 2]):
                DAMAGES[(number + position) % len(DAMAGES)](self.path(key))
                self.entries[key] = False
        elif one != other:
            there = self.path(other)
            os.rename(path, between := self.folder / "between")
            os.rename(there, path)
            os.rename(between, there)
            self.entries[one] = self.entries[other] = False

    def add(self, keys, limit):
        room = min(sum(map(self.cost, keys)), limit - self.used)
        for key in keys:
            if key not in self.entries and (cost := self.cost(key)) <= room:
                self.entries[key] = True
                self.used += cost
                room -= cost

    def cost(self, key):
        return occupied_by(len(self.store.expected(key[0])))

    @invariant()
    def the_directory_is_that_of_the_model(self):
        assert len(self.folder.entries()) == len(self.entries)
        assert self.folder.counted() == self.used <= (self.limits[1] or self.used)

    def teardown(self):
        for reader in self.readers:
            reader.close()
        self.patch.stop()
        shutil.rmtree(Path(self.folder).parent)


TestCache = CacheMachine.TestCase
# To shrink would take minutes.
TestCache.settings = settings(
    phases={*Phase} - {Phase.shrink},
    stateful_step_count=30,
    max_examples=max(40, settings().max_examples),
)
