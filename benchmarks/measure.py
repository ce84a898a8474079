"""The clock: rounds of every leg in turn, and what is made of them."""

from __future__ import annotations

import gc
import re
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .environment import drop_caches
from .legs import BASELINES, REFERENCE, Leg, build, use_images
from .progress import Display
from .work import BadInputError, Tick, Work, explain


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One timed pass of one leg.

    Attributes:
        cpu_seconds: user and system time of the whole process.
        samples: how many samples were really delivered; none by what reads no samples.
        size_bytes: their true bytes.
        waits: float64[batches], seconds that each `Pipeline.run()` took.
    """

    seconds: float
    cpu_seconds: float
    samples: int
    size_bytes: int
    waits: npt.NDArray[np.float64]

    @property
    def img_per_s(self) -> float:
        """Samples a second; the samples are images."""
        return self.samples / self.seconds

    @property
    def gb_per_s(self) -> float:
        """10^9 bytes a second."""
        return self.size_bytes / self.seconds / 1e9

    @property
    def cpu_s_per_gb(self) -> float:
        """Processor time a 10^9 bytes."""
        return self.cpu_seconds / self.size_bytes * 1e9

    @property
    def speed(self) -> str:
        """For the log."""
        return f"{self.img_per_s:,.0f} img/s" if self.samples else f"{self.gb_per_s:.2f} GB/s"


@dataclass(slots=True)
class Result:
    """What is known of one leg: rounds, or why there are none (or no more)."""

    name: str
    rounds: list[Round] = field(default_factory=list)
    skipped: str | None = None
    failed: str | None = None

    @property
    def runs(self) -> bool:
        """Whether nothing is known that keeps the leg from its next round."""
        return self.skipped is None and self.failed is None


Results: TypeAlias = dict[str, Result]
Turn: TypeAlias = tuple[Result, Callable[[Tick], Round]]
"""What is measured in each round, and where its rounds are kept."""


def measure(
    legs: Sequence[Leg],
    work: Work,
    results: Results,
    display: Display,
    others: Sequence[Turn] = (),
) -> None:
    """Add the rounds of every leg that runs to `results`, which an interrupt leaves as they are.

    `others` have their turns among the legs.

    Raises:
        BadInputError: a sample is no image, so that no leg can go on.
    """
    _load_codecs(work)
    turns: list[Turn] = [(results[leg.name], partial(_run_round, leg, work)) for leg in legs]
    turns += others
    for number in range(work.settings.rounds):
        # Each leg has a turn in every place, so that drift hits all alike.
        first = number % len(turns)
        for result, run in (*turns[first:], *turns[:first]):
            if not result.runs:
                continue
            step = f"round {number + 1}/{work.settings.rounds} {result.name}"
            try:
                result.rounds.append(run(display.start(step, work.order.size)))
                display.say(f"{step}: {result.rounds[-1].speed}")
            except Exception as error:  # whatever one raises, the others shall be measured
                _refuse_what_is_no_image(error, work)
                result.failed = explain(error)


def _load_codecs(work: Work) -> None:
    """Look at one batch, untimed: DALI loads its image codecs at the first use in a process."""
    try:
        build(REFERENCE, work, use_images).run()
    except RuntimeError as error:
        _refuse_what_is_no_image(error, work)  # anything else is for the legs to meet and to report


def _run_round(leg: Leg, work: Work, tick: Tick) -> Round:
    """A fresh pipeline each time: an old one would have its queue full before the clock starts."""
    gc.collect()  # the threads and the memory of the last leg shall not weigh on this one
    pipe = build(leg, work, use_images)
    if work.settings.cold:
        drop_caches()
    return timed_pass(pipe, work, tick)


def timed_pass(pipe: Any, work: Work, tick: Tick) -> Round:
    """Run `pipe` for the batches of the work.

    The clock starts before the first run, so that filling the queues counts, for every leg alike.
    """
    waits = np.zeros(len(work.order))
    samples = 0
    cpu_before, start = _cpu_seconds(), time.perf_counter()
    for iteration in range(len(waits)):
        called = time.perf_counter()
        outputs = pipe.run()
        waits[iteration] = time.perf_counter() - called
        samples += len(outputs[0])
        tick(samples)
    seconds, cpu_seconds = time.perf_counter() - start, _cpu_seconds() - cpu_before
    return Round(seconds, cpu_seconds, samples, work.delivered_bytes(samples), waits)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def summarize(results: Mapping[str, Result]) -> dict[str, dict[str, float]]:
    """The figures of every leg that has rounds, by name; GB are 10^9 bytes.

    Medians are over the rounds, the percentiles over the waits of all rounds. `ratio` is the median
    over the rounds of the speed against that of the better baseline in the same round; it is
    missing where no baseline ran.
    """
    baseline = _better_baseline(results)
    return {
        name: _figures(result.rounds) | _ratio(result.rounds, baseline)
        for name, result in results.items()
        if result.rounds
    }


def _figures(rounds: Sequence[Round]) -> dict[str, float]:
    speeds = [one.img_per_s for one in rounds]
    waits = np.concatenate([one.waits for one in rounds])
    return {
        "img_per_s": float(np.median(speeds)),
        "img_per_s_min": min(speeds),
        "img_per_s_max": max(speeds),
        "gb_per_s": float(np.median([one.gb_per_s for one in rounds])),
        "cpu_s_per_gb": float(np.median([one.cpu_s_per_gb for one in rounds])),
        "wait_p50_ms": 1e3 * float(np.percentile(waits, 50)),
        "wait_p99_ms": 1e3 * float(np.percentile(waits, 99)),
    }


def _better_baseline(results: Mapping[str, Result]) -> list[float]:
    """The speed of the better baseline in each round that all of them finished."""
    speeds = [
        [one.img_per_s for one in results[name].rounds]
        for name in BASELINES
        if name in results and results[name].rounds
    ]
    return [max(in_round) for in_round in zip(*speeds, strict=False)]


def _ratio(rounds: Sequence[Round], baseline: Iterable[float]) -> dict[str, float]:
    ratios = [one.img_per_s / speed for one, speed in zip(rounds, baseline, strict=False)]
    return {"ratio": float(np.median(ratios))} if ratios else {}


def _refuse_what_is_no_image(error: Exception, work: Work) -> None:
    """If the consumer failed, and not the reader, say at which sample: DALI does not."""
    operator = re.search(r"`nvidia\.dali\.(fn\.(?:peek_image_shape|decoders\.image))`", str(error))
    if operator is not None:
        raise BadInputError(
            f"{_first_refused(work)} is not an image to {operator[1]} ({explain(error)}): "
            "the benchmark needs images that DALI can read"
        ) from error


def _first_refused(work: Work) -> str:
    """The path of the first sample, in list order, that the consumer refuses."""
    if work.root is None:
        return "one of the samples"
    singly = replace(
        work,
        settings=replace(work.settings, batch_size=1, seed=None),
        order=np.arange(len(work.catalog))[:, np.newaxis],
    )
    pipe = build(REFERENCE, singly, use_images)
    for sample in range(len(work.catalog)):
        try:
            pipe.run()
        except RuntimeError:
            return singly.name(sample, 0)
    return "one of the samples"
