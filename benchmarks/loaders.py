"""The command `loaders`: our loaders by backend, DALI's pipeline, and torchvision's DataLoader."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

from dali_storage import StageTimes
from dali_storage.loaders import Loader

from . import arguments, environment, report
from .legs import TABLES, Family, Leg
from .measure import Results, running
from .pipelines import Build, Stream, outputs
from .workload import BadInputError, Settings, Workload, summarize_error

try:
    import torch
    import torchvision
except RuntimeError as error:  # torchvision::nms is missing
    raise BadInputError(
        f"torchvision does not fit to this torch ({error}): install both from one place, for "
        "example pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"
    ) from error

from . import peers
from .loader_sets import OpenSet

_DEFAULTS = Settings()
_NOT_TAKEN = ("decode", "device_id", "mem", "pinned", "spin", "verify")


def prepare(options: argparse.Namespace) -> report.Comparison:
    """Refuse what can be refused before the first measurement; open the data set."""
    settings, names = arguments.settings(options), options.legs or arguments.LOADER_LEGS
    for name in _NOT_TAKEN:
        if getattr(options, name) != getattr(_DEFAULTS, name, False):
            raise BadInputError(f"--{name.replace('_', '-')} is not for loaders")
    arguments.refuse_unused(settings, [leg for leg in TABLES["loaders"] if leg.name in names])
    if settings.cold:
        environment.check_can_drop_caches()
        if options.set == "cifar10":
            raise BadInputError("--cold: CIFAR-10 is read once, when a loader is opened")
    if options.datadir is None:
        raise BadInputError("loaders needs --datadir DIR")
    report.check_outputs(options)
    opened = OpenSet(options.set, options.datadir, replace(settings, seed=settings.seed or 0))
    legs = make_legs(opened, options.workers, options.torch_threads, names)
    model = "" if options.model is None else f" for a model that takes {options.model:,} a second"
    return report.Comparison(
        legs,
        replace(opened.workload(), model=options.model),
        partial(verify, opened),
        f"images of {options.set}{model}",
        "wait: share of the time in next(); x speed, x CPU: how much faster and cheaper than the "
        f"better of {' and '.join(legs[0].family.baselines)} in the same round",
        report.LOADERS,
        {"torch": torch.__version__, "torchvision": torchvision.__version__},
        {name: getattr(options, name) for name in ("set", "workers", "torch_threads")}
        | {"model_img_per_s": options.model},
    )


def make_legs(of: OpenSet, workers: Sequence[int], threads: int, names: Sequence[str]) -> list[Leg]:
    """The ways of torchvision to load a set, and those of `names` of DALI's and ours."""
    rivals = tuple(f"torchvision-{number}" for number in workers)
    family = Family(rivals, "torchvision", partial(_torchvision, of, 0, 1))
    legs = [
        Leg(name, family, partial(_torchvision, of, number, threads))
        for name, number in zip(rivals, workers, strict=True)
    ]
    legs += [Leg("dali", family, partial(_dali, of)), Leg("no-loader", family, partial(_own, of))]
    for leg in TABLES["loaders"]:
        legs.append(replace(leg, family=family, build=partial(_loader, of, leg.backend)))
    return [leg for leg in legs if leg.name in (*rivals, *names)]


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
    yield Stream(map(_tensors, outputs(pipe)))


@contextmanager
def _own(of: OpenSet, workload: Workload, exact: bool) -> Iterator[Stream]:
    with of.loader(exact=exact) as loader:
        yield Stream(map(_tensors, outputs(loader.pipeline)))


@contextmanager
def _loader(of: OpenSet, backend: Any, workload: Workload, exact: bool) -> Iterator[Stream]:
    options = {"backend": backend.name, "backend_options": backend.options(workload)}
    with of.loader(exact=exact, **options) as loader:
        len(loader)  # opens it
        epochs = _Epochs(loader)
        yield Stream(epochs, stats=epochs.stats)


def _tensors(batch: Any) -> peers.Batch:
    images, labels = batch
    return torch.from_dlpack(images.as_tensor()), torch.from_dlpack(labels.as_tensor())


class _Epochs:
    """One epoch of a loader after another; knows how long they waited for the storage."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._before = 0.0

    def __iter__(self) -> Iterator[peers.Batch]:
        while True:
            yield from self._loader
            self._before += self._loader.stats.storage_seconds

    def stats(self) -> tuple[float, Mapping[str, StageTimes]]:
        """See Stream; the stages are those of the last epoch."""
        its = self._loader.stats
        return self._before + its.storage_seconds, its.times


def verify(of: OpenSet, legs: Sequence[Leg], workload: Workload, results: Results) -> None:
    """Fail every leg whose batches are not torchvision's."""
    truth = legs[0].family.truth
    exact = _first(truth, workload, True)
    draws = [_first(truth, workload, False) for _ in range(2 if of.of.compare else 0)]
    for leg in running(legs, results):
        result = results[leg.name]
        try:
            ours = _first(leg.build, workload, True)
            result.failed = peers.difference(ours, exact, of.of.tolerance)
            if result.failed is None and of.of.compare is not None:
                ours = _first(leg.build, workload, False)
                result.failed = peers.different_kind(ours, draws[0]) or of.of.compare(
                    ours[0], [images for images, _ in draws], exact[0]
                )
        except Exception as error:  # a reader may raise anything
            result.failed = summarize_error(error)
        step = f"comparing {leg.name} with torchvision"
        print(f"{step}: {result.failed or 'the same'}", file=sys.stderr)


def _first(build: Build, workload: Workload, exact: bool) -> peers.Batch:
    """At least `peers.LEAST_IMAGES` images and labels, if the round has as many."""
    with build(workload, exact) as stream:
        count = min(-(-peers.LEAST_IMAGES // workload.settings.batch_size), len(workload.order))
        images, labels = zip(*islice(stream.batches, count), strict=True)
        return torch.cat(images), torch.cat(labels)
