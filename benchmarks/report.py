"""The results as a table, a JSON file and a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from .legs import BASELINES
from .measure import Results, Round, summarize
from .workload import BadInputError, Settings

Environment = Mapping[str, Any]
_PLAIN_WIDTH = 130
_COLUMNS = {
    "img/s": "img_per_s",
    "min": "img_per_s_min",
    "max": "img_per_s_max",
    "GB/s": "gb_per_s",
    "CPU s/GB": "cpu_s_per_gb",
    "wait p50 ms": "wait_p50_ms",
    "p99 ms": "wait_p99_ms",
    "x dali": "ratio",
}


def check_outputs(json_path: str | None, plot_path: str | None) -> None:
    """Check before the measurement that its results can be written.

    Raises:
        BadInputError: a file cannot be written.
        ModuleNotFoundError: matplotlib is missing.
    """
    for option, path in (("--json", json_path), ("--plot", plot_path)):
        if path is not None:
            existed = os.path.lexists(path)
            try:
                with open(path, "ab"):
                    pass
                if not existed:
                    os.remove(path)
            except OSError as error:
                raise BadInputError(f"{option}: cannot write {path!r}: {error.strerror}") from error
    if plot_path is not None:
        import matplotlib.figure  # noqa: F401  (fails now if it is missing)


def show_table(results: Results, environment: Environment, settings: Settings) -> None:
    """Print the table on standard output."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(_describe(environment, settings), soft_wrap=True)
    if lanes := [f"{name} {it.lanes[0]}/{it.lanes[1]}" for name, it in results.items() if it.lanes]:
        console.print(f"lanes, copying at once/all: {', '.join(lanes)}", soft_wrap=True)
    console.print(_table(results))
    # Not in the table: a reason is a sentence, too wide for a column.
    for result in results.values():
        if not result.runs:
            state = "not run" if result.failed is None else "failed"
            reason = result.skipped or result.failed
            console.print(f"{result.name}: {state}: {reason}", soft_wrap=True)
    if any(results[name].rounds for name in BASELINES if name in results):
        legend = "img/s, min, max: median, slowest and fastest round; x dali: compared with"
        legend += f" the faster of {' and '.join(BASELINES)} in the same round"
        console.print(legend, soft_wrap=True)


def _describe(environment: Environment, settings: Settings) -> str:
    batches = "one epoch in batches" if settings.batches is None else f"{settings.batches} batches"
    return (
        f"{environment['cpu']}, {environment['cores']} cores, "
        f"{environment['memory_bytes'] / 2**30:.0f} GiB, Linux {environment['kernel']}, "
        f"{environment['file_system']}, page cache {environment['page_cache']}\n"
        f"Python {environment['python']}, DALI {environment['dali']}, "
        f"numpy {environment['numpy']}\n"
        f"rounds: {settings.rounds}, of {batches} of {settings.batch_size}, "
        f"{settings.threads} threads, "
        f"{'decoding' if settings.decode else 'reading the image headers'}, "
        f"{'in list order' if settings.seed is None else f'shuffled with seed {settings.seed}'}"
    )


def _table(results: Results) -> Table:
    figures = summarize(results)
    columns = {
        title: key for title, key in _COLUMNS.items() if any(key in row for row in figures.values())
    } or {"img/s": "img_per_s"}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns
    table.add_column("leg", no_wrap=True)
    for title, key in columns.items():
        # A title may be wrapped, a number may not.
        widths = [len(_cell(key, row)) for row in figures.values()]
        table.add_column(title, justify="right", min_width=max(widths, default=0))
    for name in results:
        row = figures.get(name)
        cells = ["-"] if row is None else [_cell(key, row) for key in columns.values()]
        table.add_row(name, *cells)
    return table


def _cell(key: str, row: Mapping[str, float]) -> str:
    if key not in row:
        return ""
    value = row[key]
    return f"{value:,.0f}" if key.startswith("img") else f"{value:,.2f}"


def document(
    results: Results, environment: Environment, settings: Settings, interrupted: bool
) -> dict[str, Any]:
    """All figures of the legs, round by round, for the JSON file."""
    figures = summarize(results)
    legs = {
        name: {
            "skipped": result.skipped,
            "failed": result.failed,
            "copying_lanes": result.lanes and result.lanes[0],
            "lanes": result.lanes and result.lanes[1],
            "summary": figures.get(name),
            "rounds": [_round(one) for one in result.rounds],
        }
        for name, result in results.items()
    }
    return {
        "environment": dict(environment),
        "settings": asdict(settings),
        "interrupted": interrupted,
        "legs": legs,
    }


def _round(one: Round) -> dict[str, Any]:
    return {
        "seconds": one.seconds,
        "cpu_seconds": one.cpu_seconds,
        "samples": one.samples,
        "bytes": one.size_bytes,
        "waits_seconds": one.waits.tolist(),
    }


def plot(path: str, results: Results, environment: Environment) -> None:
    """Write a PNG: the speed of every leg with its spread, and its CPU time."""
    from matplotlib.figure import Figure

    figures = summarize(results)
    names = list(figures)[::-1]  # the first leg on top
    rows = [figures[name] for name in names]
    keys = ("img_per_s", "img_per_s_min", "img_per_s_max", "cpu_s_per_gb")
    speed, slowest, fastest, cost = (np.array([row[key] for row in rows]) for key in keys)
    picture = Figure(figsize=(10, 1.5 + 0.45 * len(names)), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    left.barh(names, speed, xerr=[speed - slowest, fastest - speed], capsize=3, color="tab:green")
    left.set_xlabel("images/s: median, slowest and fastest round")
    right.barh(names, cost, color="tab:gray")
    right.set_xlabel("CPU seconds per GB")
    title = "{cpu}, {cores} cores, {file_system}, page cache {page_cache}, DALI {dali}"
    picture.suptitle(title.format_map(environment), fontsize="medium")
    picture.savefig(path, format="png", dpi=120)
