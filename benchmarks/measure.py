"""Times the legs, which take turns in every round, and computes the figures from the rounds."""

import gc
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bmap_tools.console import Tick

from .environment import drop_caches
from .legs import BASELINES, REFERENCE, Leg
from .pipelines import build, lanes_of, memory_of, use_images
from .progress import progress, say
from .workload import BadInputError, Workload, summarize_error


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One timed pass of one leg.

    Attributes:
        cpu_seconds: user and system time of the whole process.
        samples: the number of delivered samples, which are images; 0 for fio.
        size_bytes: the exact number of bytes read.
        waits: float64[batches], seconds that each `Pipeline.run()` or `next()` took.
        storage_seconds: how long, of these, the pipeline waited for the storage; None if unknown.
    """

    seconds: float
    cpu_seconds: float
    samples: int
    size_bytes: int
    waits: npt.NDArray[np.float64]
    storage_seconds: float | None = None

    @property
    def img_per_s(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes per second."""
        return self.size_bytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """Processor time per 10^9 bytes."""
        return self.cpu_seconds / self.size_bytes * 1e9

    @property
    def cpu_us_per_img(self) -> float:
        """Processor time per sample, in microseconds."""
        return 1e6 * self.cpu_seconds / self.samples

    def as_json(self) -> dict[str, float]:
        """What a round has in the JSON file, be it of a leg or of fio."""
        times = {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}
        return times | {"bytes": self.size_bytes}

    @property
    def speed(self) -> str:
        """The speed, with its unit."""
        return f"{self.img_per_s:,.0f} img/s" if self.samples else f"{self.gb_per_s:.2f} GB/s"


@dataclass(slots=True)
class Result:
    """The rounds of one leg, or why there are none or no more of them.

    Attributes:
        lanes: how many lanes may copy at once, and how many there are; only with dali_storage.
        memory: where its buffers are: cpu, pinned (page-locked) or gpu; only with dali_storage.
        baselines: the legs that it is compared with.
    """

    name: str
    rounds: list[Round] = field(default_factory=list)
    lanes: tuple[int, int] | None = None
    memory: str | None = None
    skipped: str | None = None
    failed: str | None = None
    baselines: tuple[str, ...] = BASELINES

    @property
    def runs(self) -> bool:
        """Whether the leg can take part in the next round."""
        return self.skipped is None and self.failed is None


Results: TypeAlias = dict[str, Result]
Turn: TypeAlias = tuple[Result, Callable[[Tick], Round]]
"""A function that measures one round, and the result that the round is added to."""


def running(legs: Iterable[Leg], results: Results) -> list[Leg]:
    """Those of `legs` that take part in the next round."""
    return [leg for leg in legs if leg.name in results and results[leg.name].runs]


def measure(
    legs: Sequence[Leg], workload: Workload, results: Results, others: Sequence[Turn] = ()
) -> None:
    """Measure the rounds of every leg that runs, and of `others`.

    Every round is added to its result at once, so that an interrupt loses none. A sample that is
    not an image ends the measurement with a BadInputError.
    """
    legs = running(legs, results)
    _warm_up(legs, workload)
    turns: list[Turn] = [
        (results[leg.name], partial(_run_round, leg, workload, results[leg.name])) for leg in legs
    ]
    turns.extend(other for other in others if other[0].runs)
    take_turns(turns, workload, lambda error: _refuse_non_images(error, workload))


def take_turns(
    turns: Iterable[Turn],
    workload: Workload,
    examine: Callable[[Exception], None] = lambda error: None,
) -> None:
    """Measure the rounds of every turn, one of each at a time.

    Args:
        turns: what to measure. A turn whose result has failed ends; the others go on.
        workload: how many rounds there are, and how many samples are in one.
        examine: is called with the error of a round; what it raises ends the measurement.
    """
    waiting, rounds = deque(turns), workload.settings.rounds
    for number in range(1, rounds + 1):
        for result, run in waiting:
            if not result.runs:
                continue
            gc.collect()  # ends the threads and frees the memory of the previous leg
            step = f"round {number}/{rounds} {result.name}"
            try:
                with progress(step, workload.order.size) as tick:
                    result.rounds.append(run(tick))
                say(f"{step}: {result.rounds[-1].speed}")
            except Exception as error:  # a leg may raise anything
                examine(error)
                result.failed = summarize_error(error)
        waiting.rotate(-1)  # so that a drift of the machine's speed affects all legs alike


def warm(legs: Iterable[Leg], workload: Workload, results: Results) -> None:
    """Let the legs that run prepare for their first round, such as by filling a cache."""
    for leg in running(legs, results):
        try:
            with progress(f"preparing {leg.name}", len(workload.order)) as tick:
                leg.warm(workload, tick)
        except Exception as error:  # a reader may raise anything
            results[leg.name].failed = summarize_error(error)


