"""The statistics of a reader, by a clock that only waits move: a second each."""

import threading
from types import SimpleNamespace

import pytest

from dali_storage.contract.waiting import take
from dali_storage.reading import prefetch
from dali_storage.reading.statistics import ReaderStatistics
from tests.reading.test_prefetch import BATCH, expected, prefetcher


@pytest.fixture(autouse=True)
def waited(monkeypatch):
    """Is released whenever the caller begins to wait for a batch."""
    now, waited = [0], threading.Semaphore(0)

    def wait(done):
        now[0] += 1
        waited.release()
        take(done)

    monkeypatch.setattr(prefetch, "take", wait)
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return waited


@pytest.mark.parametrize(("lanes", "depth"), [(1, 1), (2, 5), (4, 2)])
def test_the_batches_and_bytes_that_were_given_are_counted(lanes, depth):
    with prefetcher(depth, lanes=lanes) as ahead:
        assert ahead.ahead.statistics == ReaderStatistics(depth=max(lanes, depth))
        for batches, index in enumerate((0, 1, 2, 9, 9), 1):
            ahead.get(index)
            assert ahead.ahead.statistics.batches == batches
        counted = ahead.ahead.statistics
    nbytes = sum(len(sample) for index in (0, 1, 2, 9, 9) for sample in expected(index))
    assert (counted.bytes, counted.depth) == (nbytes, max(lanes, depth))
    assert ahead.ahead.statistics == counted  # also when it is closed


def test_a_slow_reader_is_waited_for(waited):
    """No batch is read before the caller waits for it."""
    with prefetcher(3, lanes=1, before=lambda batch: waited.acquire()) as ahead:
        for index in range(8):
            ahead.get(index)
        counted = ahead.ahead.statistics
        waited.release(9)
    assert (counted.wait_seconds, counted.ready) == (8, 0)


def test_a_slow_caller_finds_everything_ready():
    with prefetcher(3) as ahead:
        ahead.get(0)
        first = ahead.ahead.statistics
        assert first.ready == 0
        for index in range(1, 6):
            ahead.finish()
            ahead.get(index)
        counted = ahead.ahead.statistics
    assert counted.ready == pytest.approx(3 * 5 / 6)
    assert counted.wait_seconds == first.wait_seconds


def test_batches_that_a_seek_drops_were_not_ready():
    with prefetcher(3) as ahead:
        for index in (0, 2, 50):  # before 50, 2 and 3 are ready
            ahead.get(index)
            ahead.finish()
        assert ahead.ahead.statistics.ready == pytest.approx(2 / 3)


def test_a_batch_that_fails_is_waited_for_and_not_counted(waited):
    def before_batches_0_and_1(batch):
        if batch.samples[0] <= BATCH:
            waited.acquire()

    with prefetcher(lanes=1, broken={BATCH}, before=before_batches_0_and_1) as ahead:
        ahead.get(0)
        before = ahead.ahead.statistics
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                ahead.get(1)
        after = ahead.ahead.statistics
        waited.release(9)
    assert (after.batches, after.bytes) == (before.batches, before.bytes)
    assert after.wait_seconds - before.wait_seconds == 3
