"""The commands."""

import argparse
import os
import sys
from collections.abc import Sequence

from . import arguments, environment, fio, maps, report
from .legs import OBJECT_LEGS, TABLES
from .measure import fill_caches, measure, results_of
from .pipelines import describe_use
from .verify import verify
from .workload import (
    BadInputError,
    Settings,
    Workload,
    compare_objects,
    open_shards,
    prepare,
)

_INTERRUPTED = 130
_BASELINES = {
    "compare": "the faster of dali and dali-nommap",
    "containers": "the fastest of DALI's legs of the same format",
    "objects": f"the fastest of {', '.join(OBJECT_LEGS[0].family.baselines)}",
}
"""The legs that the others are compared with, for the line below the table."""


def run(command_line: Sequence[str] | None) -> int:
    """Parse the command line and run the command; return the exit status."""
    options = arguments.parser().parse_args(command_line)
    try:
        if options.command == "demo":
            from . import demo  # here: nothing else needs Pillow and google-crc32c

            return demo.run(options)
        return _compare(options)
    except BadInputError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2


def _compare(options: argparse.Namespace) -> int:
    compared = _prepare(options)
    legs, limit, interrupted = compared.legs, None, False
    results = results_of(legs, compared.workload)
    with maps.with_map(compared.workload, results, legs) as workload:
        if not any(result.runs for result in results.values()):
            reasons = "; ".join(f"{it.name}: {it.skipped or it.failed}" for it in results.values())
            raise BadInputError(f"no leg can run here: {reasons}")
        try:
            if options.verify:
                verify(legs, workload, results)
            limit = fio.prepare(legs, workload, results)
            if workload.root is not None and not workload.settings.cold:
                environment.fill_page_cache(workload)
            fill_caches(legs, workload, results)
            others = [] if limit is None else [(limit.result, limit.run)]
            measure(legs, workload, results, *others)
        except KeyboardInterrupt:
            interrupted = True
    more = {"fio": None if limit is None else limit.as_json(results), "interrupted": interrupted}
    report.publish(results, compared, more, options)
    if limit is not None:
        print(limit.describe(results))
    if interrupted:
        return _INTERRUPTED
    return int(any(result.failed is not None for result in results.values()))


def _prepare(options: argparse.Namespace) -> report.Comparison:
    """Refuse what can be refused before the first measurement."""
    settings = arguments.settings(options)
    _check_memory(settings)
    if settings.cold:
        environment.check_can_drop_caches()
    workload = _open(options, settings)
    if workload.root is None and options.verify:
        raise BadInputError("--verify reads the files, and their file system is not mounted")
    report.check_outputs(options)
    names = options.legs if options.command in TABLES else [options.command]
    known = TABLES.get(options.command, TABLES["compare"])
    legs = [leg for leg in known if names is None or leg.name in names]
    arguments.refuse_unused(settings, legs)
    baselines = _BASELINES.get(options.command, _BASELINES["compare"])
    ratios = f"x dali: compared with {baselines} in the same round"
    return report.Comparison(legs, workload, describe_use(settings), ratios)


def _open(options: argparse.Namespace, settings: Settings) -> Workload:
    if options.datadir is None:
        other = "" if options.command in ("containers", "objects") else " or --bmap FILE"
        if settings.bmap is not None and other:
            return maps.samples_of(settings.bmap, settings)
        raise BadInputError(f"{options.command} needs --datadir DIR{other}")
    workload = prepare(options.datadir, settings)
    if options.command == "containers":
        return open_shards(workload, options.datadir)
    if options.command == "objects":
        if options.endpoint is not None:
            os.environ["AWS_ENDPOINT_URL"] = options.endpoint  # DALI has no other way
        compare_objects(workload)
    return workload


def _check_memory(settings: Settings) -> None:
    if settings.device_id is None:
        for option, value in (("--mem", settings.mem), ("--pinned", settings.pinned)):
            if value in ("pinned", "gpu", "yes"):
                raise BadInputError(f"{option} {value} needs a GPU in the pipeline: --device-id N")
    if settings.mem == "gpu" and settings.decode:
        what = "--decode needs the files in host memory, because DALI decodes them from there"
        raise BadInputError(f"{what}: use --mem pinned")
