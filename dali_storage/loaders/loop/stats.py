"""Statistics that show the bottleneck: storage, pipeline or model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ...observing.statistics import StageTimes

Bound: TypeAlias = Literal["model", "storage", "pipeline"]

_REMEDIES: dict[Bound, str] = {
    "model": "the loader keeps up",
    "storage": "try backend_options={'direct': True} of python-file, backend='block', "
    "or requests, hedge and cache of object-store",
    "pipeline": "try more num_threads, a smaller decoded size, or device='gpu'",
}


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Times of one epoch, or of its part until now.

    Attributes:
        batches: number of delivered batches.
        samples: number of delivered samples, without repeated ones.
        seconds: time from the request for the first batch to the answer to the last request. The
            first request of a loader includes opening the pipeline.
        wait_seconds: time for which the training loop waited for batches.
        storage_seconds: part of `wait_seconds` in which the pipeline waited for the storage.
        times: percentiles of the stages of the pipeline's reader since the epoch began: "waiting",
            "reading" and so on, as in `ReaderStatistics.times`. Batches read ahead for the next
            epoch count. Not compared.
    """

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0
    storage_seconds: float = 0.0
    times: Mapping[str, StageTimes] = field(default_factory=dict, compare=False)

    @property
    def samples_per_second(self) -> float:
        """Throughput of the training loop; 0 before the first batch."""
        return _share(self.samples, self.seconds)

    @property
    def wait_share(self) -> float:
        """The part of the time in which the training loop waited for batches, 0 to 1."""
        return _share(self.wait_seconds, self.seconds)

    @property
    def storage_share(self) -> float:
        """The part of the waiting in which the pipeline waited for the storage, 0 to 1."""
        return _share(self.storage_seconds, self.wait_seconds)

    @property
    def bound(self) -> Bound:
        """The bottleneck: "model", "storage" or "pipeline".

        "model" if the training loop waits less than 5 % of the time. Else "storage" if at least
        half of the waiting is for the storage, and "pipeline" (decoding, augmenting) if not.
        """
        if self.wait_share < 0.05:
            return "model"
        return "storage" if self.storage_share >= 0.5 else "pipeline"

    def __str__(self) -> str:
        """One line: throughput, waiting, and a remedy to try."""
        if not self.batches:
            return "no batch yet"
        return (
            f"{self.samples_per_second:,.0f} samples/s · waited {self.wait_share:.0%} · of it "
            f"storage {self.storage_share:.0%} → {self.bound}-bound: {_REMEDIES[self.bound]}"
        )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
