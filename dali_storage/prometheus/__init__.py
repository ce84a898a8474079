"""A collector for `prometheus_client`: the open readers of this process.

It keeps nothing: the figures are those of the observers at each scrape. Imports observing/,
runtime/ and contract/.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..contract.faces import explained
from ..observing.meter import OPEN, OpenReaders
from ..observing.statistics import figures
from ..runtime.histogram import Histogram

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
        with explained():
            from prometheus_client import core
        self._core = core
        self._readers = readers

    def collect(self) -> Iterator[Any]:
        """The metric families, requested by `prometheus_client`."""
        core, label = self._core, ["reader"]
        readers = self._readers.readers.copy().items()
        found = [(name, figures(its), its.histograms()) for name, its in readers]
        simple = (core.CounterMetricFamily, _COUNTERS), (core.GaugeMetricFamily, _GAUGES)
        for kind, texts in simple:
            for figure, text in texts.items():
                family = kind(f"dali_storage_{figure}", text, labels=label)
                for reader, its, _ in found:
                    family.add_metric([reader], getattr(its, figure))
                yield family
        text = "Seconds that a stage of a batch took, or a request for an object"
        name, label = "dali_storage_stage_seconds", ["reader", "stage"]
        stages = core.HistogramMetricFamily(name, text, labels=label)
        for reader, _, histograms in found:
            for stage, it in sorted(histograms.items()):
                stages.add_metric([reader, stage], _buckets(it), it.total / 1e9)
        yield stages

    describe = collect  # a registry reads the names, and refuses a second collector


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Pair each upper bound, in seconds as text, with the count of values up to the bound."""
    reached = np.cumsum(histogram.counts)
    bounds = [(str(2**shift / 1e9), float(reached[histogram.below(shift)])) for shift in _SHIFTS]
    return [*bounds, ("+Inf", float(reached[-1]))]
