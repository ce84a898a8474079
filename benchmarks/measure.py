"""Times the readers, which take turns; the figures are of pairs of neighbouring turns."""

import gc
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bmap_tools.console import Tick, bar
from dali_storage import StageTimes

from .environment import make_cold
from .legs import REFERENCE, Leg
from .pipelines import Stream, buffers_of, times_of
from .workload import BadInputError, Workload, epoch_of, summarize_error

_TURNS = 8
"""So many turns of each leg share the time, or the batches, of a round."""
_LEAST = 10
"""Batches of a turn, or more, without --batches."""
_TRIES = 2
"""So often all rounds are measured, as long as the halves differ by more than `DRIFT`."""
DRIFT = 0.1
_LOOK, _REST = 0.005, 2.0  # seconds: the process is at rest if it works less than a tenth of these


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One turn of one leg: some batches, or one or more passes.

    Attributes:
        cpu_seconds: user and system time of the whole process.
        samples: the number of delivered samples, which are images; 0 for fio.
        size_bytes: bytes read; of a stream that stays open, as if all epochs had the first's order.
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
        first_seconds: from the making of the pipeline to its first batch; hot only.
        baselines: the legs that it is compared with.
    """

    name: str
    rounds: list[Round] = field(default_factory=list)
    lanes: tuple[int, int] | None = None
    memory: str | None = None
    transport: str | None = None
    first_seconds: float | None = None
    skipped: str | None = None
    failed: str | None = None
    baselines: tuple[str, ...] = ()

    @property
    def runs(self) -> bool:
        """Whether the leg can take part in the next round."""
        return self.skipped is None and self.failed is None


Results: TypeAlias = dict[str, Result]
Turn: TypeAlias = tuple[Result, Callable[[Result, Tick], Round]]
"""A function that measures one turn, and the result that it is added to."""


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
    """Measure every leg that runs, and `others`, in turns.

    From a cold page cache, a turn is an epoch with a new stream; else a few batches of a stream
    that stays open. Every turn is added to its result at once, so that an interrupt loses none. A
    leg that fails ends; the others go on. A sample that is not an image ends the measurement with a
    BadInputError.
    """
    legs, settings = running(legs, results), workload.settings
    _warm_up((REFERENCE, *legs), workload)
    if settings.cold:
        epochs: list[Turn] = [
            (results[leg.name], partial(run_epochs, leg, workload)) for leg in legs
        ]
        _in_turns([*epochs, *others], settings.rounds, workload)
        return
    with ExitStack() as stack:
        # Opened one by one, and only now: a leg that fails leaves the others.
        streams = {leg.name: Running(leg, workload, stack) for leg in legs}
        turns = [(results[leg.name], streams[leg.name].turn) for leg in legs]
        for _ in range(_TRIES):
            for number in range(settings.rounds):
                title = f"round {number + 1}/{settings.rounds}"
                _in_turns(turns, _TURNS, workload, title)
                _in_turns(others, 1, workload, title)
            if max(drifts(results).values(), default=0.0) <= DRIFT:
                break


def _in_turns(turns: Sequence[Turn], count: int, workload: Workload, title: str = "") -> None:
    """Measure `count` rows of turns, one of each; who begins changes from row to row."""
    waiting = deque(turns)
    for number in range(1, count + 1):
        for result, run in waiting:
            if not result.runs:
                continue
            gc.collect()  # ends the threads and frees the memory of a stream that is closed
            step = f"{title or f'round {number}/{count}'} {result.name}"
            try:
                with bar(step, workload.order.size) as tick:
                    result.rounds.append(run(result, tick))
                print(f"{step}: {result.rounds[-1]}", file=sys.stderr)
            except Exception as error:  # a leg may raise anything
                _refuse_non_images(workload, error)
                result.failed = summarize_error(error)
        waiting.rotate(-1)  # so that a drift of the machine's speed affects all legs alike


class Running:
    """An open stream of one leg, from which turns are read."""

    def __init__(self, leg: Leg, workload: Workload, stack: ExitStack) -> None:
        """Open nothing yet; the stream is closed with the `stack`, or when it fails."""
        self._leg, self._stack, self._read = leg, stack.enter_context(ExitStack()), 0
        # Of an epoch: with --batches, too, the turns go on through all samples.
        self._given, self._workload = workload.settings, leg.adapt(epoch_of(workload))
        self._stream: Stream | None = None
        self._batches: Iterator[Any] = iter(())
        self._ahead = 0  # batches that may be ready before a turn

    def turn(self, result: Result, tick: Tick) -> Round:
        """Read a few batches, with the queues full before the clock starts and steady then.

        While other legs have their turns, this one's queues fill up. So as many batches as may be
        ready are read first. No other stream works meanwhile: its threads have come to rest.
        """
        try:
            if self._stream is None:
                self._open(result)
            rest()
            for _ in range(self._ahead):
                self._next()
            return self._timed(tick)
        except Exception:
            self._stack.close()
            self._stream, self._batches = None, iter(())  # its threads must not disturb the others
            raise

    def _timed(self, tick: Tick) -> Round:
        assert self._stream is not None
        least, seconds = _LEAST, self._given.seconds / _TURNS
        if self._given.batches:
            least, seconds = -(-self._given.batches // _TURNS), 0.0
        waits, samples, before = list[float](), 0, self._read
        cpu_before, start = time.process_time(), time.perf_counter()
        now = start
        while len(waits) < least or now - start < seconds:
            called = time.perf_counter()
            samples += self._next()
            waits.append((now := time.perf_counter()) - called)
            tick(samples)
        seconds, cpu_seconds = now - start, time.process_time() - cpu_before
        nbytes = self._workload.delivered_bytes(before, samples)
        times = times_of(self._stream.pipe)
        return Round(seconds, cpu_seconds, samples, nbytes, np.array(waits), times)

    def _open(self, result: Result) -> None:
        """Open the stream, and read until it is in its steady state.

        Then DALI's buffer of 1,024 samples is full, which it shuffles; maps have their pages; and
        sizes are known: after an epoch, or the time of a round.
        """
        start, settings = time.monotonic(), self._given
        stream = self._stack.enter_context(self._leg.build(self._workload, False))
        self._stream, self._batches = stream, iter(stream.batches)
        self._next()
        result.first_seconds = time.monotonic() - start
        epoch, end = len(self._workload.sizes), time.monotonic() + settings.seconds
        while self._read < epoch and time.monotonic() < end:
            self._next()
        lanes = 0
        if buffers := buffers_of(stream.pipe):
            result.lanes, result.memory, result.transport = buffers
            lanes = result.lanes[1]
        self._ahead = settings.prefetch + 2 * lanes + 1

    def _next(self) -> int:
        count = len(next(self._batches)[0])
        self._read += count
        return count


def rest() -> None:
    """Wait until this process does nothing: the queues of all its streams are full."""
    end = time.monotonic() + _REST
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(_LOOK)
        if time.process_time() - before < _LOOK / 10:
            return


def drifts(results: Mapping[str, Result]) -> dict[str, float]:
    """How far the second half of each leg's turns is from the first, by the median x."""
    found = {}
    baselines = {name for result in results.values() for name in result.baselines}
    for name, result in results.items():
        if name in baselines:
            continue
        ratios = [pair["ratio"] for pair in _pairs(result, results)]
        if half := len(ratios) // 2:
            first, second = np.median(ratios[:half]), np.median(ratios[half:])
            found[name] = float(abs(first - second) / min(first, second))
    return found


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


