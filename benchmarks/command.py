"""The commands."""

import argparse
import os
import sys
from collections.abc import Sequence

from . import arguments, environment, fio, maps, report
from .container_legs import CONTAINER_LEGS, open_shards
from .legs import BASELINES, LEGS, XNVME_BAM, Leg, refuse_unused
from .measure import Result, Results, measure, warm
from .object_legs import BASELINES as DALI_S3
from .object_legs import OBJECT_LEGS, open_objects
from .progress import progress, say
from .verify import verify
from .workload import BadInputError, Settings, Workload, prepare, summarize_error

_INTERRUPTED = 130
_DEMO_DIRECTORY = "demo"  # in the working directory, because the program's may be read-only
_DEMO_CONTAINERS = {
    "command": arguments.CONTAINERS,
    "datadir": _DEMO_DIRECTORY,
    "verify": True,
    "seed": 0,
    "rounds": 3,
    "batches": 63,  # two epochs
    "json": None,
    "plot": None,
    "legs": [
        leg.name for leg in CONTAINER_LEGS if leg.backend is None or leg.name.endswith("-samples")
    ],
}
"""The options of the second table of the demo. Figures of the first are in the files."""
_OF_COPIES = arguments.CONTAINERS, arguments.OBJECTS
"""The commands that compare readers of other copies of the files in DIR."""


def run(command_line: Sequence[str] | None) -> int:
    """Parse the command line and run the command; return the exit status."""
    options = arguments.parser().parse_args(command_line)
    try:
        if options.command == arguments.LOADERS:
            from . import loading  # here: nothing else needs torch and torchvision

            return loading.run(options)
        return _demo(options) if options.command == "demo" else _compare(options)
    except BadInputError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2


def _demo(options: argparse.Namespace) -> int:
    """Compare readers of files and, unless legs are chosen, readers of containers."""
    containers = argparse.Namespace(**vars(options) | _DEMO_CONTAINERS)
    containers.rounds = options.rounds or _DEMO_CONTAINERS["rounds"]
    _make_demo(options)
    only_files = options.legs is not None
    options.legs = options.legs or [leg.name for leg in LEGS if leg is not XNVME_BAM]
    status = _compare(options)
    if only_files or status == _INTERRUPTED:
        return status
    print()
    return max(status, _compare(containers))


def _make_demo(options: argparse.Namespace) -> None:
    from . import dataset, packing  # here: nothing else needs matplotlib, Pillow and google-crc32c

    if options.datadir is not None:
        raise BadInputError("demo makes its own data; to measure yours: compare --datadir DIR")
    step = f"{dataset.IMAGES} images in {os.path.abspath(_DEMO_DIRECTORY)}"
    try:
        with progress(step, dataset.IMAGES) as tick:
            dataset.make(_DEMO_DIRECTORY, tick)
        with progress("packing them into shards", 2 * dataset.IMAGES) as tick:
            packing.make(_DEMO_DIRECTORY, tick)
    except OSError as error:
        raise BadInputError(f"demo: cannot make {step}: {summarize_error(error)}") from error
    say(step)
    options.datadir, options.verify = _DEMO_DIRECTORY, True


def _compare(options: argparse.Namespace) -> int:
    legs, workload = _check(options, arguments.settings(options))
    results = {
        leg.name: Result(
            leg.name, skipped=leg.unsupported_reason(workload), baselines=leg.baselines
        )
        for leg in legs
    }
    with maps.with_map(workload, results, legs) as workload:
        if not any(result.runs for result in results.values()):
            reasons = "; ".join(f"{it.name}: {it.skipped or it.failed}" for it in results.values())
            raise BadInputError(f"no leg can run here: {reasons}")
        limit, interrupted = None, False
        try:
            if options.verify:
                verify(legs, workload, results)
            limit = fio.prepare(workload, results)
            if workload.root is not None and not workload.settings.cold:
                environment.fill_page_cache(workload)
            warm(legs, workload, results)
            measure(legs, workload, results, [] if limit is None else [(limit.result, limit.run)])
        except KeyboardInterrupt:
            interrupted = True
    _report(options, workload, results, limit, interrupted)
    if interrupted:
        return _INTERRUPTED
    return int(any(result.failed is not None for result in results.values()))


def _check(options: argparse.Namespace, settings: Settings) -> tuple[Sequence[Leg], Workload]:
    """Refuse what can be refused before the first measurement."""
    _check_memory(settings)
    if settings.cold:
        environment.check_can_drop_caches()
    if options.datadir is not None:
        workload = prepare(options.datadir, settings)
        if options.command == arguments.CONTAINERS:
            workload = open_shards(workload, options.datadir)
        if options.command == arguments.OBJECTS:
            if options.endpoint is not None:
                os.environ["AWS_ENDPOINT_URL"] = options.endpoint  # DALI has no other way
            workload = open_objects(workload)
    elif settings.bmap is not None and options.command not in _OF_COPIES:
        workload = maps.samples_of(settings.bmap, settings)
    else:
        other = "" if options.command in _OF_COPIES else " or --bmap FILE"
        raise BadInputError(f"{options.command} needs --datadir DIR{other}")
    if workload.root is None and options.verify:
        raise BadInputError("--verify reads the files, and their file system is not mounted")
    report.check_outputs(options.json, options.plot)
    names = options.legs if options.command in arguments.SEVERAL_LEGS else [options.command]
    others = {arguments.CONTAINERS: CONTAINER_LEGS, arguments.OBJECTS: OBJECT_LEGS}
    known = others.get(options.command, LEGS)
    legs = [leg for leg in known if names is None or leg.name in names]
    refuse_unused(settings, legs)
    return legs, workload


def _check_memory(settings: Settings) -> None:
    if settings.device_id is None:
        for option, value in (("--mem", settings.mem), ("--pinned", settings.pinned)):
            if value in ("pinned", "gpu", "yes"):
                raise BadInputError(f"{option} {value} needs a GPU in the pipeline: --device-id N")
    if settings.mem == "gpu" and settings.decode:
        what = "--decode needs the files in host memory, because DALI decodes them from there"
        raise BadInputError(f"{what}: use --mem pinned")


def _baselines(options: argparse.Namespace) -> str:
    """What the legs are compared with, for the line below the table."""
    if options.command == arguments.CONTAINERS:
        return "the fastest of DALI's legs of the same format"
    if options.command == arguments.OBJECTS:
        return f"the fastest of {', '.join(DALI_S3)}"
    return f"the faster of {' and '.join(BASELINES)}"


def _report(
    options: argparse.Namespace,
    workload: Workload,
    results: Results,
    limit: fio.Fio | None,
    interrupted: bool,
) -> None:
    report.publish(
        results,
        environment.describe(workload),
        workload.settings,
        report.readers(workload.settings, _baselines(options)),
        interrupted=interrupted,
        json_path=options.json,
        plot_path=options.plot,
        more={"fio": None if limit is None else fio.as_json(limit, results)},
    )
    if limit is not None:
        print(fio.describe(limit, results))
