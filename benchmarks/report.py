"""The results as a table, a JSON file and a picture."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from .measure import Results, summarize
from .pipelines import describe_use
from .workload import BadInputError, Settings

Environment = Mapping[str, Any]
_PLAIN_WIDTH = 130


@dataclass(frozen=True, slots=True)
class Kind:
    """What is reported of a comparison.

    Attributes:
        use: what was done with the samples.
        columns: the figures in the table, by their titles.
        ratios: what the columns that compare are.
        cost: the title of the chart of CPU times, and its figure.
    """

    use: str
    columns: Mapping[str, str]
    ratios: str
    cost: tuple[str, str]


_SPEEDS = {"img/s": "img_per_s", "min": "img_per_s_min", "max": "img_per_s_max"}


def readers(settings: Settings, baselines: str) -> Kind:
    """Legs that read, and hardly look at what they read; they are compared with `baselines`."""
    return Kind(
        use=describe_use(settings),
        columns=_SPEEDS
        | {
            "GB/s": "gb_per_s",
            "CPU s/GB": "cpu_s_per_gb",
            "wait p50 ms": "wait_p50_ms",
            "p99 ms": "wait_p99_ms",
            "x dali": "ratio",
        },
        ratios=f"x dali: compared with {baselines} in the same round",
        cost=("CPU seconds per GB", "cpu_s_per_gb"),
    )


def loaders(use: str, peers: Iterable[str]) -> Kind:
    """Loaders, compared with the legs `peers`."""
    return Kind(
        use=use,
        columns=_SPEEDS
        | {
            "CPU µs/img": "cpu_us_per_img",
            "wait": "wait_share",
            "of it storage": "storage_share",
            "x speed": "ratio",
            "x CPU": "cpu_ratio",
        },
        ratios="wait: share of the time in next(); x speed, x CPU: how much faster and cheaper "
        f"than the better of {' and '.join(peers)} in the same round",
        cost=("CPU microseconds per image", "cpu_us_per_img"),
    )


def check_outputs(json_path: str | None, plot_path: str | None) -> None:
    """Check that the results can be written: to these files, and with matplotlib."""
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


def publish(
    results: Results,
    environment: Environment,
    settings: Settings,
    kind: Kind,
    *,
    interrupted: bool,
    json_path: str | None,
    plot_path: str | None,
    more: Mapping[str, Any],
) -> None:
    """Print the table; write the figures, and `more` of them, to the JSON file; draw the chart."""
    if interrupted:
        print("interrupted: the figures are of the rounds until then", file=sys.stderr)
    show_table(results, environment, settings, kind)
    try:
        if json_path is not None:
            document = _document(results, environment, settings, kind) | dict(more)
            with open(json_path, "w", encoding="utf-8") as file:
                file.write(json.dumps(document | {"interrupted": interrupted}, indent=2) + "\n")
        if plot_path is not None:
            _plot(plot_path, results, environment, kind)
    except OSError as error:
        raise BadInputError(f"cannot write the results: {error}") from error


def show_table(results: Results, environment: Environment, settings: Settings, kind: Kind) -> None:
    """Print the table on standard output."""
    print(_describe(environment, settings, kind.use))
    if lanes := [f"{name} {it.lanes[0]}/{it.lanes[1]}" for name, it in results.items() if it.lanes]:
        print(f"lanes, copying at once/all: {', '.join(lanes)}")
    buffers = [f"{name} {it.memory}" for name, it in results.items() if it.memory]
    if buffers and settings.device_id is not None:
        print(f"buffers: {', '.join(buffers)}; pinned is page-locked")
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    console.print(_table(results, kind))
    # Not in the table: a reason is a sentence, too wide for a column.
    for result in results.values():
        if not result.runs:
            state = "not run" if result.failed is None else "failed"
            print(f"{result.name}: {state}: {result.skipped or result.failed}")
    if any("ratio" in figures for figures in summarize(results).values()):
        print(f"img/s, min, max: median, slowest and fastest round; {kind.ratios}")


def _describe(environment: Environment, settings: Settings, use: str) -> str:
    machine = (
        "{cpu}, {cores} cores, {gib:.0f} GiB, Linux {kernel}, {file_system}, "
        "page cache {page_cache}\nPython {python}, DALI {dali}, numpy {numpy}\n"
    )
    batches = "one epoch in batches" if settings.batches is None else f"{settings.batches} batches"
    return (
        machine.format(**environment, gib=environment["memory_bytes"] / 2**30)
        + f"rounds: {settings.rounds}, of {batches} of {settings.batch_size}, "
        f"{settings.threads} threads, "
        f"{use}, "
        f"{'in list order' if settings.seed is None else f'shuffled with seed {settings.seed}'}"
    )


def _table(results: Results, kind: Kind) -> Table:
    figures = summarize(results)
    keys = {key for row in figures.values() for key in row} or {"img_per_s"}
    columns = {title: key for title, key in kind.columns.items() if key in keys}
    cells = {
        name: [_cell(key, row.get(key)) for key in columns.values()]
        for name, row in figures.items()
    }
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))  # fits 80 columns
    table.add_column("leg", no_wrap=True)
    for column, title in enumerate(columns):
        # A title may be wrapped, a number may not.
        width = max((len(row[column]) for row in cells.values()), default=0)
        table.add_column(title, justify="right", min_width=width)
    for name in results:
        table.add_row(name, *cells.get(name, ["-"]))
    return table


def _cell(key: str, figure: float | None) -> str:
    if figure is None:
        return "-"
    if key.endswith("_share"):
        return f"{figure:.0%}"
    return f"{figure:,.{0 if key.startswith(('img', 'cpu_us')) else 2}f}"


def _document(
    results: Results, environment: Environment, settings: Settings, kind: Kind
) -> dict[str, Any]:
    """All figures of the legs, round by round, for the JSON file."""
    figures = summarize(results)
    legs = {
        name: {
            "skipped": result.skipped,
            "failed": result.failed,
            "copying_lanes": result.lanes and result.lanes[0],
            "lanes": result.lanes and result.lanes[1],
            "memory": result.memory,
            "summary": figures.get(name),
            "rounds": [
                one.as_json() | {"samples": one.samples, "waits_seconds": one.waits.tolist()}
                for one in result.rounds
            ],
        }
        for name, result in results.items()
    }
    return {
        "environment": dict(environment),
        "settings": asdict(settings),
        "legs": legs,
    }


def _plot(path: str, results: Results, environment: Environment, kind: Kind) -> None:
    """Write a PNG: the speed of every leg with its spread, and its CPU time."""
    from matplotlib.figure import Figure

    figures, (cost_title, cost_key) = summarize(results), kind.cost
    names = list(figures)[::-1]  # the first leg on top
    rows = [figures[name] for name in names]
    keys = ("img_per_s", "img_per_s_min", "img_per_s_max", cost_key)
    speed, slowest, fastest, cost = (np.array([row[key] for row in rows]) for key in keys)
    picture = Figure(figsize=(10, 1.5 + 0.45 * len(names)), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    left.barh(names, speed, xerr=[speed - slowest, fastest - speed], capsize=3, color="tab:green")
    left.set_xlabel("images/s: median, slowest and fastest round")
    right.barh(names, cost, color="tab:gray")
    right.set_xlabel(cost_title)
    title = "{cpu}, {cores} cores, {file_system}, page cache {page_cache}, DALI {dali}"
    picture.suptitle(title.format_map(environment), fontsize="medium")
    picture.savefig(path, format="png", dpi=120)
