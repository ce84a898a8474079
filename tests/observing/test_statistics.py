"""The statistics of a reader, by a clock that only waits move: a second each."""

import gc
import pickle
import re
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dali_storage.contract import stages
from dali_storage.contract.options import Choice
from dali_storage.observing import meter
from dali_storage.observing.meter import Meter, OpenReaders
from dali_storage.observing.statistics import (
    ReaderStatistics,
    SlowBatch,
    StageTimes,
    figures,
    metrics,
)
from dali_storage.order import Order, OrderOptions
from dali_storage.prometheus import ReaderCollector
from dali_storage.reading import prefetch
from dali_storage.reading.buffers import Room
from dali_storage.runtime.waiting import take
from dali_storage.samples.discovery import from_files
from tests.kit.reading_ahead import reading_ahead
from tests.kit.stand_ins import Recorder
from tests.reading.test_prefetch import BATCH, expected, prefetcher


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    clock = SimpleNamespace(now=0)
    for each in (meter, stages):
        monkeypatch.setattr(each, "monotonic_ns", lambda: clock.now)
    return clock


@pytest.fixture(autouse=True)
def waited(monkeypatch, clock):
    """Is released whenever the caller begins to wait for a batch."""
    waited = threading.Semaphore(0)

    def wait(done):
        clock.now += 10**9
        waited.release()
        take(done)

    monkeypatch.setattr(prefetch, "take", wait)
    return waited


@pytest.mark.parametrize(("lanes", "depth"), [(1, 1), (2, 5), (4, 2)])
def test_the_batches_and_bytes_that_were_given_are_counted(lanes, depth):
    with prefetcher(depth, lanes=lanes) as ahead:
        choices = {"buffer_bytes": f"{1 << 30} (as given)"}
        assert ahead.statistics == ReaderStatistics(depth=max(lanes, depth), choices=choices)
        for batches, index in enumerate((0, 1, 2, 9, 9), 1):
            ahead.get(index)
            assert ahead.statistics.batches == batches
        counted = ahead.statistics
    nbytes = sum(len(sample) for index in (0, 1, 2, 9, 9) for sample in expected(index))
    assert (counted.bytes, counted.depth) == (nbytes, max(lanes, depth))
    after = ahead.statistics  # of a closed reader; lanes still read ahead after `counted`
    assert replace(after, times={}, slowest=()) == replace(counted, times={}, slowest=())


def test_a_slow_reader_is_waited_for(waited):
    """No batch is read before the caller waits for it."""
    with prefetcher(3, lanes=1, before=lambda batch: waited.acquire()) as ahead:
        for index in range(8):
            ahead.get(index)
        counted = ahead.statistics
        waited.release(9)
    assert (counted.wait_seconds, counted.ready) == (8, 0)


def test_a_slow_caller_finds_everything_ready():
    with prefetcher(3) as ahead:
        ahead.get(0)
        first = ahead.statistics
        assert first.ready == 0
        for index in range(1, 6):
            ahead.finish()
            ahead.get(index)
        counted = ahead.statistics
    assert counted.ready == pytest.approx(3 * 5 / 6)
    assert counted.wait_seconds == first.wait_seconds


def test_batches_that_a_seek_drops_were_not_ready():
    with prefetcher(3) as ahead:
        for index in (0, 2, 50):  # before 50, 2 and 3 are ready
            ahead.get(index)
            ahead.finish()
        assert ahead.statistics.ready == pytest.approx(2 / 3)


def test_a_batch_that_fails_is_waited_for_and_not_counted(waited):
    def before_batches_0_and_1(batch):
        if batch.samples[0] <= BATCH:
            waited.acquire()

    with prefetcher(lanes=1, broken={BATCH}, before=before_batches_0_and_1) as ahead:
        ahead.get(0)
        before = ahead.statistics
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                ahead.get(1)
        after = ahead.statistics
        waited.release(9)
    assert (after.batches, after.bytes) == (before.batches, before.bytes)
    # A second a read: batch 1 is read ahead, and again the second and third time it is asked for.
    assert after.wait_seconds - before.wait_seconds == 3


# --- stages, percentiles and the slowest ----------------------------------------------------------


