"""The figures are right, and what is measured is what should be."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import chain, count
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


def fake_round(img_per_s):
    return Round(100 / img_per_s, 3.0, 100, 2 * 10**9, np.array([0.001] * 99 + [1.0]))


def test_figures_are_medians_and_ratios_are_of_the_same_round():
    speeds = {"dali": [10, 20, 30], "dali-nommap": [20, 10, 40], "other": [30, 50, 40]}
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
        "ratio": pytest.approx(1.5),  # of 30/20, 50/20 and 40/40
        "cpu_ratio": pytest.approx(1),  # all take 3 seconds
        "cpu_us_per_img": pytest.approx(30_000),
        "img_per_s": pytest.approx(40),
        "img_per_s_min": pytest.approx(30),
        "img_per_s_max": pytest.approx(50),
        "gb_per_s": pytest.approx(0.8),
        "cpu_s_per_gb": pytest.approx(1.5),
        "wait_p50_ms": pytest.approx(1),
    }
    assert "ratio" not in measure.summarize({"other": results["other"]})["other"]


def test_a_round_has_passes_until_its_time_is_over_and_counts_what_is_timed(small, monkeypatch):
    monkeypatch.setattr(
        measure, "time",
        SimpleNamespace(process_time=float, perf_counter=lambda: next(ticks)),
    )  # fmt: skip
    # A pass of 2 batches asks for the time once before, twice for each, and once after.
    ticks = (t + passed for t in range(9) for passed in (0, 0, 0.1, 0.1, 0.2, 0.75))
    made = ordered(small, batches=4, untimed=2, seconds=2.0)
    done = measure.run_round(REFERENCE, made, Result(""), lambda done: None)
    assert (done.seconds, done.samples) == (pytest.approx(2.25), 3 * 10)
    assert done.size_bytes == 3 * small.sizes[10:20].sum()
    assert len(done.waits) == 6


@pytest.mark.parametrize(("first", "batches"), [(0.1, 5), (3.0, 55)])
def test_a_round_without_a_number_of_batches_ends_with_its_time_and_not_before_ten_first_batches(
    first, batches, small, monkeypatch
):
    clock = SimpleNamespace(process_time=float, perf_counter=lambda: next(ticks))
    monkeypatch.setattr(measure, "time", clock)
    # Once before, twice for each batch, and once after; DALI fills its buffer for the first one.
    ticks = chain((0, 0), count(first, 0.25))
    made = ordered(small, batches=100, seconds=2.0)
    done = measure.run_round(REFERENCE, made, Result(""), lambda done: None, most=2.0)
    seconds = pytest.approx(first + 0.5 * batches - 0.25)
    assert (done.seconds, len(done.waits), done.samples) == (seconds, batches, batches * 5)


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


def test_a_leg_that_fails_does_not_stop_the_others(small):
    def fail(of):
        raise PermissionError(13, "Permission denied", "/dev/nvme0n1")

    chosen = (Leg("broken", REFERENCE.family, pipelines.reading(fail)), LEGS[0])
    results = {leg.name: Result(leg.name) for leg in chosen}
    measure.measure(chosen, small, results)
    assert results["broken"].failed == "PermissionError: Permission denied: /dev/nvme0n1"
    assert len(results["dali"].rounds) == 2


def test_readers_are_opened_before_the_clock_starts(small, monkeypatch):
    events = []

    class Opened(MemoryReader):
        def __init__(self, catalog):
            events.append("opened")
            super().__init__(catalog)

    clock = SimpleNamespace(process_time=float, perf_counter=lambda: events.append("clock") or 0.0)
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(registry, "load", lambda name: Opened)
    (leg,) = (leg for leg in LEGS if leg.name == "memory")
    measure.run_round(leg, small, Result(""), lambda done: None)
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
