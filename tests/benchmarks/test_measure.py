"""The figures are right, and what is measured is what should be."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import count, islice
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import environment, measure, pipelines
from benchmarks.legs import CONTAINER_LEGS, LEGS, REFERENCE, Leg
from benchmarks.measure import Result, Round
from benchmarks.workload import Settings, open_shards, ordered, prepare
from dali_storage.backends.memory import MemoryReader
from dali_storage.contract import registry
from tests.kit.paths import ROOT
from tests.kit.pictures import IMAGES


def fake_round(img_per_s):
    return Round(100 / img_per_s, 3.0, 100, 2 * 10**9, np.array([0.001] * 99 + [1.0]))


def test_figures_are_medians_and_ratios_are_of_neighbouring_turns():
    speeds = {"dali": [10, 20, 30], "dali-nommap": [20, 10, 15], "other": [30, 50, 60]}
    baselines = REFERENCE.family.baselines
    results = {
        name: Result(name, [*map(fake_round, speeds[name])], baselines=baselines) for name in speeds
    }
    results["skipped"] = Result("skipped", skipped="because")
    figures = measure.summarize(results)
    assert list(figures) == list(speeds)
    other = figures["other"]
    assert other.pop("wait_p99_ms") > 1
    assert other == {
        "ratio": pytest.approx(2.5),  # of 30/10, 50/20 and 60/30; DALI's other mode is slower
        "ratio_q1": pytest.approx(2.25),
        "ratio_q3": pytest.approx(2.75),
        "cpu_ratio": pytest.approx(1),  # all take 3 seconds
        "cpu_us_per_img": pytest.approx(30_000),
        "img_per_s": pytest.approx(50),
        "img_per_s_q1": pytest.approx(40),
        "img_per_s_q3": pytest.approx(55),
        "gb_per_s": pytest.approx(1),
        "cpu_s_per_gb": pytest.approx(1.5),
        "wait_p50_ms": pytest.approx(1),
    }
    results["dali"].failed = "one that failed is no baseline"
    assert measure.summarize(results)["other"]["ratio"] == pytest.approx(4)
    assert "ratio" not in measure.summarize({"other": results["other"]})["other"]


def test_cold_epochs_fill_the_time_of_a_round_and_only_what_is_timed_counts(small, monkeypatch):
    clock = SimpleNamespace(process_time=float, perf_counter=lambda: next(ticks))
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "make_cold", lambda _: None)
    # A pass of 2 batches asks for the time once before, twice for each, and once after.
    ticks = (t + passed for t in range(9) for passed in (0, 0, 0.1, 0.1, 0.2, 0.75))
    made = ordered(small, batches=4, untimed=2, seconds=2.0)
    done = measure.run_epochs(REFERENCE, made, Result(""), lambda done: None)
    assert (done.seconds, done.samples) == (pytest.approx(2.25), 3 * 10)
    assert done.size_bytes == 3 * small.sizes[10:20].sum()
    assert len(done.waits) == 6


@pytest.mark.parametrize(
    ("settings", "batches"), [({"seconds": 16.0}, 16), ({"seconds": 0.0}, 10), ({"batches": 20}, 3)]
)
def test_a_turn_is_an_eighth_of_a_round_of_a_stream_that_stays_open(settings, batches, data,
                                                                    monkeypatch):  # fmt: skip
    clock = SimpleNamespace(process_time=float, monotonic=float, perf_counter=lambda: next(ticks))
    ticks = count(0, 0.0625)  # once before, and twice for each batch
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "rest", lambda: None)
    made, read = prepare(str(data), Settings(batch_size=6, **settings)), 0
    with ExitStack() as stack:
        stream = measure.Running(REFERENCE, made, stack)
        for opened in (4 if made.settings.seconds else 1, 0):  # batches of an epoch
            done = stream.turn(Result(""), lambda done: None)
            read += 6 * (opened + 3)  # untimed: 2 that are prefetched, and 1
            expected = made.sizes[np.arange(read, read + 6 * batches) % IMAGES].sum()
            read += 6 * batches
            assert (len(done.waits), done.samples, done.size_bytes) == (
                *(batches, 6 * batches, expected),
            )
            assert done.seconds == 0.125 * batches


def test_legs_are_compared_with_those_of_dali_of_the_same_format():
    names = [leg.name for leg in CONTAINER_LEGS]
    for leg in CONTAINER_LEGS:
        form = "tfrecord" if "tfrecord" in leg.name else "webdataset"
        of_dali = tuple(name for name in names if name.startswith(f"dali-{form}"))
        assert leg.family.baselines == of_dali


def test_legs_take_turns_and_cold_caches_are_dropped_before_each(small, monkeypatch, capsys):
    dropped = []
    names = ["memory", "dali", "dali-nommap"]
    results = {name: Result(name) for name in names}
    measured = [results[name].rounds for name in names]
    monkeypatch.setattr(measure, "make_cold", lambda _: dropped.append(sum(map(len, measured))))
    results["memory"].skipped = "so that its turns are those of the others"
    chosen = [leg for name in names for leg in LEGS if leg.name == name]
    settings = replace(small.settings, rounds=3, cold=True)
    measure.measure(chosen, replace(small, order=small.order[:1], settings=settings), results)
    turns = re.findall(r"round \d/3 (\S+):", capsys.readouterr().err)
    assert turns == ["dali", "dali-nommap", "dali-nommap", "dali", "dali", "dali-nommap"]
    assert dropped == list(range(6))


DENIED = PermissionError(13, "Permission denied", "/dev/nvme0n1")


@pytest.mark.parametrize(
    ("error", "after", "kept"), [(DENIED, 0, 0), (DENIED, 20, 1), (KeyboardInterrupt(), 20, 1)]
)
def test_a_reader_that_fails_is_closed_at_once_and_the_turns_until_then_are_kept(
    error, after, kept, small
):
    closed = []

    @contextmanager
    def build(workload, exact):
        try:
            with REFERENCE.build(workload, exact) as stream:
                yield pipelines.Stream(broken(stream.batches), stream.pipe)
        finally:
            closed.append(len(results["dali"].rounds))

    def broken(batches):
        yield from islice(batches, after)
        raise error

    chosen = (Leg("broken", REFERENCE.family, build), LEGS[0])
    results = measure.results_of(chosen, small)
    stopped = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if stopped else nullcontext():
        measure.measure(chosen, small, results)
    assert len(results["broken"].rounds) == kept
    assert closed[-1] in (kept, kept + 1)
    if not stopped:
        assert results["broken"].failed == "PermissionError: Permission denied: /dev/nvme0n1"
        assert len(results["dali"].rounds) == 2 * 8


@pytest.mark.parametrize(("drift", "rounds"), [(0.09, 8), (0.11, 16)])
def test_if_the_halves_differ_all_is_measured_once_more(drift, rounds, small, monkeypatch):
    monkeypatch.setattr(measure, "drifts", lambda results: {"dali": drift})
    results, made = {"dali": Result("dali")}, ordered(small, rounds=1, batches=1)
    measure.measure([LEGS[0]], made, results)
    assert len(results["dali"].rounds) == rounds


def test_readers_are_opened_before_the_clock_starts(small, monkeypatch):
    events = []

    class Opened(MemoryReader):
        def __init__(self, catalog):
            events.append("opened")
            super().__init__(catalog)

    clock = SimpleNamespace(process_time=float, perf_counter=lambda: events.append("clock") or 0.0)
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "make_cold", lambda _: None)
    monkeypatch.setattr(registry, "load", lambda name: Opened)
    (leg,) = (leg for leg in LEGS if leg.name == "memory")
    measure.run_epochs(leg, small, Result(""), lambda done: None)
    assert events[:2] == ["opened", "clock"]


def test_the_page_cache_is_filled_with_the_containers(data):
    found = environment.files_of(open_shards(prepare(str(data), Settings()), str(data)))
    assert {*map(os.fsdecode, found)} == {*map(str, (data / "shards").glob("*/*.t*"))}


def test_the_trip_of_a_batch_is_short():
    """Two moves more if the lane had to ask for a buffer."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.trip"], capture_output=True, text=True, cwd=ROOT
    )
    moves, files = map(int, re.findall(r"batch: (\d+) moves in (\d+) files\n", done.stdout)[0])
    assert moves <= 93
    assert files <= 24
