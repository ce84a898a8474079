"""`python -m dali_storage`: reports backends, devices and features: works, reason, remedy.

With `--json` it prints one object:

    {"backends": [{"name": "block", "works": true, "reason": null, "remedy": null}, ...],
     "devices": [{"name": "/dev/sda", "kind": "SCSI disk", "backends": ["block", "xnvme-block"],
                  "works": false, "reason": "no permission to read it", "remedy": "..."}, ...],
     "dali": [{"name": "dynamic.readers.*", "since": "2.2", "works": true, ...}, ...],
     "processors": {"affinity": 12, "quota": 4, "used": 4},
     "memory": {"page_cache": 102000000000, "data_set": 61200000000, "buffer_bytes": 1073741824}}

`dali` has DALI itself and the features with a minimum version of DALI; an unsupported DALI is the
only entry. `remedy` and `quota`, the CPU quota of this process's control group, are null if there
is none. `memory` is in bytes, null if unknown: the memory that the page cache may use, the largest
data set that python-file reads through it by default, and what a reader may read ahead and keep.
The exit status is 0 if at least one backend works, else 1.
"""

import argparse
import importlib.util
import json
import math
import os
import shutil
import textwrap
from collections.abc import Sequence
from types import NoneType
from typing import Any, TypeAlias

from ..contract import registry
from ..contract.devices import DeviceStatus
from ..contract.errors import BackendUnavailable
from ..runtime import machine

Verdict: TypeAlias = dict[str, Any]
"""An element of the lists that `--json` prints."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print two tables, or JSON. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage",
        description="Show which storage backends and devices work on this machine. Devices are "
        "opened read-only for a moment; nothing is written.",
        epilog="python -m dali_storage index --help: make index files of containers, or one index "
        "of a directory or URL. python -m dali_storage check --help: list bad samples.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    as_json = parser.parse_args(arguments).json
    backends, devices = examine()
    dali = examine_dali()
    if as_json:
        parts = {"backends": backends, "devices": devices, "dali": dali}
        limits = {"processors": _processors(), "memory": _memory()}
        print(json.dumps(parts | limits, indent=2))
    else:
        _print_table(["backend", "works", "why not", "what to do"], _rows(backends))
        if devices:
            headings = ["device", "kind", "backends", "works", "why not", "what to do"]
            _print_table(headings, _rows(devices))
        _print_table(["with DALI", "since", "works", "why not", "what to do"], _rows(dali))
        known = (memory := _memory())["page_cache"] is not None
        print(_MEMORY.format_map(memory) if known else _UNKNOWN_MEMORY)
        print(
            "processors: {used} (affinity: {affinity}, CPU quota: {quota})".format_map(
                {name: count or "none" for name, count in _processors().items()}
            )
        )
    return 0 if any(backend["works"] for backend in backends) else 1


def examine() -> tuple[list[Verdict], list[Verdict]]:
    """Try all backends and their devices. A broken plug-in does not hide the others."""
    backends: list[Verdict] = []
    devices: dict[tuple[str, str, str], Verdict] = {}
    for name in registry.names():
        try:
            reader: Any = registry.load(name)  # a plug-in may return anything
            problem, statuses = reader.unavailable(), [*reader.devices()]
            if not isinstance(problem, (BackendUnavailable, NoneType)):
                what = "unavailable() must return BackendUnavailable or None"
                raise TypeError(f"{what}, not {problem!r}")
            if wrong := [each for each in statuses if not isinstance(each, DeviceStatus)]:
                raise TypeError(f"devices() must return DeviceStatus objects, not {wrong[0]!r}")
        except BackendUnavailable as error:
            problem, statuses = error, []
        except (Exception, SystemExit) as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            what = f"broken plug-in: {type(error).__name__}: {error}{notes}"
            problem, statuses = BackendUnavailable(what, "repair or uninstall the plug-in"), []
        backends.append({"name": name} | _outcome(problem))
        for each in statuses:
            verdict = {"name": each.name, "kind": each.kind, "backends": []}
            verdict |= _outcome(each.problem)
            key = each.name, each.kind, str(each.problem)
            devices.setdefault(key, verdict)["backends"].append(name)
    return backends, [*devices.values()]


def examine_dali() -> list[Verdict]:
    """Try the installed DALI: its features, or the reason why this DALI is not supported."""
    try:
        from ..dali import compat, source_info  # imports DALI, which may be missing
    except Exception as error:
        return [{"name": "DALI", "since": ""} | _outcome(BackendUnavailable(str(error)))]
    newer = "" if compat.TESTED else ", newer than tested"
    verdicts = [{"name": f"DALI {compat.VERSION}{newer}", "since": ""} | _outcome(None)]
    for name, since in compat.FEATURES.items():
        shown = ".".join(map(str, since))
        why = BackendUnavailable(f"found DALI {compat.VERSION}", f"install DALI {shown} or newer")
        problem = None if compat.has(since) else why
        verdicts.append({"name": name, "since": shown} | _outcome(problem))
    names = {"name": "source_info of samples", "since": "1.53"}
    return [*verdicts, names | _outcome(source_info.problem())]


_MEMORY = (
    "memory: {page_cache:,} bytes for the page cache; python-file reads data sets larger than "
    "{data_set:,} bytes partly around it; buffer_bytes of a reader is {buffer_bytes:,}"
)
_UNKNOWN_MEMORY = "memory: unknown; python-file reads data sets of any size through the page cache"


def _processors() -> dict[str, int | None]:
    """Return the number of processors this process may use, and the limits behind the number."""
    quota = machine.quota()
    return {
        "affinity": len(os.sched_getaffinity(0)),
        "quota": None if math.isinf(quota) else int(quota),
        "used": machine.processors(),
    }


def _memory() -> dict[str, int | None]:
    """Return the bytes for the page cache, of the largest data set read through it, of buffers."""
    memory = machine.cache_memory()
    return {
        "page_cache": memory,
        "data_set": None if memory is None else int(machine.KEPT * memory),
        "buffer_bytes": machine.buffer_bytes(memory).value,
    }


def _outcome(problem: BackendUnavailable | None) -> Verdict:
    if problem is None:
        return {"works": True, "reason": None, "remedy": None}
    return {"works": False, "reason": str(problem.reason), "remedy": str(problem.remedy) or None}


def _rows(verdicts: list[Verdict]) -> list[list[str]]:
    """Return the cells of a table; names with the same problem share a row."""
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

    table = Table(*headings, box=SIMPLE_HEAD, pad_edge=False)
    styles = {"yes": "green", "no": "red"}
    for row in rows:
        table.add_row(*(Text(cell, styles.get(cell, ""), overflow="fold") for cell in row))
    Console().print(table)


def _print_plain(headings: list[str], rows: list[list[str]]) -> None:
    """Print a table without rich: a line per name, and the last two columns in lines below."""
    lines = [(name, *cells) for names, *cells in [headings, *rows] for name in names.split(", ")]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    wrapper = textwrap.TextWrapper(
        shutil.get_terminal_size().columns,
        initial_indent="    ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    for names, *cells, why_not, what_to_do in [[*headings[:-2], "", ""], *rows]:
        for name in names.split(", "):
            print("  ".join(map(str.ljust, [name, *cells], widths)).rstrip())
        for heading, text in zip(headings[-2:], (why_not, what_to_do), strict=True):
            if text:
                print(wrapper.fill(f"{heading}: {text}"))
    print()