def run_epochs(leg: Leg, workload: Workload, result: Result, tick: Tick) -> Round:
    """As many passes as fill the time of a round, at least one, from a cold page cache."""
    passes: list[Round] = []
    while not passes or sum(one.seconds for one in passes) < workload.settings.seconds:
        passes.append(_pass(leg, workload, result, tick))
    return Round(
        sum(one.seconds for one in passes),
        sum(one.cpu_seconds for one in passes),
        sum(one.samples for one in passes),
        sum(one.size_bytes for one in passes),
        np.concatenate([one.waits for one in passes]),
        passes[-1].times,
    )


def _pass(leg: Leg, workload: Workload, result: Result, tick: Tick) -> Round:
    """An epoch, in which no sample is read twice, or a part; by a new stream.

    The time to fill the queues counts: a user waits for it, too.
    """
    workload = leg.adapt(workload)
    untimed = workload.settings.untimed
    waits, samples = np.zeros(len(workload.order) - untimed), 0
    with leg.build(workload, False) as stream:
        make_cold(workload)
        batches = iter(stream.batches)
        before = sum(len(images) for images, _ in islice(batches, untimed))
        cpu_before, start = time.process_time(), time.perf_counter()
        for number in range(len(waits)):
            called = time.perf_counter()
            images = next(batches)[0]
            waits[number] = time.perf_counter() - called
            samples += len(images)
            tick(samples)
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_before
        times = times_of(stream.pipe)
        if buffers := buffers_of(stream.pipe):
            result.lanes, result.memory, result.transport = buffers
    nbytes = workload.delivered_bytes(before, samples)
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
    """The figures of every leg that has turns, by name.

    Speeds, costs and percentiles of the reader's stages are medians of the turns; those of waits
    are of all turns. `ratio` is the x of all tables, plots and pages: the median of the ratios of
    the speed in each turn to that of the baseline in its neighbouring turn; `ratio_q1` and
    `ratio_q3` are their quartiles. The baseline is the leg's fastest, by medians. `cpu_ratio` is
    the ratio of the CPU time of a sample. They are missing if no baseline ran.
    """
    return {name: _figures(it, results) for name, it in results.items() if it.rounds}


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure, of rows that have the same ones."""
    return {key: float(np.median([row[key] for row in rows])) for key in rows[0]}


def _figures(result: Result, results: Mapping[str, Result]) -> Figures:
    rounds = result.rounds
    waits = np.concatenate([one.waits for one in rounds])
    rows = [one.figures for one in rounds]
    speeds = [row["img_per_s"] for row in rows]
    figures: Figures = {
        **medians(rows),
        **_quartiles("img_per_s", speeds),
        "wait_p50_ms": 1e3 * float(np.percentile(waits, 50)),
        "wait_p99_ms": 1e3 * float(np.percentile(waits, 99)),
    }
    for stage in ("waiting", "reading"):
        if its := [one.times[stage] for one in rounds if stage in one.times]:
            figures[f"{stage}_p95_ms"] = 1e3 * float(np.median([times.p95 for times in its]))
            figures[f"{stage}_p99_ms"] = 1e3 * float(np.median([times.p99 for times in its]))
    if pairs := _pairs(result, results):
        figures |= medians(pairs) | _quartiles("ratio", [pair["ratio"] for pair in pairs])
    return figures


def _quartiles(name: str, values: Sequence[float]) -> dict[str, float]:
    low, high = np.percentile(values, [25, 75]).tolist()
    return {f"{name}_q1": low, f"{name}_q3": high}


def _pairs(result: Result, results: Mapping[str, Result]) -> list[dict[str, float]]:
    """The ratios of speed and CPU time, turn by turn, to the fastest of the baselines."""
    ran = [results[name] for name in result.baselines if name in results]
    turns = [one.rounds for one in ran if one.rounds and one.failed is None]
    if not turns:
        return []
    best = max(turns, key=lambda it: medians([one.figures for one in it])["img_per_s"])
    keys = {"ratio": "img_per_s", "cpu_ratio": "cpu_us_per_img"}
    rows = [(a.figures, b.figures) for a, b in zip(result.rounds, best, strict=False)]
    return [{ratio: a[key] / b[key] for ratio, key in keys.items()} for a, b in rows]
