"""The command `loaders`: our loaders by backend, DALI's pipeline, and torchvision's DataLoader."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from . import arguments, environment, maps, report
from .arguments import LOADER_LEGS
from .legs import LEGS, refuse_unused
from .measure import Result, Results, Turn, take_turns
from .workload import BadInputError, Settings, Workload

try:
    import torch
    import torchvision
except RuntimeError as error:  # torchvision::nms is missing
    raise BadInputError(
        f"torchvision does not fit to this torch ({error}): install both from one place, for "
        "example pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu"
    ) from error

from .loader_legs import LoaderLeg, make_legs, run_round, verify
from .loader_sets import OpenSet

_DEFAULTS = Settings()
_NOT_TAKEN = ("decode", "device_id", "mem", "pinned", "spin", "verify")


def run(options: argparse.Namespace) -> int:
    """Compare loaders; return the exit status."""
    opened = _open(options)
    workload = opened.workload()
    legs = make_legs(opened, options.workers, options.torch_threads, options.legs)
    peers = tuple(leg.name for leg in legs if leg.name.startswith("torchvision-"))
    results = {
        leg.name: Result(leg.name, skipped=leg.unsupported(workload), baselines=peers)
        for leg in legs
    }
    interrupted = False
    with maps.with_map(workload, results) as workload:
        try:
            verify(legs, opened, workload, results)
            if not workload.settings.cold:
                environment.fill_page_cache(_of_files(opened, workload))
            take_turns(_turns(legs, workload, results, options.model), workload)
        except KeyboardInterrupt:
            interrupted = True
    _report(options, workload, results, interrupted)
    if interrupted:
        return 130
    return int(any(result.failed is not None for result in results.values()))


def _open(options: argparse.Namespace) -> OpenSet:
    """Refuse what can be refused before the first measurement."""
    settings = arguments.settings(options)
    for name in _NOT_TAKEN:
        if getattr(options, name) != getattr(_DEFAULTS, name, False):
            raise BadInputError(f"--{name.replace('_', '-')} is not for loaders")
    refuse_unused(settings, [leg for leg in LEGS if leg.name in (options.legs or LOADER_LEGS)])
    if settings.cold:
        environment.check_can_drop_caches()
        if options.set == "cifar10":
            raise BadInputError("--cold: CIFAR-10 is read once, when a loader is opened")
    if options.datadir is None:
        raise BadInputError("loaders needs --datadir DIR")
    report.check_outputs(options.json, options.plot)
    return OpenSet(options.set, options.datadir, replace(settings, seed=settings.seed or 0))


def _of_files(opened: OpenSet, workload: Workload) -> Workload:
    """The workload with an order of files, also if the samples are records in them."""
    if opened.of.record_bytes is None:
        return workload
    return replace(workload, order=np.arange(len(workload.catalog))[np.newaxis])


def _turns(
    legs: Sequence[LoaderLeg], workload: Workload, results: Results, model: float | None
) -> list[Turn]:
    return [
        (results[leg.name], partial(run_round, leg, workload, model))
        for leg in legs
        if results[leg.name].runs
    ]


def _report(
    options: argparse.Namespace, workload: Workload, results: Results, interrupted: bool
) -> None:
    versions = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    model = "" if options.model is None else f" for a model that takes {options.model:,} a second"
    peers = tuple(name for name in results if name.startswith("torchvision-"))
    report.publish(
        results,
        environment.describe(workload) | versions,
        workload.settings,
        report.loaders(f"images of {options.set}{model}", peers),
        interrupted=interrupted,
        json_path=options.json,
        plot_path=options.plot,
        more={
            "set": options.set,
            "workers": options.workers,
            "torch_threads": options.torch_threads,
            "model_img_per_s": options.model,
        },
    )
