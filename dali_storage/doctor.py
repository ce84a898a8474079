"""`python -m dali_storage`: which backends and devices work on this machine, why not, what to do.

With `--json` it prints one object:

    {"backends": [{"name": "block", "works": true, "reason": null, "remedy": null}, ...],
     "devices": [{"name": "/dev/sda", "kind": "SCSI disk", "backends": ["block", "xnvme-block"],
                  "works": false, "reason": "no permission to read it", "remedy": "..."}, ...]}

`remedy` is null if there is none. The exit status is 0 if at least one backend works, else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

from . import registry
from .errors import BackendUnavailable
from .reader import Reader

Verdict: TypeAlias = dict[str, Any]
"""An element of the lists that `--json` prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print two tables, or JSON. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage",
        description="Show which storage backends and devices work on this machine. Devices are "
        "opened read-only for a moment; nothing is written.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    as_json = parser.parse_args(arguments).json
    backends, devices = examine()
    if as_json:
        print(json.dumps({"backends": backends, "devices": devices}, indent=2))
    else:
        _print_table(["backend", "works", "why not", "what to do"], _rows(backends))
        if devices:
            print()
            headings = ["device", "kind", "read by", "works", "why not", "what to do"]
            _print_table(headings, _rows(devices))
    return 0 if any(backend["works"] for backend in backends) else 1


def examine() -> tuple[list[Verdict], list[Verdict]]:
    """Try all backends, and the devices they know. A broken plug-in does not hide the others."""
    backends: list[Verdict] = []
    devices: dict[tuple[str, str], Verdict] = {}
    for name in registry.names():
        statuses = []
        try:
            reader = registry.load(name)
            problem = _problem(reader)
            statuses = [*reader.devices()]
        except BackendUnavailable as error:
            problem = error
        except (Exception, SystemExit) as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            what = f"broken plug-in: {type(error).__name__}: {error}{notes}"
            problem = BackendUnavailable(what, "repair or uninstall the plug-in")
        backends.append({"name": name} | _outcome(problem))
        for each in statuses:
            verdict = {"name": each.name, "kind": each.kind, "backends": []}
            verdict |= _outcome(each.problem)
            devices.setdefault((each.name, str(each.problem)), verdict)["backends"].append(name)
    return backends, [*devices.values()]


def _problem(reader: type[Reader]) -> BackendUnavailable | None:
    problem: object = reader.unavailable()
    if problem is None or isinstance(problem, BackendUnavailable):
        return problem
    raise TypeError(f"unavailable() must return BackendUnavailable or None, not {problem!r}")


def _outcome(problem: BackendUnavailable | None) -> Verdict:
    if problem is None:
        return {"works": True, "reason": None, "remedy": None}
    return {"works": False, "reason": problem.reason, "remedy": problem.remedy or None}


def _rows(verdicts: Iterable[Verdict]) -> list[list[str]]:
    """The cells of a table; all that have the same problem share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for verdict in verdicts:
        cells = [_cell(value) for key, value in verdict.items() if key != "name"]
        name = verdict["name"]
        rows.setdefault((*cells, name if verdict["works"] else ""), []).append(name)
    return [[", ".join(names), *cells] for (*cells, _), names in rows.items()]


def _cell(value: bool | str | list[str] | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else value or ""


def _print_table(headings: list[str], rows: list[list[str]]) -> None:
    if importlib.util.find_spec("rich") is None:
        _print_plain(headings, rows)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    styles = {"yes": "green", "no": "red"}
    for row in rows:
        table.add_row(*(Text(cell, styles.get(cell, "")) for cell in row))
    Console().print(table)


def _print_plain(headings: list[str], rows: list[list[str]]) -> None:
    """The same without rich: the last two columns share what the others leave of the line."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    rest = shutil.get_terminal_size().columns - sum(widths[:-2]) - 2 * (len(widths) - 1)
    widths[-2:] = (min(width, max(rest // 2, 24)) for width in widths[-2:])
    wrapper = textwrap.TextWrapper(break_long_words=False, break_on_hyphens=False)
    for row in [headings, *rows]:
        columns = []
        for wrapper.width, cell in zip(widths, row, strict=True):
            columns.append(wrapper.wrap(cell))
        for line in zip_longest(*columns, fillvalue=""):
            print("  ".join(map(str.ljust, line, widths)).rstrip())
