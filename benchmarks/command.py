"""What the commands do."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import arguments, environment, fio, maps, report
from .legs import LEGS, MAPPED, Leg
from .measure import Result, Results, measure
from .progress import Display
from .verify import verify
from .work import BadInputError, Settings, Work, prepare

_DEMO_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "demo")


def run(command_line: Sequence[str] | None) -> int:
    """Parse the command line and do what it says; answer the exit status."""
    options = arguments.parser().parse_args(command_line)
    try:
        if options.command == "demo":
            _make_demo(options)
        return _compare(options)
    except BadInputError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2


def _make_demo(options: argparse.Namespace) -> None:
    from . import dataset  # here: nothing else needs matplotlib and Pillow

    if options.datadir is not None:
        raise BadInputError("demo makes its own data; to measure yours: compare --datadir DIR")
    with Display() as display:
        step = f"{dataset.IMAGES} images in {_DEMO_DIRECTORY}"
        dataset.make(_DEMO_DIRECTORY, display.start(step, dataset.IMAGES))
        display.say(step)
    options.datadir, options.verify = _DEMO_DIRECTORY, True


def _compare(options: argparse.Namespace) -> int:
    legs, work = _check(options, arguments.settings(options))
    results = {leg.name: Result(leg.name, skipped=leg.why_not(work)) for leg in legs}
    with maps.mapped(work, results) as work, Display() as display:
        if not any(result.runs for result in results.values()):
            reasons = "; ".join(f"{it.name}: {it.skipped or it.failed}" for it in results.values())
            raise BadInputError(f"no leg can run here: {reasons}")
        storage = fio.prepare(work, results)
        try:
            if options.verify:
                verify(legs, work, results, display)
            if work.root is not None and not work.settings.cold:
                environment.fill_page_cache(work, display)
            measure(legs, work, results, display, fio.turns(storage, results))
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
    _report(options, work, results, storage, interrupted)
    if interrupted:
        return 130
    return int(any(result.failed is not None for result in results.values()))


def _check(options: argparse.Namespace, settings: Settings) -> tuple[Sequence[Leg], Work]:
    """Refuse whatever can be refused before the first measurement."""
    if options.datadir is None and settings.bmap is None:
        raise BadInputError(f"{options.command} needs --datadir DIR or --bmap FILE")
    if settings.cold:
        environment.check_can_drop_caches()
    if options.datadir is not None:
        work = prepare(options.datadir, settings)
    else:
        work = maps.samples_of(str(settings.bmap), settings)
    if work.root is None and options.verify:
        raise BadInputError("--verify reads the files, whose file system is not mounted")
    report.check_outputs(options.json, options.plot)
    names = options.legs if options.command in arguments.SEVERAL_LEGS else [options.command]
    legs = [leg for leg in LEGS if names is None or leg.name in names]
    if (settings.bmap or settings.uri) and not any(leg in MAPPED for leg in legs):
        names = " and ".join(leg.name for leg in MAPPED)
        raise BadInputError(f"--bmap and --uri are for the legs {names}, none of which is to run")
    return legs, work


def _report(
    options: argparse.Namespace,
    work: Work,
    results: Results,
    storage: fio.Fio | None,
    interrupted: bool,
) -> None:
    machine = environment.describe(work)
    if interrupted:
        print("interrupted: what follows is what was measured until then", file=sys.stderr)
    report.show_table(results, machine, work.settings)
    if storage is not None:
        print(fio.describe(storage, results))
    try:
        if options.json is not None:
            document = report.document(results, machine, work.settings, interrupted)
            kept = None if storage is None else fio.as_json(storage, results)
            report.write_json(options.json, document | {"fio": kept})
        if options.plot is not None:
            report.plot(options.plot, results, machine)
    except OSError as error:
        raise BadInputError(f"the results could not be written: {error}") from error