def test_every_batch_that_was_asked_for_has_waited_and_every_one_read_has_stages():
    with prefetcher(2, lanes=2) as ahead:
        for index in range(6):
            ahead.get(index)
            ahead.finish()
        counted = ahead.statistics
        read = len(ahead.reader.read_batches)
    assert counted.times["waiting"].count == 6
    # At most for the first batch: the others were ready.
    assert counted.wait_seconds <= 1
    found = {name: its.count for name, its in counted.times.items() if name != "waiting"}
    assert found == {"opening": read, "reading": read, "decoding": read}
    assert counted.ready_counts == (1, 0, 5)


def test_the_time_in_which_a_reader_blocks_is_reading_of_a_named_batch(clock):
    def block(batch):
        clock.now += 10**8

    with prefetcher(1, lanes=1, before=block) as ahead:
        ahead.get(3)
        counted = ahead.statistics
    assert counted.times["reading"].max >= 0.1
    assert counted.first_wait_seconds == counted.wait_seconds >= 0.1
    assert f"path/{3 * BATCH} and {BATCH - 1} more" in [slow.name for slow in counted.slowest]


def test_lanes_are_threads_with_the_name_of_their_reader():
    names = []
    reader = Recorder(from_files(["path/0"]), lanes=1)
    reader.before = lambda batch: names.append(threading.current_thread().name)
    one = reading_ahead(
        from_files(["path/0"]), reader, Order(1, 1, OrderOptions()), 1, name="Train"
    )
    one.get(0)
    one.close()
    assert {*names} == {"dali_storage:Train:0"}
    assert one.observer.threads[0].native_id is not None


def test_statistics_start_again_after_a_reset_and_the_loop_still_knows_all_waiting():
    with prefetcher(2) as ahead:
        ahead.get(0)
        ahead.finish()
        before = ahead.statistics
        before.reset()
        after = ahead.statistics
        ahead.get(1)
        ahead.finish()
        last = ahead.statistics
        total = ahead.ahead.observer.waited / 1e9
    assert (before.batches, before.times["waiting"].count) == (1, 1)
    assert after == ReaderStatistics(depth=2, choices=after.choices)
    assert (last.batches, last.wait_seconds, total) == (1, 0, before.wait_seconds)
    assert (before.first_wait_seconds, last.first_wait_seconds) == (before.wait_seconds, 0)
    assert "waiting" in last.times


def test_statistics_are_plain_values_that_outlive_their_reader():
    with prefetcher() as ahead:
        ahead.get(0)
        ahead.finish()
    found = ahead.statistics
    copy = pickle.loads(pickle.dumps(found))
    assert copy == found
    assert hash(copy) == hash(found)
    assert copy.times["reading"].count > 0
    del ahead
    gc.collect()
    for one in (copy, found):
        with pytest.raises(RuntimeError, match="have no reader"):
            one.reset()


def test_a_reset_before_the_first_batch_is_fine():
    one = Meter("R", "R")
    before = figures(one)
    before.reset()
    assert before == ReaderStatistics()
    give(begun(one), 1, 10)
    before.reset()
    assert figures(one).batches == 0


@pytest.mark.parametrize(
    ("batches", "seconds", "verdict"),
    [
        (19, 20, "19 batches, too few for a verdict"),
        (20, 20, "the storage keeps up: if the loop is slow, look at decoding and the model"),
        (20, 12, "the storage is the bottleneck at times"),
        (20, 2.5, "the storage is the bottleneck"),
    ],
)
@pytest.mark.parametrize("first", [0, 50])
def test_statistics_print_as_a_table_with_a_verdict(batches, seconds, verdict, first):
    times = {"reading": StageTimes(20, 1.5, 0.002, 0.003, 0.004, 0.005)}
    slowest = (SlowBatch(0.005, "reading", "/a.jpg"),)
    found = ReaderStatistics(
        batches,
        3000,
        first + 1.25,
        4,
        2,
        0,
        times,
        (),
        slowest,
        {"lanes": "3 (given)"},
        first + seconds,
        first,
    )
    assert repr(found).splitlines() == [
        f"{batches} batches, 3,000 bytes, waited {first + 1.25:.1f} of {first + seconds:.1f} s, "
        "2.0 of 4 batches ready when asked",
        "stage          count   total s    p50 ms    p95 ms    p99 ms    max ms",
        "reading           20      1.50      2.00      3.00      4.00      5.00",
        "slow: 5.0 ms reading /a.jpg",
        "lanes: 3 (given)",
        f"verdict: {verdict}",
    ]


