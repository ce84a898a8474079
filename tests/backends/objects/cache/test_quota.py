"""How much is written to the directory of a cache, and what is removed from it."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest

from dali_storage.backends.objects.cache import quota
from tests.kit.objects.cached import ALL, BLOCK, DAY, Store, StoreReader, fill, occupied_by


def test_four_processes_keep_to_one_limit(folder):
    limit = 3_000_000
    with ExitStack() as stack:  # two write the same entries
        processes = [stack.enter_context(fill(folder, limit, seed)) for seed in (0, 0, 1, 2)]
        assert [process.wait(600) for process in processes] == [0] * 4
    assert limit - occupied_by(20_000) < folder.occupied() <= limit
    assert folder.counted() == folder.occupied()
    assert not folder.temporary()


def test_threads_count_together(reader, folder, monkeypatch):
    def slow(*arguments, pread=os.pread):
        found = pread(*arguments)
        time.sleep(0.001)
        return found

    room, granted = reader.cache._entries._room, [0]
    room.take(0)
    monkeypatch.setattr(os, "pread", slow)
    monkeypatch.setattr(quota, "_PATIENCE_S", 60)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(40):
            threads.submit(lambda: granted.append(room.take(BLOCK)))
    assert folder.counted() == sum(granted) == 40 * BLOCK
    room.give_back(40 * BLOCK)


def test_a_tenth_of_the_disk_stays_free_without_a_limit(small_disk):
    with StoreReader(Store((4000,) * 300), small_disk) as reader:
        for start in range(0, 300, 20):
            reader.use(np.arange(start, start + 20))
    status = os.statvfs(small_disk)
    assert status.f_blocks // 10 <= status.f_bavail < status.f_blocks // 5
    assert not small_disk.temporary()


def test_a_process_that_was_stopped_while_it_counted_stops_nobody_else(reader, store, folder):
    with StoreReader(store, folder) as other:
        with other.cache._entries._room._locked() as locked:
            assert locked
            assert reader.use() == [*ALL]
            reader.cache._entries._room.give_back(1)  # it stays counted
        assert reader.use() == [*ALL]
        assert reader.use() == []


@pytest.mark.parametrize("record", [b"", bytes(20), b"\xff" * 20, b"torn"])
def test_a_count_that_was_lost_is_made_again(store, folder, record):
    limit = 3 * occupied_by(100_000)
    with StoreReader(store, folder, limit) as reader:
        reader.use([8, 9])
    (folder / "objects-1/count").write_bytes(record)
    store.contents += Store((100_000,) * 2, 1).contents
    with StoreReader(store, folder, limit) as reader:
        reader.use([7, 6, 8])
        assert folder.occupied() == folder.counted() <= limit


class TestSweeping:
    """When the directory is full, entries that nobody uses any more are removed."""

    LIMIT = 2 * 102_400

    @pytest.fixture
    def full(self, store, folder):
        with StoreReader(store, folder, self.LIMIT) as reader:
            reader.use([8, 9])
            yield reader

    @pytest.fixture
    def later(self, monkeypatch):
        """Pretend that the last time was two days ago."""

        def pretend():
            monkeypatch.setattr(quota.time, "time", lambda now=time.time: now() + 2 * DAY)

        return pretend

    def age(self, path, days, unread=None):
        now = time.time()
        os.utime(path, (now - (days if unread is None else unread) * DAY, now - days * DAY))

    def test_old_entries_make_room_for_new_ones_once_a_day(self, full, folder, later):
        self.age(full.entry(8), 31)
        assert full.use([7]) == full.use([7]) == [7]  # swept today
        later()
        sweep = quota.Quota._sweep
        with patch.object(quota.Quota, "_sweep", autospec=True, side_effect=sweep) as sweeps:
            assert full.use([7]) == [7]
            assert full.use([7, 9]) == []
            assert full.use([8]) == full.use([8]) == [8]
        assert sweeps.call_count == 1
        assert folder.counted() == folder.occupied() <= self.LIMIT

    def test_entries_that_were_read_of_late_stay(self, full, later):
        self.age(full.entry(8), 40, unread=20)
        self.age(full.entry(9), 40, unread=27)
        later()
        assert full.use([7]) == [7]
        assert full.use([8, 9]) == []

    def test_bytes_that_were_counted_but_never_written_are_free_again(self, store, folder, later):
        with StoreReader(store, folder, self.LIMIT) as reader:
            reader.cache._entries._room.take(self.LIMIT)  # and killed
            assert reader.use([8]) == reader.use([8]) == [8]
            later()
            assert reader.use([8]) == [8]
            assert reader.use([8]) == []

    def test_temporary_files_of_crashed_writers_are_removed_and_no_others(
        self, full, folder, later
    ):
        entry = folder.entries()[0]
        old, new = (entry.with_name(f"{name}.tmp") for name in ("old", "new"))
        others = folder / "mine", folder / "objects-1/count", folder / "objects-2/a"
        ages = {old: -2 + 2 / 24, new: -2} | dict.fromkeys(others, 100)  # from two days later on
        for path, days in ages.items():
            path.parent.mkdir(exist_ok=True)
            path.open("a").close()
            self.age(path, days)
        later()
        full.use([7])
        assert [path for path in ages if not path.exists()] == [old]
