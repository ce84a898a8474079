"""The commands."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from . import arguments, environment, fio, maps, report
from .legs import TABLES
from .measure import fill_caches, measure, results_of
from .situations import SITUATIONS
from .verdict import Comparison, Watch, verdict
from .verify import verify
from .workload import (
    BadInputError,
    NotHereError,
    Settings,
    Workload,
    compare_objects,
    open_shards,
    prepare,
    summarize_error,
)

_INTERRUPTED = 130


def run(command_line: Sequence[str] | None) -> int:
    """Parse the command line and run the command; return the exit status."""
    words = sys.argv[1:] if command_line is None else command_line
    options = arguments.parser().parse_args(words)
    previous = signal.signal(signal.SIGTERM, _end)
    try:
        if options.command == "demo":
            from . import demo  # here: nothing else needs Pillow and google-crc32c

            return demo.run(options)
        if len(options.situations or ()) > 1:
            return _in_each(options, words)
        with ExitStack() as stack:
            return _compare(options, stack)
    except BadInputError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    except NotHereError as reason:
        print(f"not measured: {reason}")
        return 2
    finally:
        signal.signal(signal.SIGTERM, previous)


def _end(number: int, *_: object) -> NoReturn:
    """Leave every `with` block."""
    sys.exit(128 + number)


def _in_each(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Run each situation in a process of its own; print one verdict, then what each prints."""
    report.check_outputs(options)
    if options.plot is not None:
        raise BadInputError("--plot is for one situation: name one with --in")
    found, texts, statuses = {}, [], set()
    program = str(Path(__file__).parents[1] / "benchmark.py")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as directory:
        for name in options.situations:
            kept = Path(directory, f"{name}.json")
            command = (sys.executable, program, *words, "--in", name, "--json", str(kept))
            print(f"situation {name}", file=sys.stderr)
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                try:
                    text, _ = child.communicate()
                except KeyboardInterrupt:  # the child has it, too, and prints what it has
                    text, _ = child.communicate()
                finally:
                    if child.poll() is None:
                        child.terminate()  # not killed: it has a cgroup to remove
            statuses.add(child.returncode)
            texts.append(f"== {name}\n{text or f'failed: status {child.returncode}'}")
            if kept.exists():
                found[name] = json.loads(kept.read_text())
            if child.returncode == _INTERRUPTED:
                break
    rows = {what: row for each in found.values() for what, row in each["verdict"].items()}
    print(verdict({what: row["ratio"] for what, row in rows.items()}), *texts, sep="\n\n")
    report.write_json(options.json, {"verdict": rows, "situations": found})
    if not found:
        return 2
    return _INTERRUPTED if _INTERRUPTED in statuses else int(bool(statuses - {0, 2}))


def _compare(options: argparse.Namespace, stack: ExitStack) -> int:
    compared, interrupted = _prepare(options, stack), False
    legs, results = compared.legs, compared.results
    watch, limit = Watch(), None
    with maps.with_map(compared.workload, results, legs) as workload:
        if not any(result.runs for result in results.values()):
            reasons = "; ".join(f"{it.name}: {it.skipped or it.failed}" for it in results.values())
            raise BadInputError(f"no reader can run here: {reasons}")
        try:
            if options.verify:
                verify(legs, workload, results)
            limit = fio.prepare(legs, workload, results)
            fill_caches(legs, workload, results)
            others = [] if limit is None else [(limit.result, limit.run)]
            measure(legs, workload, results, *others)
        except KeyboardInterrupt:
            interrupted = True
    more = {"fio": None if limit is None else limit.as_json(results), "interrupted": interrupted}
    report.publish(compared, watch.busy(), more, options)
    if limit is not None:
        print(limit.describe(results))
    if interrupted:
        return _INTERRUPTED
    return int(any(result.failed is not None for result in results.values()))


def _prepare(options: argparse.Namespace, stack: ExitStack) -> Comparison:
    """Refuse what can be refused before the first measurement; enter the situation."""
    settings, name = arguments.settings(options), (options.situations or [""])[0]
    _check_memory(settings)
    situation, title = SITUATIONS.get(name), "cold" if settings.cold else "hot"
    if situation is not None:
        title, seed = situation.title, 1 if settings.seed is None else settings.seed
        settings = replace(settings, seed=seed)
    if "cold" in title:
        environment.check_can_drop_caches()
    workload = _open(options, settings)
    if workload.root is None and options.verify:
        raise BadInputError("--verify reads the files, and their file system is not mounted")
    report.check_outputs(options)
    names = options.readers if options.command in TABLES else [options.command]
    table = options.command
    if situation is not None:
        table, names = situation.table, names or situation.legs
    known = TABLES.get(table, TABLES["compare"])
    legs = [leg for leg in known if names is None or leg.name in names]
    arguments.refuse_unused(settings, legs)
    if situation is not None:
        try:
            workload = situation.enter(workload, stack)
        except OSError as error:
            raise BadInputError(f"--in {name}: {summarize_error(error)}") from error
    elif workload.root is not None and not settings.cold:
        environment.fill_page_cache(workload)
    return Comparison(title, legs, workload, results_of(legs, workload))


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
