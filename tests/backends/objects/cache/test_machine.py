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

from tests.kit.objects.cached import (
    ALL,
    TRAILER,
    Folder,
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


DAMAGES = {
    "a bit": lambda path: flip(-(path.stat().st_size + 1) // 2)(path),
    "the last bit": lambda path: flip(-min(path.stat().st_size, TRAILER + 1))(path),
    "a digest": flip(-TRAILER),
    "a checksum": flip(-1),
    "zeros": changed(lambda content: bytes(len(content))),
    "a torn page": changed(lambda content: content[:4096] + bytes(4096) + content[8192:]),
    "nothing": changed(lambda content: b""),
    "a part": changed(lambda content: content[: len(content) // 2]),
    "no trailer": changed(lambda content: content[:-TRAILER]),
    "a part of the trailer": changed(lambda content: content[:-1]),
    "one byte more": changed(lambda content: content + b"\0"),
    "a foreign file": lambda path: (path.unlink(), path.write_bytes(b"hello")),
    "a foreign file of the same size": changed(lambda content: b"x" * len(content)),
}
CALLS = "open", "write", "rename", "pwrite", "pread"
VERSIONS = b'"0"', b'"1"'
EVENTS = ["", "", "damage", "swap", "remove", "replace", "reopen", "fail"]


class CacheMachine(RuleBasedStateMachine):
    """Two readers, as of two processes: they share the directory only.

    The model has the entries by sample and version, False for those damaged, and the bytes counted.
    """

    @initialize(limit=st.sampled_from([1 << 30, 180_000]))
    def open(self, limit):
        self.folder, self.limit = Folder(tempfile.mkdtemp()) / "cache", limit
        self.store, self.kinds = Store(), [Store(seed=seed).contents for seed in (0, 1)]
        self.entries, self.used = dict[tuple[int, int], bool](), 0
        self.versions = [0 for _ in ALL]
        self.store.versions = [VERSIONS[0] for _ in ALL]
        self.readers, self.adds = [self.reader(), self.reader()], [True, True]

    def reader(self):
        return StoreReader(self.store, self.folder, self.limit)

    def path(self, key):
        """The file of an entry."""
        (sample, version), entries = key, self.readers[0].cache._entries
        url, size = self.store.catalog.path(sample), len(self.store.contents[sample])
        return Path(os.fsdecode(entries.path(entries.digest(url, VERSIONS[version], 0, size))))

    @rule(
        event=st.sampled_from(EVENTS),
        numbers=st.tuples(st.integers(0, 99), st.integers(0, 99)),
        damage=st.sampled_from([*DAMAGES]),
        reader=st.integers(0, 1),
        samples=st.lists(st.sampled_from([*ALL.tolist()]), min_size=1, max_size=9),
    )
    def read(self, event, numbers, damage, reader, samples):
        """After an event; what is not in the cache is asked for, and added if there is room."""
        entries = [key for key, valid in self.entries.items() if valid]
        chosen = [entries[number % len(entries)] for number in numbers] if entries else []
        if event == "replace":
            sample = numbers[0] % len(ALL)
            self.versions[sample] ^= 1
            self.store.contents[sample] = self.kinds[self.versions[sample]][sample]
            self.store.versions[sample] = VERSIONS[self.versions[sample]]
        elif event == "reopen":
            self.readers[reader].close()
            self.readers[reader], self.adds[reader] = self.reader(), True
        elif chosen and event in ("damage", "swap", "remove"):
            self.harm(event, *chosen, damage)
        keys = [(sample, self.versions[sample]) for sample in samples]
        asked = [key for key in keys if not self.entries.get(key)]
        damaged = {key for key in asked if key in self.entries}
        fails = event == "fail" and self.limit > self.used + 1_000_000 and self.adds[reader]
        fails = fails and asked and not damaged
        call = CALLS[numbers[0] % len(CALLS)]
        fault = patch.object(os, call, failing(errno.ENOSPC)) if fails else nullcontext()
        warning = one_warning("No space left.*no more samples are cached")
        with fault, warning if fails else nullcontext():
            assert self.readers[reader].use(samples) == sorted(sample for sample, _ in asked)
        self.adds[reader] &= not fails
        for key in damaged:
            del self.entries[key]
            self.used -= self.cost(key)
        if self.adds[reader]:
            self.add(asked)

    def harm(self, event, one, other, damage):
        tick()
        path = self.path(one)
        if event == "remove":
            path.unlink()  # it stays counted
            del self.entries[one]
        elif event == "damage":
            DAMAGES[damage](path)
            self.entries[one] = False
        elif one != other:
            there = self.path(other)
            os.rename(path, between := self.folder / "between")
            os.rename(there, path)
            os.rename(between, there)
            self.entries[one] = self.entries[other] = False

    def add(self, keys):
        room = min(sum(map(self.cost, keys)), self.limit - self.used)
        for key in keys:
            if key not in self.entries and (cost := self.cost(key)) <= room:
                self.entries[key] = True
                self.used += cost
                room -= cost

    def cost(self, key):
        return occupied_by(len(self.store.contents[key[0]]))

    @invariant()
    def the_directory_is_that_of_the_model(self):
        assert len(self.folder.entries()) == len(self.entries)
        assert self.folder.counted() == self.used <= self.limit

    def teardown(self):
        for reader in self.readers:
            reader.close()
        shutil.rmtree(Path(self.folder).parent)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(
    phases={*Phase} - {Phase.shrink}, stateful_step_count=30
)  # to shrink would take minutes
