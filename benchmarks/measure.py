"""Times the legs, which take turns in every round, and computes the figures from the rounds."""

import gc
import math
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bmap_tools.console import Tick, bar
from dali_storage import StageTimes

from .environment import make_cold
from .legs import REFERENCE, Leg
from .pipelines import buffers_of, times_of
from .workload import BadInputError, Workload, epoch_of, ordered, summarize_error

_FASTEST = 2000
"""Batches a second for whose order there is room; a round of a faster leg has several passes."""
_FIRST = 10
"""A round lasts so many times as long as its first batch: DALI fills a buffer of 1,024 for it."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One or more timed passes of one leg.

    Attributes:
        cpu_seconds: user and system time of the whole process.
        samples: the number of delivered samples, which are images; 0 for fio.
        size_bytes: the exact number of bytes read.
        waits: float64[batches], seconds that each `Pipeline.run()` took.
        times: how long stages of the reader took in the last pass, with those to fill its queue;
            if it is ours.
    """

    seconds: float
    cpu_seconds: float
    samples: int
    size_bytes: int
    waits: npt.NDArray[np.float64]
    times: Mapping[str, StageTimes] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, float]:
        """Speeds and costs. A GB is 10^9 bytes; a round of fio has no images."""
        return {
            "img_per_s": self.samples / self.seconds,
            "gb_per_s": self.size_bytes / self.seconds / 1e9,
            "cpu_s_per_gb": self.cpu_seconds / self.size_bytes * 1e9,
            "cpu_us_per_img": self.cpu_seconds / max(self.samples, 1) * 1e6,
        }

    def as_json(self) -> dict[str, float]:
        """What a round has in the JSON file, be it of a leg or of fio."""
        times = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        return times | {"bytes": self.size_bytes}

    def __str__(self) -> str:
        its = self.figures
        return f"{its['img_per_s']:,.0f} img/s" if self.samples else f"{its['gb_per_s']:.2f} GB/s"


