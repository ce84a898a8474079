"""The figures of a reader, as values: deliveries, and how long each stage took."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

from ..reading.buffers import Room
from ..reading.slots import Observer
from ..runtime.histogram import Histogram
from .meter import OPEN, SLOWEST, OpenReaders, meter_of

_NS = 1e-9  # seconds
_FEWEST = 20  # batches: the first ones are never ready


@dataclass(frozen=True, slots=True)
class SlowBatch:
    """A slow batch.

    Attributes:
        seconds: the time of its longest stage.
        stage: this stage.
        name: the first sample and the number of the others, of all batches that were read at once.
    """

    seconds: float
    stage: str
    name: str


@dataclass(frozen=True, slots=True)
class StageTimes:
    """The durations of one stage: one for each batch; of requests, one for each request.

    Batches that were read at once have equal shares of a stage.

    A percentile is exact to an eighth, and never too low.

    Attributes:
        count: how many durations there are.
        total: their sum, in seconds, as all that follows.
        p50: the median.
        p95: 95 % took as long or less.
        p99: 99 % took as long or less.
        max: the longest; exact, but for one epoch of a loader: there, at most an eighth too high.
    """

    count: int = 0
    total: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, histogram: Histogram) -> StageTimes:
        """The figures of a histogram of nanoseconds."""
        p50, p95, p99 = [histogram.percentile(percent) * _NS for percent in (50, 95, 99)]
        return cls(histogram.count, histogram.total * _NS, p50, p95, p99, histogram.most * _NS)


@dataclass(frozen=True, repr=False)
class ReaderStatistics:
    """The deliveries of a reader since its pipeline began to read, or since `reset()`.

    Printed, they are a table of the stages, with the choices and the `verdict`.

    Attributes:
        batches: the number of batches that DALI took; a batch requested twice counts twice.
        bytes: the sum of the sizes of their samples, or of the parts read.
        wait_seconds: the total time from DALI's request for a batch until the batch had been read.
            DALI asks ahead of the user, so a wait delays the training only when the pipeline's own
            queue runs empty.
        depth: the number of batches read ahead: as many as fit into `buffer_bytes` of the reader.
        ready: the average number of these that had been read when DALI asked for the next batch.
            It comes in bursts where a lane reads several small batches at once.
        replaced: the number of bad samples, with on_error="replace".
        times: the times of each stage: "queued" for a processor, "opening", "reading", "checking",
            "decoding" and "copying" in a lane, once for each batch; "waiting", once for each batch
            requested by DALI; and for objects "request", "retry", "hedge" and "paused", as long
            as the store asked for. A stage that did not occur is missing.
        ready_counts: the number of requests that found 0, 1, 2 and so on batches ready.
        slowest: the five batches with the slowest stages.
        choices: the options that the backend chose by a rule, each with its value and the reason;
            "buffer_bytes"; and "depth" if there is no room for as many batches as asked for.
        seconds: the time since the beginning.
        first_wait_seconds: the wait for the first batch, of which nothing has been read ahead; it
            opens the files or the connections. The verdict leaves it out.
    """

    batches: int = 0
    bytes: int = 0
    wait_seconds: float = 0.0
    depth: int = 0
    ready: float = 0.0
    replaced: int = 0
    times: Mapping[str, StageTimes] = field(default_factory=dict, hash=False)
    ready_counts: tuple[int, ...] = ()
    slowest: tuple[SlowBatch, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict, hash=False)
    seconds: float = field(default=0.0, compare=False)
    first_wait_seconds: float = field(default=0.0, compare=False)

    def reset(self) -> None:
        """Have the reader count from zero; this object stays as it is.

        `replaced` stays, because the bad samples stay known.

        Raises:
            RuntimeError: the reader is gone, or this is a copy.
        """
        live = vars(self).get("_live", lambda: None)()
        if live is None:
            what = "these statistics have no reader: it is gone, or belongs to another process"
            remedy = "call dali_storage.statistics(pipe, name) for those of a reader"
            raise RuntimeError(f"{what}; {remedy}")
        live.reset()

    def of(self, live: Any) -> ReaderStatistics:
        """Let `reset()` call that of `live`, which is not kept alive; return this object."""
        vars(self)["_live"] = weakref.ref(live)
        return self

    @property
    def verdict(self) -> str:
        """Whether the pipeline waits for the storage, in words."""
        if self.batches < _FEWEST:
            return f"{self.batches} batches, too few for a verdict"
        # Not by `ready`: lanes that read several small batches at once let it come in bursts.
        waited, seconds = (it - self.first_wait_seconds for it in (self.wait_seconds, self.seconds))
        if waited < seconds / 10:
            return "the storage keeps up: if the loop is slow, look at decoding and the model"
        at_times = waited < seconds / 2
        return f"the storage is the bottleneck{' at times' * at_times}"

    @property
    def summary(self) -> str:
        """The deliveries and the waiting, in a line."""
        waited = f"waited {self.wait_seconds:.1f} of {self.seconds:.1f} s"
        what = f"{self.batches:,} batches, {self.bytes:,} bytes, {waited}"
        return f"{what}, {self.ready:.1f} of {self.depth} batches ready when asked"

    def __repr__(self) -> str:
        heads = "count", "total s", "p50 ms", "p95 ms", "p99 ms", "max ms"
        lines = [self.summary, "stage     " + "".join(f"{it:>10}" for it in heads)]
        for name, it in self.times.items():
            ms = "".join(f"{1e3 * s:>10.2f}" for s in (it.p50, it.p95, it.p99, it.max))
            lines.append(f"{name:10}{it.count:>10,}{it.total:>10.2f}{ms}")
        lines += [f"slow: {1e3 * it.seconds:.1f} ms {it.stage} {it.name}" for it in self.slowest]
        lines += [f"{name}: {value}" for name, value in self.choices.items()]
        return "\n".join([*lines, f"verdict: {self.verdict}"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_live"}


def figures(observer: Observer) -> ReaderStatistics:
    """Return the figures of a reader until now; zeros before it reads."""
    meter = meter_of(observer)
    if meter.room is None:
        return ReaderStatistics().of(meter)
    times = {name: StageTimes.of(it) for name, it in sorted(meter.histograms().items())}
    slow, ready = [it for thread in meter.threads for it in thread.slow], meter.ready.copy()
    return ReaderStatistics(
        batches=meter.batches,
        bytes=meter.nbytes,
        wait_seconds=times.get("waiting", StageTimes()).total,
        first_wait_seconds=meter.first_wait * _NS,
        depth=meter.room.ahead,
        ready=sum(n * count for n, count in enumerate(ready)) / max(meter.batches, 1),
        replaced=len(meter.bad),
        times=times,
        ready_counts=tuple(ready) if meter.batches else (),
        slowest=tuple(SlowBatch(*it) for it in sorted(slow, reverse=True)[:SLOWEST]),
        choices={it: str(why) for it, why in dict(meter.choices).items()} | _limits(meter.room),
        seconds=(monotonic_ns() - meter.since) * _NS,
    ).of(meter)


def _limits(room: Room) -> dict[str, str]:
    found = {"buffer_bytes": str(room.limit)}
    if (ahead := room.ahead) < room.depth:
        why = f"for {room.depth} batches of {room.largest:,} bytes, buffer_bytes is too small"
        found["depth"] = f"{ahead} ({f'batches {room.shortage}' if room.short else why})"
    return found


def metrics(readers: OpenReaders = OPEN) -> dict[str, float]:
    """Return the figures of all open readers of this process, for TensorBoard, W&B and MLflow.

    Returns:
        Numbers by names such as "dali_storage/Reader/waiting_p99_seconds". Readers of the same name
        are numbered, as in "Reader-2".
    """
    found: dict[str, float] = {}
    for reader, meter in readers.readers.copy().items():
        its, start = figures(meter), f"dali_storage/{reader}"
        for name in ("batches", "bytes", "wait_seconds", "depth", "ready", "replaced"):
            found[f"{start}/{name}"] = float(getattr(its, name))
        for stage, times in its.times.items():
            found[f"{start}/{stage}_count"] = float(times.count)
            found[f"{start}/{stage}_total_seconds"] = times.total
            for name in ("p50", "p95", "p99", "max"):
                found[f"{start}/{stage}_{name}_seconds"] = getattr(times, name)
    return found
