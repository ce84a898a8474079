"""The results as a table, a JSON file and a picture."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bmap_tools.atomic import destination, replacing

from .environment import describe
from .measure import Results, summarize
from .pipelines import describe_use
from .verdict import Comparison, X, untuned, verdict, warnings_of
from .workload import BadInputError

_SPEEDS = {"img/s": "img_per_s"}
_COSTS = {"CPU us/img": "cpu_us_per_img", "CPU s/GB": "cpu_s_per_gb"}
_WAITS = {"wait p50 ms": "wait_p50_ms", "p99 ms": "wait_p99_ms"}
_WAITS |= {"read p95 ms": "reading_p95_ms", "read p99 ms": "reading_p99_ms"}
_RATIOS = {"x dali": "ratio", "from": "ratio_q1", "to": "ratio_q3", "CPU x": "cpu_ratio"}
_COLUMNS = _SPEEDS | _COSTS | _WAITS | _RATIOS
"""The figures in the table, by their titles."""


def check_outputs(options: argparse.Namespace) -> None:
    """Check that the results can be written: to --json and --plot, and with matplotlib."""
    for option, path in (("--json", options.json), ("--plot", options.plot)):
        if path is not None:
            try:
                destination(path)
            except OSError as error:
                raise BadInputError(f"{option}: cannot write {path!r}: {error.strerror}") from error
    if options.plot is not None:
        import matplotlib.figure  # noqa: F401  (fails now if it is missing)


def publish(
    compared: Comparison, busy: Mapping[str, float], more: Mapping[str, Any],
    options: argparse.Namespace,
) -> None:  # fmt: skip
    """Print the table; write the figures, and `more`, to the JSON file; draw the chart."""
    if more["interrupted"]:
        print("interrupted: the figures are of the rounds until then", file=sys.stderr)
    machine, plain = describe(compared.workload) | {"busy": busy}, untuned([compared])
    if plain:
        print(verdict({name: row["ratio"] for name, row in plain.items()}))
    warnings = warnings_of(busy, [compared])
    print(*warnings, sep="\n", end="\n" * bool(warnings))
    _show_table(compared, machine)
    try:
        document = {
            "environment": machine,
            "settings": asdict(compared.workload.settings),
            "verdict": plain,
            "warnings": warnings,
            "readers": legs(compared.results),
            **more,
        }
        write_json(options.json, document)
        if options.plot is not None:
            from .plot import draw  # here: it needs matplotlib

            draw(options.plot, [compared], machine)
    except OSError as error:
        raise BadInputError(f"cannot write the results: {error}") from error


def write_json(path: str | None, document: Mapping[str, Any]) -> None:
    """Write a JSON file, if its path is given."""
    if path is not None:
        with replacing(path) as file:
            file.write(json.dumps(document, indent=2).encode() + b"\n")


def _show_table(compared: Comparison, machine: Mapping[str, Any]) -> None:
    """Print the table on standard output."""
    settings, results = compared.workload.settings, compared.results
    batches = "batches" if settings.batches is None else f"{settings.batches} batches"
    order = "in list order" if settings.seed is None else f"shuffled with seed {settings.seed}"
    print(
        "{cpu}, {cores} cores, {gib:.0f} GiB, Linux {kernel}, {file_system}, page cache "
        "{page_cache}\nPython {python}, DALI {dali}, numpy {numpy}".format(
            **machine, gib=machine["memory_bytes"] / 2**30
        )
    )
    print(
        f"{compared.title}; {describe_use(settings)}; rounds: {settings.rounds}, of at least "
        f"{settings.seconds:g} s, in {batches} of {settings.batch_size}, {order}; "
        f"{settings.threads} threads"
    )
    if lanes := [f"{name} {it.lanes[0]}/{it.lanes[1]}" for name, it in results.items() if it.lanes]:
        print(f"lanes that may copy at the same time, of all: {', '.join(lanes)}")
    if asked := [f"{name} by {it.transport}" for name, it in results.items() if it.transport]:
        print(f"objects: {', '.join(asked)}")
    buffers = [f"{name} {it.memory}" for name, it in results.items() if it.memory]
    if buffers and settings.device_id is not None:
        print(f"buffers: {', '.join(buffers)}; pinned is page-locked")
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 130
    console.print(_table(results))
    # Not in the table: a reason is a sentence, too wide for a column.
    for result in results.values():
        if not result.runs:
            state = "not run" if result.failed is None else "failed"
            print(f"{result.name}: {state}: {result.skipped or result.failed}")
    if any("ratio" in figures for figures in summarize(results).values()):
        print(f"img/s: median of the turns; {X}; from, to: quartiles; CPU x: of CPU time")


def _table(results: Results) -> Table:
    figures = summarize(results)
    keys = {key for row in figures.values() for key in row} or {"img_per_s"}
    columns = {title: key for title, key in _COLUMNS.items() if key in keys}
    cells = {
        name: [cell(key, row.get(key)) for key in columns.values()] for name, row in figures.items()
    }
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns
    table.add_column("reader", no_wrap=True)
    for column, title in enumerate(columns):
        # A title may be wrapped, a number may not.
        width = max((len(row[column]) for row in cells.values()), default=0)
        table.add_column(title, justify="right", min_width=width)
    for name in results:
        table.add_row(name, *cells.get(name, ["-"]))
    return table


def cell(key: str, figure: float | None) -> str:
    """A figure as it is printed; "-" if there is none."""
    if figure is None:
        return "-"
    return f"{figure:,.{0 if key.startswith('img') else 2}f}"


def legs(results: Results) -> dict[str, Any]:
    """All figures of the legs, round by round, for the JSON file."""
    figures = summarize(results)
    return {
        name: {
            "skipped": result.skipped,
            "failed": result.failed,
            "copying_lanes": result.lanes and result.lanes[0],
            "lanes": result.lanes and result.lanes[1],
            "memory": result.memory,
            "transport": result.transport,
            "first_seconds": result.first_seconds,
            "summary": figures.get(name),
            "rounds": [
                one.as_json() | {"samples": one.samples, "waits_seconds": one.waits.tolist()}
                for one in result.rounds
            ],
        }
        for name, result in results.items()
    }
