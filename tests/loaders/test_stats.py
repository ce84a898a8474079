"""What `Loader.stats` says of constructed bottlenecks."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import numpy as np
import pytest
from nvidia.dali import fn, pipeline_def

from dali_storage.loaders import LoaderStats
from tests.kit.loading import Make, slow_down


def test_a_slow_model_is_the_bottleneck(loader: Any) -> None:
    one = loader(Make())
    list(one)
    epochs = []
    for _ in range(5):  # the machine may be busy in one of them
        for _batch in one:
            time.sleep(0.03)
        epochs.append(one.stats)
    stats = min(epochs, key=lambda stats: stats.wait_share)
    assert (stats.batches, stats.samples, stats.bound) == (6, 22, "model")
    assert 0.15 < stats.seconds < 3
    assert stats.wait_share < 0.05
    assert str(stats).endswith("model-bound: the loader keeps up")


def test_slow_storage_is_the_bottleneck(loader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(monkeypatch, 0.03)
    one = loader(Make())
    list(one)
    list(one)
    stats = one.stats
    assert stats.bound == "storage"
    assert stats.wait_share > 0.8
    assert stats.storage_share > 0.8
    assert 0 < stats.storage_seconds <= stats.wait_seconds <= stats.seconds
    assert "storage-bound: try backend_options={'direct': True}" in str(stats)


def test_a_slow_operator_is_the_bottleneck(loader: Any) -> None:
    @pipeline_def(batch_size=4, num_threads=1, device_id=None, enable_checkpointing=True)
    def make(shard_id: int, num_shards: int) -> Any:
        labels = Make().read(shard_id, num_shards)
        many = fn.random.normal(shape=(300_000,), seed=1)
        return labels, fn.reductions.mean(many)

    one = loader(make)
    list(one)
    list(one)
    stats = one.stats
    assert stats.bound == "pipeline"
    assert stats.wait_share > 0.8
    assert stats.storage_share < 0.2
    assert "pipeline-bound: try more num_threads" in str(stats)


def test_the_statistics_are_of_one_epoch(loader: Any) -> None:
    one = loader(Make(), last_batch="pad")
    assert one.stats == LoaderStats()
    assert str(one.stats) == "no batch yet"
    for number, _ in enumerate(one, 1):
        assert (one.stats.batches, one.stats.samples) == (number, min(4 * number, 22))
    iterator = iter(one)
    assert one.stats.batches == 6
    next(iterator)
    assert (one.stats.batches, one.stats.samples) == (1, 4)


def test_the_model_pauses_between_batches_and_the_stats_do_not_wait(loader: Any) -> None:
    """The time after the last batch is not the epoch's."""
    one = loader(Make())
    list(islice(one, 3))
    before = one.stats
    time.sleep(0.05)
    assert one.stats == before


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
def test_shares_bound_and_line(
    stats: LoaderStats, shares: tuple[float, float, float], bound: str, line: str
) -> None:
    found = stats.samples_per_second, stats.wait_share, stats.storage_share
    assert np.allclose(found, shares)
    assert stats.bound == bound
    assert str(stats).startswith(line)
    assert "\n" not in str(stats)
