"""`python -m dali_storage [doctor]`: reports backends, devices and features: works, reason, remedy.

With DATA, `data` reports how it would be read. With `--json` it prints one object:

    {"backends": [{"name": "block", "works": true, "reason": null, "remedy": null}, ...],
     "devices": [{"name": "/dev/sda", "kind": "SCSI disk", "backends": ["block", "xnvme-block"],
                  "works": false, "reason": "no permission to read it", "remedy": "..."}, ...],
     "dali": [{"name": "dynamic.readers.*", "since": "2.2", "works": true, ...}, ...],
     "families": [{"name": "coco", "works": true, ...}, ...],
     "processors": {"affinity": 12, "quota": 4, "used": 4},
     "memory": {"page_cache": 102000000000, "data_set": 61200000000, "buffer_bytes": 1073741824}}

`dali` has DALI itself and the features with a minimum version of DALI; an unsupported DALI is the
only entry. `families` are the parts of this package (docs/design.md), each with the first thing
that it lacks; without `--json`, only those that lack something. `remedy` and `quota`, the CPU quota
of this process's control group, are null if there is none. `memory` is in bytes, null if unknown:
the memory that the page cache may use, the largest data set that python-file reads through it by
default, and what a reader may read ahead and keep. The exit status is 0 if at least one backend
works, else 1.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from types import NoneType
from typing import Any, TypeAlias

from bmap_tools import console

from ..contract import registry
from ..contract.devices import DeviceStatus, devices_of, problem_of
from ..contract.errors import BackendUnavailable
from ..contract.families import COMMANDS, FAMILIES
from ..reading.buffers import buffer_bytes
from ..runtime import machine
from ..runtime.version import __version__
from . import data, index_samples

Verdict: TypeAlias = dict[str, Any]
"""An element of the lists that `--json` prints."""


FEATURES = {
    "readers.*, iterators, checkpoints, resume": (1, 53),
    "samples of different sizes without a copy; checkpoints as JSON": (2, 0),
    "shuffle_after_epoch with 64-bit random numbers": (2, 2),
    "dynamic.readers.*": (2, 2),
    "dynamic.readers.* with capture=True": (2, 3),
}
"""The first version of DALI with each feature; docs/dali-versions.md has the same table."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print rows, JSON, or how data would be read. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage",
        usage="%(prog)s [doctor] [-h] [--version] [--json]\n       %(prog)s [doctor] DATA...\n"
        "       %(prog)s COMMAND ... (COMMAND --help)",
        description="Show which storage backends and devices work on this machine,\n"
        "or how DATA would be read here, and why. Nothing is written.",
        epilog="commands:\n" + "".join(f"  {it:<9} {COMMANDS[it]}\n" for it in COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = "a directory, URL or index, or containers"
    parser.add_argument("data", nargs="*", metavar="DATA", help=what)
    parser.add_argument("--version", action="version", version=f"dali_storage {__version__}")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    words = sys.argv[1:] if arguments is None else arguments
    if words and (near := get_close_matches(words[0], COMMANDS, 1)) and _is_command(words[0]):
        parser.error(f"unknown command {words[0]!r}; did you mean {near[0]}?")
    given = parser.parse_args(words)
    if given.data and given.json:
        parser.error("--json is not for DATA; leave out one of them")
    if given.data[1:] and any(map(index_samples.is_root, given.data)):
        parser.error("give one directory or URL, or several containers")
    if len(given.data) == 1 and _is_command(given.data[0]):
        what = f"{given.data[0]!r} is neither a command nor a file"
        parser.error(f"{what}\ncommands: {', '.join(COMMANDS)}")
    if given.data:
        return data.main(given.data)
    backends, devices = examine()
    dali = examine_dali()
    parts = {"backends": backends, "devices": devices, "dali": dali, "families": families()}
    if given.json:
        limits = {"processors": _processors(), "memory": _memory()}
        with console.output():
            print(json.dumps(parts | limits, indent=2))
    else:
        parts["families"] = [it for it in parts["families"] if not it["works"]]
        for heading in filter(parts.get, parts):
            _print(heading, parts[heading])
        known = (memory := _memory())["page_cache"] is not None
        console.print_row("memory", _MEMORY.format_map(memory) if known else _UNKNOWN_MEMORY)
        counts = {name: count or "none" for name, count in _processors().items()}
        what = "{used} (affinity: {affinity}, CPU quota: {quota})"
        console.print_row("processors", what.format_map(counts))
    return 0 if any(backend["works"] for backend in backends) else 1


def _is_command(word: str) -> bool:
    """Whether a word is meant as a command, for it is neither a path nor a URL."""
    return "/" not in word and not os.path.lexists(word)


def examine() -> tuple[list[Verdict], list[Verdict]]:
    """Try all backends and their devices. A broken plug-in does not hide the others."""
    backends: list[Verdict] = []
    devices: dict[tuple[str, str, str], Verdict] = {}
    for name in registry.names():
        try:
            reader = registry.load(name)
            problem: Any = problem_of(reader)  # a plug-in may return anything
            statuses: list[Any] = devices_of(reader)
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
    for name, since in FEATURES.items():
        shown = ".".join(map(str, since))
        why = BackendUnavailable(f"found DALI {compat.VERSION}", f"install DALI {shown} or newer")
        problem = None if compat.has(since) else why
        verdicts.append({"name": name, "since": shown} | _outcome(problem))
    names = {"name": "source_info of samples", "since": "1.53"}
    return [*verdicts, names | _outcome(source_info.problem())]


def families() -> list[Verdict]:
    """Look for the modules and packages of each family."""
    found = ((it.name, next(it.missing(), None)) for it in FAMILIES.values())
    return [{"name": name} | _outcome(problem) for name, problem in found]


_MEMORY = (
    "{page_cache:,} bytes for the page cache; python-file reads data sets larger than "
    "{data_set:,} bytes partly around it; buffer_bytes of a reader is {buffer_bytes:,}"
)
_UNKNOWN_MEMORY = "unknown; python-file reads all data sets through the page cache"


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
        "data_set": None if memory is None else machine.cacheable(memory),
        "buffer_bytes": buffer_bytes(memory).value,
    }


def _outcome(problem: BackendUnavailable | None) -> Verdict:
    if problem is None:
        return {"works": True, "reason": None, "remedy": None}
    return {"works": False, "reason": str(problem.reason), "remedy": str(problem.remedy) or None}


def _print(heading: str, verdicts: list[Verdict]) -> None:
    """Print a row for each verdict; names with the same problem share one."""
    rows: dict[str, list[str]] = {}
    for it in verdicts:
        since = it.get("since") and f"since DALI {it['since']}"
        about = ", ".join(filter(None, (it.get("kind"), since, *it.get("backends", ()))))
        name = it["name"] + (f" ({about})" if about else "")
        why = "; ".join(filter(None, (it["reason"], it["remedy"])))
        rows.setdefault(why or name, []).append(name)
    console.print_result(f"{heading}:")
    for why, names in rows.items():
        works = why == names[0]
        shown = why if works else f"{', '.join(names)}: {why}"
        console.print_row("works" if works else "does not work", shown)
    print()