@dataclass(slots=True)
class Result:
    """The rounds of one leg, or why there are none or no more of them.

    Attributes:
        lanes: how many lanes may copy at once, and how many there are; only with dali_storage.
        memory: where its buffers are: cpu, pinned (page-locked) or gpu; only with dali_storage.
        transport: what asks for objects: the reader's own client, or obstore.
        baselines: the legs that it is compared with.
    """

    name: str
    rounds: list[Round] = field(default_factory=list)
    lanes: tuple[int, int] | None = None
    memory: str | None = None
    transport: str | None = None
    skipped: str | None = None
    failed: str | None = None
    baselines: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the leg can take part in the next round."""
        return self.skipped is None and self.failed is None


Results: TypeAlias = dict[str, Result]
Turn: TypeAlias = tuple[Result, Callable[[Tick], Round]]
"""A function that measures one round, and the result that the round is added to."""


def results_of(legs: Iterable[Leg], workload: Workload) -> Results:
    """Results without rounds; they say which legs cannot run here."""
    return {
        leg.name: Result(
            leg.name, skipped=leg.unsupported_reason(workload), baselines=leg.family.baselines
        )
        for leg in legs
    }


def running(legs: Iterable[Leg], results: Results) -> list[Leg]:
    """Those of `legs` that take part in the next round."""
    return [leg for leg in legs if leg.name in results and results[leg.name].runs]


def measure(legs: Sequence[Leg], workload: Workload, results: Results, *others: Turn) -> None:
    """Measure the rounds of every leg that runs, and of `others`, one of each at a time.

    Every round is added to its result at once, so that an interrupt loses none. A leg that fails
    ends; the others go on. A sample that is not an image ends the measurement with a BadInputError.
    """
    legs, settings = running(legs, results), workload.settings
    rounds, size, most = settings.rounds, workload.order.size, math.inf
    _warm_up((REFERENCE, *legs), workload)
    # A cold epoch is whole: none of its samples may be read twice.
    if settings.seconds and not (settings.batches or settings.cold):
        most = settings.seconds
        workload = ordered(workload, batches=math.ceil(most * _FASTEST))

    def turn(leg: Leg) -> Turn:
        return results[leg.name], partial(run_round, leg, workload, results[leg.name], most=most)

    waiting = deque([*map(turn, legs), *(other for other in others if other[0].runs)])
    for number in range(1, rounds + 1):
        for result, run in waiting:
            if not result.runs:
                continue
            gc.collect()  # ends the threads and frees the memory of the previous leg
            step = f"round {number}/{rounds} {result.name}"
            try:
                with bar(step, size) as tick:
                    result.rounds.append(run(tick))
                print(f"{step}: {result.rounds[-1]}", file=sys.stderr)
            except Exception as error:  # a leg may raise anything
                _refuse_non_images(workload, error)
                result.failed = summarize_error(error)
        waiting.rotate(-1)  # so that a drift of the machine's speed affects all legs alike


def fill_caches(legs: Iterable[Leg], workload: Workload, results: Results) -> None:
    """Read all samples by the legs that have a cache.

    What the disk could not keep up with is added in the second pass.
    """
    for leg in (leg for leg in running(legs, results) if leg.cached):
        epoch = leg.adapt(epoch_of(workload, seed=None))
        batches = 2 * len(epoch.order)
        try:
            with bar(f"preparing {leg.name}", batches) as tick, leg.build(epoch, False) as stream:
                for batch, _ in enumerate(islice(stream.batches, batches), 1):
                    tick(batch)
        except Exception as error:  # a reader may raise anything
            results[leg.name].failed = summarize_error(error)


def _warm_up(legs: Iterable[Leg], workload: Workload) -> None:
    """Consume a batch of every leg, untimed: the first sets up image codecs and AIO contexts."""
    for leg in legs:
        try:
            with leg.build(leg.adapt(workload), False) as stream:
                next(iter(stream.batches))
        except Exception as error:  # any other error is reported when the round fails, too
            _refuse_non_images(workload, error)


def run_round(
    leg: Leg, workload: Workload, result: Result, tick: Tick, *, most: float = math.inf
) -> Round:
    """As many passes as fill the time of a round, at least one, each of `most` seconds or more."""
    passes: list[Round] = []
    while not passes or sum(one.seconds for one in passes) < workload.settings.seconds:
        passes.append(_pass(leg, workload, result, tick, most))
    return Round(
        sum(one.seconds for one in passes),
        sum(one.cpu_seconds for one in passes),
        sum(one.samples for one in passes),
        sum(one.size_bytes for one in passes),
        np.concatenate([one.waits for one in passes]),
        passes[-1].times,
    )


def _pass(leg: Leg, workload: Workload, result: Result, tick: Tick, most: float) -> Round:
    """A pass with a new stream: the queue of an old one would be full when the clock starts.

    The time to fill the queues counts.
    """
    workload = leg.adapt(workload)
    untimed = workload.settings.untimed
    waits, samples = np.zeros(len(workload.order) - untimed), 0
    with leg.build(workload, False) as stream:
        if workload.settings.cold:
            make_cold(workload)
        batches = iter(stream.batches)
        before = sum(len(images) for images, _ in islice(batches, untimed))
        cpu_before, start = time.process_time(), time.perf_counter()
        for number in range(len(waits)):
            called = time.perf_counter()
            images = next(batches)[0]
            waits[number] = (now := time.perf_counter()) - called
            samples += len(images)
            tick(samples)
            if now - start >= max(most, _FIRST * waits[0]):
                waits = waits[: number + 1]
                break
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_before
        times = times_of(stream.pipe)
        if buffers := buffers_of(stream.pipe):
            result.lanes, result.memory, result.transport = buffers
    nbytes = workload.delivered_bytes(before + samples) - workload.delivered_bytes(before)
    return Round(seconds, cpu_seconds, samples, nbytes, waits, times)


def _refuse_non_images(workload: Workload, error: Exception) -> None:
    """If the consumer failed, and not the reader, name the sample, which DALI does not do."""
    operator = re.search(r"`nvidia\.dali\.(fn\.(?:peek_image_shape|decoders\.image))`", str(error))
    if operator is not None:
        raise BadInputError(
            f"{_first_non_image(workload)} is not an image that {operator[1]} can read "
            f"({summarize_error(error)}); the benchmark needs images"
        ) from error


def _first_non_image(workload: Workload) -> str:
    """The path of the first sample, in list order, that the consumer refuses."""
    if workload.root is not None:
        singly = epoch_of(workload, batch_size=1, seed=None)
        with REFERENCE.build(singly, False) as stream:
            for sample in range(len(singly.order)):
                try:
                    next(iter(stream.batches))
                except RuntimeError:
                    return singly.name(sample, 0)
    return "one of the samples"  # also of a file that was replaced meanwhile


Figures: TypeAlias = dict[str, float | None]
"""The figures of a leg; None where one is unknown."""


def summarize(results: Mapping[str, Result]) -> dict[str, Figures]:
    """The figures of every leg that has rounds, by name.

    Speeds, costs and percentiles of the reader's stages are medians of the rounds; those of waits
    are of all rounds. `ratio` is the x of all tables, plots and pages: the median of the rounds'
    ratios of the speed to that of the fastest of the leg's baselines in the same round. `cpu_ratio`
    is that of the CPU time of a sample, to the same leg. Both are missing if no baseline ran.
    """
    figures = {}
    for name, result in results.items():
        if result.rounds:
            baselines = [results[name].rounds for name in result.baselines if name in results]
            pairs = zip(*filter(None, baselines), strict=False)  # of the same number
            figures[name] = _figures(result.rounds, pairs)
    return figures


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure, of rows that have the same ones."""
    return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}


def _figures(rounds: Sequence[Round], baselines: Iterable[tuple[Round, ...]]) -> Figures:
    rows, waits = [one.figures for one in rounds], np.concatenate([one.waits for one in rounds])
    figures: Figures = {
        **medians(rows),
        "img_per_s_min": min(row["img_per_s"] for row in rows),
        "img_per_s_max": max(row["img_per_s"] for row in rows),
        "wait_p50_ms": 1e3 * float(np.percentile(waits, 50)),
        "wait_p99_ms": 1e3 * float(np.percentile(waits, 99)),
    }
    for stage in ("waiting", "reading"):
        if its := [one.times[stage] for one in rounds if stage in one.times]:
            figures[f"{stage}_p95_ms"] = 1e3 * float(np.median([times.p95 for times in its]))
            figures[f"{stage}_p99_ms"] = 1e3 * float(np.median([times.p99 for times in its]))
    pairs, keys = [], {"ratio": "img_per_s", "cpu_ratio": "cpu_us_per_img"}
    for row, others in zip(rows, baselines, strict=False):
        best = max((one.figures for one in others), key=lambda its: its["img_per_s"])
        pairs.append({ratio: row[key] / best[key] for ratio, key in keys.items()})
    return figures | (medians(pairs) if pairs else {})
