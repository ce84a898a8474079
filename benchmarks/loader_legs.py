"""The legs of `benchmark.py loaders`: what gives batches, and how a round of them is timed."""

import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from nvidia.dali import Pipeline

from bmap_tools.console import Tick
from dali_storage.loaders import Loader

from . import peers, pixels
from .environment import drop_caches
from .legs import LEGS, XNVME_BAM, Backend
from .loader_sets import OpenSet, untimed_batches
from .measure import Results, Round
from .progress import say
from .workload import Workload, summarize_error


@dataclass(slots=True)
class Stream:
    """Batches of images and labels, as tensors of torch.

    Attributes:
        batches: to be iterated once; starts to work then.
        storage_seconds: how long a pipeline waited for the storage; None if that is unknown.
    """

    batches: Iterable[pixels.Batch]
    storage_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class LoaderLeg:
    """One way to load images.

    Attributes:
        open: opens the stream of a workload, with exact pixels or as timed.
        unsupported: why the leg cannot run here, or None.
    """

    name: str
    open: Callable[[Workload, bool], AbstractContextManager[Stream]]
    unsupported: Callable[[Workload], str | None] = lambda workload: None


def make_legs(
    of: OpenSet, workers: Iterable[int], threads: int, names: Collection[str] | None
) -> list[LoaderLeg]:
    """The ways of torchvision to load a set, and those of `names` of DALI's and ours."""
    legs = [
        LoaderLeg("dali", partial(_dali, of)),
        LoaderLeg("no-loader", partial(_no_loader, of)),
        *(
            LoaderLeg(leg.name, partial(_loader, of, leg.backend), leg.unsupported_reason)
            for leg in LEGS
            if leg.backend is not None and leg is not XNVME_BAM
        ),
    ]
    return [
        *(LoaderLeg(f"torchvision-{n}", partial(_torchvision, of, n, threads)) for n in workers),
        *(leg for leg in legs if names is None or leg.name in names),
    ]


@contextmanager
def _torchvision(
    of: OpenSet, workers: int, threads: int, workload: Workload, exact: bool
) -> Iterator[Stream]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield Stream(peers.batches(of.peer(exact=exact), workload.order, workers))
    finally:
        torch.set_num_threads(before)


@contextmanager
def _dali(of: OpenSet, workload: Workload, exact: bool) -> Iterator[Stream]:
    pipe = of.rival(exact=exact)
    pipe.build()
    yield Stream(_outputs(pipe))


@contextmanager
def _no_loader(of: OpenSet, workload: Workload, exact: bool) -> Iterator[Stream]:
    with of.loader(exact=exact) as loader:
        yield Stream(_outputs(loader.pipeline))


@contextmanager
def _loader(of: OpenSet, backend: Backend, workload: Workload, exact: bool) -> Iterator[Stream]:
    options = {"backend": backend.name, "backend_options": backend.options(workload)}
    with of.loader(exact=exact, **options) as loader:
        len(loader)  # opens it
        stream = Stream([], 0.0)
        stream.batches = _epochs(loader, stream)
        yield stream


def _outputs(pipe: Pipeline) -> Iterator[pixels.Batch]:
    while True:
        images, labels = pipe.run()
        yield torch.from_dlpack(images.as_tensor()), torch.from_dlpack(labels.as_tensor())


def _epochs(loader: Loader, stream: Stream) -> Iterator[pixels.Batch]:
    """One epoch after another; the stream knows how long they waited for the storage."""
    before = 0.0
    while True:
        for images, labels in loader:
            stream.storage_seconds = before + loader.stats.storage_seconds
            yield images, labels
        before = stream.storage_seconds or 0.0


def run_round(leg: LoaderLeg, workload: Workload, model: float | None, tick: Tick) -> Round:
    """A round with a new stream.

    The first batches are not timed. When the clock starts, the queues are then as full, and the
    workers as busy, as when it stops, and the times are those of as many batches as were taken.

    Args:
        leg: what is timed.
        workload: has the batches.
        model: how many images a second the training loop takes; None is as many as there are.
        tick: is called with the number of samples.
    """
    untimed = untimed_batches(workload.settings)
    waits, samples = np.zeros(len(workload.order) - untimed), 0
    with leg.open(workload, False) as stream:
        if workload.settings.cold:
            drop_caches()
        batches = iter(stream.batches)
        for _ in range(untimed):
            next(batches)
        storage = stream.storage_seconds
        cpu_before, start = cpu_time(), time.perf_counter()
        for number in range(len(waits)):
            called = time.perf_counter()
            images, _ = next(batches)
            waits[number] = time.perf_counter() - called
            samples += len(images)
            tick(samples)
            if model is not None:
                time.sleep(len(images) / model)
        seconds, cpu_seconds = time.perf_counter() - start, cpu_time() - cpu_before
        if storage is not None and stream.storage_seconds is not None:
            storage = stream.storage_seconds - storage
        del batches  # ends torch's workers
    size_bytes = int(workload.sizes[workload.order[untimed:]].sum())
    return Round(seconds, cpu_seconds, samples, size_bytes, waits, storage)


def cpu_time() -> float:
    """User and system time of this process and of its children, which must go on living."""
    ticks = 0
    for child in multiprocessing.active_children():
        with open(f"/proc/{child.pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # utime and stime, see proc(5)
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def verify(legs: Iterable[LoaderLeg], of: OpenSet, workload: Workload, results: Results) -> None:
    """Fail every leg whose batches are not torchvision's."""
    torchvision = LoaderLeg("torchvision", partial(_torchvision, of, 0, 1))
    exact = _first(torchvision, workload, True)
    draws = [_first(torchvision, workload, False) for _ in range(2 if of.of.compare else 0)]
    for leg in legs:
        result, step = results[leg.name], f"comparing {leg.name} with torchvision"
        if not result.runs:
            continue
        try:
            result.failed = _difference(leg, of, workload, exact, draws)
        except Exception as error:  # a reader may raise anything
            result.failed = summarize_error(error)
        say(f"{step}: {result.failed or 'the same'}")


def _difference(
    leg: LoaderLeg,
    of: OpenSet,
    workload: Workload,
    exact: pixels.Batch,
    draws: Sequence[pixels.Batch],
) -> str | None:
    found = pixels.difference(_first(leg, workload, True), exact, of.of.tolerance)
    if found or of.of.compare is None:
        return found
    ours = _first(leg, workload, False)
    if found := pixels.different_kind(ours, draws[0]):
        return found
    return of.of.compare(ours[0], [images for images, _ in draws], exact[0])


def _first(leg: LoaderLeg, workload: Workload, exact: bool) -> pixels.Batch:
    """At least `pixels.LEAST_IMAGES` images and labels, if the round has as many."""
    with leg.open(workload, exact) as stream:
        count = min(-(-pixels.LEAST_IMAGES // workload.settings.batch_size), len(workload.order))
        images, labels = zip(*islice(stream.batches, count), strict=True)
        return torch.cat(images), torch.cat(labels)
