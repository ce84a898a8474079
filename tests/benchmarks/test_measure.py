"""The figures are right, and what is measured is what should be."""

import multiprocessing
import os
import re
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from itertools import chain, islice, repeat
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import environment, loader_sets, loaders, measure, pipelines
from benchmarks.legs import CONTAINER_LEGS, LEGS, REFERENCE, Leg
from benchmarks.measure import Result, Round
from benchmarks.pipelines import Stream
from benchmarks.workload import Settings, open_shards, prepare
from dali_storage.backends.memory import MemoryReader


class Clock:
    """A clock that only sleep() turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.starts = 0

    def perf_counter(self):
        self.starts += 1
        return self.now

    process_time = perf_counter

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    return clock


def ignore(done):
    pass


def opened(name, directory, **settings):
    return loader_sets.OpenSet(name, str(directory), Settings(seed=0, **settings))


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
        "img_per_s": pytest.approx(40),
        "img_per_s_min": pytest.approx(30),
        "img_per_s_max": pytest.approx(50),
        "gb_per_s": pytest.approx(0.8),
        "cpu_s_per_gb": pytest.approx(1.5),
        "cpu_us_per_img": pytest.approx(30_000),
        "cpu_ratio": 1,
        "wait_p50_ms": pytest.approx(1),
        "wait_share": pytest.approx(1.099 / (100 / 40)),
        "storage_share": None,
    }
    assert "ratio" not in measure.summarize({"other": results["other"]})["other"]


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


def test_readers_are_opened_before_the_clock_starts(small, clock, monkeypatch):
    starts = []
    really = MemoryReader.__init__

    @wraps(really)
    def seen(*arguments, **options):
        starts.append(clock.starts)
        really(*arguments, **options)

    monkeypatch.setattr(MemoryReader, "__init__", seen)
    (leg,) = (leg for leg in LEGS if leg.name == "memory")
    measure.run_round(leg, small, Result(""), ignore)
    assert starts == [0]
    assert clock.starts > 0


def test_the_first_batches_are_not_timed_and_the_model_takes_its_time(photographs, clock):
    @contextmanager
    def open_stream(of, exact):
        def batches():
            for number in range(6):
                clock.sleep(0.2 if number < 4 else 0.01)
                stream.storage_seconds = 0.3 * (number + 1)
                yield torch.zeros(32, 3, 1, 1), torch.zeros(32)

        stream = Stream([], storage_seconds=0.0)
        stream.batches = batches()
        assert not exact
        yield stream

    work = opened("imagenet-eval", photographs, batch_size=32).workload()
    assert work.order.shape == (4 + 2, 32)
    leg = Leg("", REFERENCE.family, open_stream)
    one = measure.run_round(leg, work, Result(""), ignore)
    assert (one.samples, len(one.waits)) == (64, 2)
    assert one.waits.sum() == pytest.approx(one.seconds) == pytest.approx(0.02)
    assert one.storage_seconds == pytest.approx(0.6)
    assert one.size_bytes == work.sizes[work.order[4:]].sum()
    one = measure.run_round(leg, replace(work, model=320), Result(""), ignore)
    assert one.seconds == pytest.approx(0.22)
    assert one.waits.sum() == pytest.approx(0.02)


def test_what_is_waited_for_the_storage_is_summed_over_epochs(photographs):
    class Waiting:
        """A loader of 16 batches an epoch, for each of which it waits 0.1 s."""

        def __enter__(self):
            return self

        def __exit__(self, *error): ...

        def __len__(self):
            return 16

        def __iter__(self):
            for number in range(16):
                self.stats = SimpleNamespace(storage_seconds=0.1 * (number + 1))
                yield torch.zeros(4, 3, 1, 1), torch.zeros(4)

    ours = opened("imagenet-eval", photographs, batch_size=4, batches=14)
    assert len(ours.workload().order) == 4 + 14
    opening = SimpleNamespace(loader=lambda **options: Waiting())
    (_, leg) = loaders.make_legs(opening, [0], 1, ["memory"])
    one = measure.run_round(leg, ours.workload(), Result(""), ignore)
    assert one.storage_seconds == pytest.approx(1.4)


def burn(seconds, done):
    while time.process_time() < seconds:
        pass
    done.set()
    time.sleep(600)


def test_the_cpu_time_of_workers_counts_while_they_live():
    fork = multiprocessing.get_context("fork")
    done = fork.Event()
    before = measure.cpu_time()
    child = fork.Process(target=burn, args=(0.5, done))
    child.start()
    try:
        assert done.wait(120)
        assert measure.cpu_time() - before >= 0.45
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize(("name", "files"), [("imagenet-train", 40), ("cifar10", 5)])
def test_the_page_cache_is_filled_with_what_loaders_read(name, files, photographs, cifar):
    directory = cifar if name == "cifar10" else photographs
    found = environment.files_of(opened(name, directory, batch_size=8, batches=1).workload())
    assert len({*found}) == len(found) == files  # of photographs, 4 + 1 batches


def test_the_page_cache_is_filled_with_the_containers(data):
    found = environment.files_of(open_shards(prepare(str(data), Settings()), str(data)))
    assert {*map(os.fsdecode, found)} == {*map(str, (data / "shards").glob("*/*.t*"))}


def test_torchvision_reads_in_the_order_of_the_loader(cifar):
    ours = opened("cifar10", cifar, batch_size=16, batches=30)
    order = ours.workload().order
    with ours.loader(exact=True) as loader:
        epochs = chain.from_iterable(repeat(loader))
        given = [labels.tolist() for _, labels in islice(epochs, len(order))]
        assert len(order) > 2 * len(loader)
    assert given == ours.samples.labels[order].tolist()
