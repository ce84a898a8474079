"""`python -m dali_storage`: which backends and devices work on this machine, why not, what to do.

With `--json` it prints one object:

    {"backends": [{"name": "block", "works": true, "reason": null, "remedy": null}, ...],
     "devices": [{"name": "/dev/sda", "works": false, "reason": "no permission to read it",
                  "remedy": "...", "kind": "SCSI disk", "backends": ["block", "xnvme-block"]}, ...]}

`remedy` is null if there is none. The exit status is 0 if at least one backend works, else 1.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

from . import registry
from .errors import BackendUnavailable
from .reader import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether a backend works."""

    name: str
    works: bool
    reason: str | None
    remedy: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceVerdict(Verdict):
    """Whether a device works, and the backends that could read it."""

    kind: str
    backends: list[str] = field(default_factory=list)


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
        report = {"backends": [*map(asdict, backends)], "devices": [*map(asdict, devices)]}
        print(json.dumps(report, indent=2))
    else:
        rows = _merged(_cells(backend) for backend in backends)
        _print_table(["backend", "works", "why not", "what to do"], rows)
        if devices:
            print()
            rows = _merged(_cells(each, each.kind, ", ".join(each.backends)) for each in devices)
            _print_table(["device", "kind", "read by", "works", "why not", "what to do"], rows)
    return 0 if any(backend.works for backend in backends) else 1


def examine() -> tuple[list[Verdict], list[DeviceVerdict]]:
    """Try all backends, and the devices they know. A broken plug-in does not hide the others."""
    backends: list[Verdict] = []
    devices: dict[tuple[str, str], DeviceVerdict] = {}
    for name in registry.names():
        try:
            reader = registry.load(name)
            problem = _problem(reader)
            statuses = [*reader.devices()]
        except BackendUnavailable as error:
            problem, statuses = error, []
        except (Exception, SystemExit) as error:
            problem, statuses = _as_problem(error), []
        backends.append(Verdict(name=name, **_outcome(problem)))
        for status in statuses:
            verdict = DeviceVerdict(name=status.name, kind=status.kind, **_outcome(status.problem))
            devices.setdefault((status.name, str(status.problem)), verdict).backends.append(name)
    return backends, [*devices.values()]


def _problem(reader: type[Reader]) -> BackendUnavailable | None:
    problem: object = reader.unavailable()
    if problem is None or isinstance(problem, BackendUnavailable):
        return problem
    what = "BackendUnavailable or None"
    raise TypeError(f"{reader.__qualname__}.unavailable() must return {what}, not {problem!r}")


def _as_problem(error: BaseException) -> BackendUnavailable:
    """What a plug-in raised, instead of a class or an answer."""
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return BackendUnavailable(
        f"broken plug-in: {type(error).__name__}: {error}{notes}", "repair or uninstall the plug-in"
    )


def _outcome(problem: BackendUnavailable | None) -> dict[str, Any]:
    if problem is None:
        return {"works": True, "reason": None, "remedy": None}
    return {"works": False, "reason": problem.reason, "remedy": problem.remedy or None}


def _cells(verdict: Verdict, *between: str) -> list[str]:
    works = "yes" if verdict.works else "no"
    return [verdict.name, *between, works, verdict.reason or "", verdict.remedy or ""]


def _merged(rows: Iterable[list[str]]) -> list[list[str]]:
    """The rows, with one row for all that have the same problem; their first cells are joined."""
    merged: dict[tuple[str, ...], list[str]] = {}
    for name, *cells in rows:
        key = (*cells, "" if any(cells[-2:]) else name)
        merged.setdefault(key, []).append(name)
    return [[", ".join(names), *key[:-1]] for key, names in merged.items()]


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
    for row in [headings, *rows]:
        wrapped = (
            textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
            for cell, width in zip(row, widths, strict=True)
        )
        for line in zip_longest(*wrapped, fillvalue=""):
            cells = map(str.ljust, line, widths)
            print("  ".join(cells).rstrip())