# --- all readers of a process ---------------------------------------------------------------------


def begun(one):
    """The same reader, which has begun to read."""
    reader = SimpleNamespace(lanes=1, times=None, choices={})
    one.begin(reader, Room(Choice(1 << 30, ""), 2), ())
    return one


def give(one, ready, nbytes):
    with one.waiting(0, ready) as given:
        given.append(nbytes)


def opened(readers, name="R"):
    readers.add(one := Meter(name, f"file({name})"))
    return one


def test_open_readers_have_names_of_their_own_until_they_are_closed():
    readers = OpenReaders()
    meters = [opened(readers) for _ in range(3)]
    assert [*readers.readers] == ["R", "R-2", "R-3"]
    for _ in range(2):
        readers.remove(meters[1])
    assert [*readers.readers] == ["R", "R-3"]
    assert readers.readers["R-3"] is meters[2]
    again = opened(readers)
    readers.remove(meters[1])  # it is another's name now
    assert readers.readers["R-2"] is again
    assert again.title == "file(R) (R-2)"


def test_a_reader_is_open_from_the_search_for_its_samples_to_its_end(monkeypatch):
    monkeypatch.setattr(meter, "OPEN", readers := OpenReaders())
    one = Meter("R", "R")
    with one.opening():
        assert [*readers.readers] == ["R"]
        stages.enter("finding samples")
        assert one.threads[0].log == [("finding samples", 0)]
    assert metrics(readers)["dali_storage/R/batches"] == 0
    one.closed()
    assert metrics(readers) == {}
    with pytest.raises(ZeroDivisionError), one.opening():
        raise ZeroDivisionError
    assert [*readers.readers] == []


def test_threads_that_open_and_close_readers_at_once_lose_none():
    readers, kept = OpenReaders(), []

    def work():
        for number in range(200):
            one = opened(readers)
            if number % 2:
                readers.remove(one)
            else:
                kept.append(one)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(readers.readers) == len(kept) == 400
    assert {*map(id, readers.readers.values())} == {*map(id, kept)}
    assert all(readers.readers[it.key] is it for it in kept)


def test_metrics_are_numbers_by_reader_and_figure():
    readers = OpenReaders()
    one = begun(opened(readers, "Train"))
    give(one, 2, 500)
    for ns in [10**6] * 98 + [8 * 10**6] * 2:
        one.times.record(0, {"reading": ns})
    found = metrics(readers)
    start = "dali_storage/Train/"
    assert all(name.startswith(start) and type(value) is float for name, value in found.items())
    its = {name.removeprefix(start): value for name, value in found.items()}
    assert (its["batches"], its["bytes"], its["ready"], its["depth"]) == (1, 500, 2, 2)
    assert (its["reading_count"], its["reading_max_seconds"]) == (100, 0.008)
    assert its["reading_total_seconds"] == pytest.approx(0.114)
    assert its["reading_p50_seconds"] == pytest.approx(0.001, rel=1 / 8)
    assert its["reading_p99_seconds"] == pytest.approx(0.008, rel=1 / 8)


def test_prometheus_gets_histograms_with_exact_counts():
    from prometheus_client import CollectorRegistry, generate_latest

    readers = OpenReaders()
    one = begun(opened(readers, "Train"))
    give(one, 1, 500)
    for ns in (500, 1023, 1024, 3_000_000, 10**15):
        one.times.record(0, {"reading": ns})
    registry = CollectorRegistry()
    registry.register(ReaderCollector(readers))
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(ReaderCollector(readers))
    text = generate_latest(registry).decode()
    start = 'dali_storage_stage_seconds_{}reader="Train",stage="reading"'
    assert 'dali_storage_batches_total{reader="Train"} 1.0' in text
    assert 'dali_storage_ready{reader="Train"} 1.0' in text
    bounds = re.findall(r'stage_seconds_bucket\{le="(.+?)",.*stage="reading"\} (.+)', text)
    reached = {float(bound): float(count) for bound, count in bounds}
    assert reached[1.024e-06] == 2
    assert reached[2.048e-06] == 3
    assert max(count for bound, count in reached.items() if bound < 0.002) == 3
    assert (reached[2**37 / 1e9], reached[float("inf")]) == (4, 5)
    assert start.format("count{") + "} 5.0" in text
    assert registry.get_sample_value("dali_storage_wait_seconds_total", {"reader": "Train"}) == 0
