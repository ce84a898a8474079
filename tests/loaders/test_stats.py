"""What `Loader.stats` says of constructed bottlenecks; only a clock of the test goes on."""

from types import SimpleNamespace

import numpy as np
import pytest

from dali_storage import statistics
from dali_storage.loaders import LoaderStats
from dali_storage.loaders.loop import loader as loader_module
from dali_storage.observing import meter
from dali_storage.observing.meter import Meter
from tests.kit.loading import Make


class Clock:
    """The clock of the loop and that of the storage, which shows the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
        """With `waits`, every wait for the storage takes a second."""
        self.now, leave = 0, Meter.__exit__

        def late(waiting, *error):
            self.now += waits
            leave(waiting, *error)

        monkeypatch.setattr(Meter, "__exit__", late)
        monkeypatch.setattr(meter, "monotonic_ns", lambda: self.now * 10**9)
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(loader_module, "time", clock)


@pytest.mark.parametrize(
    ("slow", "expected", "advice"),
    [
        ("model", LoaderStats(6, 22, 5.0, 0.0, 0.0), "model-bound: the loader keeps up"),
        ("storage", LoaderStats(6, 22, 6.0, 6.0, 6.0), "storage-bound: try backend_options={'di"),
        ("operator", LoaderStats(6, 22, 12.0, 12.0, 0.0), "pipeline-bound: try more num_threads"),
    ],
)
def test_a_slow_model_storage_or_operator_is_the_bottleneck(
    loader, monkeypatch, slow, expected, advice
):
    clock = Clock(monkeypatch, waits=slow == "storage")

    def convert(tensor):
        clock.now += slow == "operator"  # there are two outputs
        return np.from_dlpack(tensor)

    one = loader(Make(), to=convert)
    list(one)  # the first epoch has filled the queue, too
    for _ in one:
        clock.now += slow == "model"
    assert one.stats == expected
    assert advice in str(one.stats)
    clock.now += 1
    assert one.stats == expected  # the time after the last batch is not the epoch's


def test_the_statistics_are_of_one_epoch_and_leave_padding_out(loader):
    one = loader(Make(), last_batch="pad")
    assert one.stats == LoaderStats()
    assert str(one.stats) == "no batch yet"
    for number, _ in enumerate(one, 1):
        assert (one.stats.batches, one.stats.samples) == (number, min(4 * number, 22))
    iterator = iter(one)
    assert one.stats.batches == 6
    next(iterator)
    assert (one.stats.batches, one.stats.samples) == (1, 4)


def test_the_percentiles_are_of_one_epoch_and_stay_when_the_loader_is_closed(loader):
    one = loader(Make())
    assert one.stats.times == {}
    list(one)
    first = one.stats.times["waiting"]
    list(one)
    both = statistics(one.pipeline, "Reader").times["waiting"]
    second = one.stats.times["waiting"]
    assert first.count >= 6
    assert 6 <= second.count <= both.count - 6
    assert 0 <= second.p50 <= second.p95 <= second.p99 <= second.max <= second.total
    one.close()
    assert one.stats.times["waiting"].count >= 6


@pytest.mark.parametrize(
    ("stats", "shares", "bound", "line"),
    [
        (LoaderStats(), (0, 0, 0), "model", "no batch yet"),
        (
            LoaderStats(10, 9624, 2.0, 0.62, 0.5456),
            (4812, 0.31, 0.88),
            "storage",
            "4,812 samples/s · waited 31% · of it storage 88% → storage-bound: try ",
        ),
        (LoaderStats(1, 1, 1.0, 0.049, 0.049), (1, 0.049, 1), "model", "1 samples/s · waited 5%"),
        (LoaderStats(1, 1, 1.0, 0.05, 0.025), (1, 0.05, 0.5), "storage", "1 samples/s"),
        (LoaderStats(1, 1, 1.0, 0.05, 0.024), (1, 0.05, 0.48), "pipeline", "1 samples/s"),
        (LoaderStats(1, 1, 0.0, 0.0, 0.0), (0, 0, 0), "model", "0 samples/s"),
    ],
)
def test_shares_bound_and_line_of_statistics_follow_from_the_times(stats, shares, bound, line):
    found = stats.samples_per_second, stats.wait_share, stats.storage_share
    assert np.allclose(found, shares)
    assert stats.bound == bound
    assert str(stats).startswith(line)
    assert "\n" not in str(stats)