def _warm_up(legs: Sequence[Leg], workload: Workload) -> None:
    """Consume a batch of every leg, untimed: the first sets up image codecs and AIO contexts."""
    for leg in (REFERENCE, *legs):
        try:
            build(leg.read, workload, use_images).run()
        except Exception as error:  # any other error is reported when the round fails, too
            _refuse_non_images(error, workload)


def _run_round(leg: Leg, workload: Workload, result: Result, tick: Tick) -> Round:
    """A round with a new pipeline: the queue of an old one would be full when the clock starts."""
    workload = leg.ordered(workload)
    pipe = build(leg.read, workload, use_images)
    result.lanes = lanes_of(pipe)
    if workload.settings.cold:
        drop_caches()
    waits, samples = np.zeros(len(workload.order)), 0
    # The time to fill the queues counts, for every leg.
    cpu_before, start = time.process_time(), time.perf_counter()
    for iteration in range(len(waits)):
        called = time.perf_counter()
        outputs = pipe.run()
        waits[iteration] = time.perf_counter() - called
        samples += len(outputs[0])
        tick(samples)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_before
    result.memory = memory_of(pipe)
    return Round(seconds, cpu_seconds, samples, workload.delivered_bytes(samples), waits)


Figures: TypeAlias = dict[str, float | None]
"""The figures of a leg; None where one is unknown."""


def summarize(results: Mapping[str, Result]) -> dict[str, Figures]:
    """The figures of every leg that has rounds, by name. A GB is 10^9 bytes.

    Speeds, costs and shares are medians of the rounds; percentiles are of the waits of all rounds.
    `ratio` compares the speed with that of the fastest of the leg's baselines in the same round,
    and `cpu_ratio` the cost with that of the cheapest, again as medians; None if none ran.
    """
    return {
        name: _figures(result.rounds, [*_baseline_rounds(result, results)])
        for name, result in results.items()
        if result.rounds
    }


def _baseline_rounds(result: Result, results: Mapping[str, Result]) -> Iterable[tuple[Round, ...]]:
    """The rounds of the leg's baselines that ran, those of the same number together."""
    rows = [results[name].rounds for name in result.baselines if name in results]
    return zip(*filter(None, rows), strict=False)


def _figures(rounds: Sequence[Round], baselines: Sequence[tuple[Round, ...]]) -> Figures:
    speeds, costs = [one.img_per_s for one in rounds], [one.cpu_us_per_img for one in rounds]
    waits = np.concatenate([one.waits for one in rounds])
    figures: Figures = {
        "img_per_s": float(np.median(speeds)),
        "img_per_s_min": min(speeds),
        "img_per_s_max": max(speeds),
        "gb_per_s": float(np.median([one.gb_per_s for one in rounds])),
        "cpu_s_per_gb": float(np.median([one.cpu_s_per_gb for one in rounds])),
        "cpu_us_per_img": float(np.median(costs)),
        "wait_p50_ms": 1e3 * float(np.percentile(waits, 50)),
        "wait_p99_ms": 1e3 * float(np.percentile(waits, 99)),
        "wait_share": float(np.median([one.waits.sum() / one.seconds for one in rounds])),
        "storage_share": _storage_share(rounds),
    }
    if baselines:
        pairs = [*zip(rounds, baselines, strict=False)]
        fastest = [our.img_per_s / max(one.img_per_s for one in row) for our, row in pairs]
        cheapest = [
            min(one.cpu_us_per_img for one in row) / our.cpu_us_per_img for our, row in pairs
        ]
        figures |= {"ratio": float(np.median(fastest)), "cpu_ratio": float(np.median(cheapest))}
    return figures


def _storage_share(rounds: Sequence[Round]) -> float | None:
    """The part of the waits in which the pipeline waited for the storage, if every round knows."""
    shares = [
        one.storage_seconds / one.waits.sum() for one in rounds if one.storage_seconds is not None
    ]
    return float(np.median(shares)) if len(shares) == len(rounds) else None


def _refuse_non_images(error: Exception, workload: Workload) -> None:
    """If the consumer failed, and not the reader, name the sample, which DALI does not do."""
    operator = re.search(r"`nvidia\.dali\.(fn\.(?:peek_image_shape|decoders\.image))`", str(error))
    if operator is not None:
        raise BadInputError(
            f"{_first_non_image(workload)} is not an image that {operator[1]} can read "
            f"({summarize_error(error)}); the benchmark needs images"
        ) from error


def _first_non_image(workload: Workload) -> str:
    """The path of the first sample, in list order, that the consumer refuses."""
    if workload.root is None:
        return "one of the samples"
    settings = replace(workload.settings, batch_size=1, seed=None)
    order = np.arange(len(workload.catalog))[:, np.newaxis]
    singly = replace(workload, settings=settings, order=order)
    pipe = build(REFERENCE.read, singly, use_images)
    for sample in range(len(workload.catalog)):
        try:
            pipe.run()
        except RuntimeError:
            return singly.name(sample, 0)
    return "one of the samples"  # of a file that was replaced meanwhile
