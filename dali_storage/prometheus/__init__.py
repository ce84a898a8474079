"""A collector for `prometheus_client`: the open readers of this process."""

from typing import Any

import numpy as np

from ..contract.errors import BackendUnavailable
from ..contract.histogram import Histogram
from ..reading.statistics import OPEN, OpenReaders

__all__ = ["ReaderCollector"]

_SHIFTS = range(10, 38)  # buckets that end at 2^10 ns (1 µs) to 2^37 ns (137 s)
_COUNTERS = {
    "batches": "Batches delivered to DALI",
    "bytes": "Bytes of samples delivered to DALI",
    "wait_seconds": "Seconds that DALI waited for batches",
}
_GAUGES = {
    "depth": "Batches read ahead",
    "ready": "Batches read ahead and ready when DALI asked, on average",
    "replaced": "Bad samples found",
}


class ReaderCollector:
    """The statistics of all open readers, computed on each scrape.

    `prometheus_client.REGISTRY.register(ReaderCollector())`. The label `reader` is the reader's
    name, with a number if several have the same. Stages are histograms, with a bucket for each
    factor of 2, so servers can add them up over ranks; counts and sums are exact.
    """

    def __init__(self, readers: OpenReaders = OPEN) -> None:
        """Collect from `readers`, by default the open readers of this process.

        Raises:
            BackendUnavailable: there is no prometheus_client.
        """
        try:
            from prometheus_client import core
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            what = "ReaderCollector needs the package prometheus_client, which is not installed"
            raise BackendUnavailable(what, "pip install 'dali-storage[metrics]'") from None
        self._core = core
        self._readers = readers

    def describe(self) -> list[Any]:
        """The metric families without samples, so that a second registration is refused."""
        counters, gauges, stages = self._families()
        return [*counters.values(), *gauges.values(), stages]

    def collect(self) -> list[Any]:
        """The metric families, requested by `prometheus_client`."""
        counters, gauges, stages = self._families()
        for reader, tally in self._readers.items():
            its = tally.statistics
            for name, family in (counters | gauges).items():
                family.add_metric([reader], getattr(its, name))
            for stage, histogram in sorted(tally.histograms().items()):
                buckets = _buckets(histogram)
                stages.add_metric([reader, stage], buckets, histogram.total / 1e9)
        return [*counters.values(), *gauges.values(), stages]

    def _families(self) -> tuple[dict[str, Any], dict[str, Any], Any]:
        counters = {
            name: self._core.CounterMetricFamily(f"dali_storage_{name}", text, labels=["reader"])
            for name, text in _COUNTERS.items()
        }
        gauges = {
            name: self._core.GaugeMetricFamily(f"dali_storage_{name}", text, labels=["reader"])
            for name, text in _GAUGES.items()
        }
        text = "Seconds that a stage of a batch took, or a request for an object"
        labels = ["reader", "stage"]
        stages = self._core.HistogramMetricFamily("dali_storage_stage_seconds", text, labels=labels)
        return counters, gauges, stages


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Pair each upper bound, in seconds as text, with the count of values up to the bound."""
    reached = np.cumsum(histogram.counts)
    bounds = [(str(2**shift / 1e9), float(reached[histogram.below(shift)])) for shift in _SHIFTS]
    return [*bounds, ("+Inf", float(reached[-1]))]
