"""`python -m dali_storage prove ROOT`: compares our reader with DALI's, on this machine.

Of MDS, litData and Parquet, which DALI does not read: with the package of the format.

Exit status: 0 if all is equal, 1 if anything differs, 2 if there is no result, 130 after Ctrl-C.
With `--json` it prints one object. Without a result, `equal` is null, and `error` says why:

    {"root": "/data/train", "reader": "file", "backend": "block", "options": {"bmap": "x.json"},
     "seed": 0, "dali_storage": "1.0", "dali": "2.4.0", "other": "DALI 2.4.0",
     "python": "3.12.3", "equal": false, "error": null,
     "checks": [{"name": "names, labels and bytes", "samples": 5000, "compared": "...",
                 "differences": 1, "first": ["sample 7: label 3 instead of 2"], ...}, ...]}
"""

import argparse
import json
import math
import os
import platform
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from typing import Any

from bmap_tools import console

from ..proof.result import Check
from ..runtime.version import __version__
from ..samples.locations import location
from . import data, index_samples, shards

_HEADER = "{root!r} by readers.{reader}, {backend}, options {options}, and by {other}:"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, or JSON. Returns the exit status."""
    given = _parse(arguments)
    checks: list[Check] = []
    failed, error = 0, None
    about = {"root": None, "reader": None, "backend": given.backend, "options": dict(given.option)}
    about |= {"seed": given.seed, "dali_storage": __version__, "dali": None}
    about |= {"other": None, "python": platform.python_version()}
    try:
        for check in _compare(given, about):
            if not (checks or given.json):
                console.print_result(_HEADER.format_map(about))
            checks.append(check)
            if not given.json:
                _print_check(check)
    except KeyboardInterrupt:
        failed, error = 130, "interrupted"
    except Exception as reason:
        failed, error = 2, str(reason) or "no message"
        if not isinstance(reason, (ImportError, OSError, RuntimeError, TypeError, ValueError)):
            error = f"{type(reason).__name__}: {error}"
    equal = None if failed else not any(check.differences for check in checks)
    if given.json:
        about |= {"equal": equal, "error": error, "checks": [*map(asdict, checks)]}
        with console.output():
            print(json.dumps(about, indent=2))
    elif failed:
        print(f"error: {error}", file=sys.stderr)
    else:
        skipped = f"; {n} checks not made" if (n := sum(not it.samples for it in checks)) else ""
        verdict = "all that was compared is equal" if equal else "NOT EQUAL"
        console.print_result(f"verdict: {verdict}{skipped}")
    return failed or int(not equal)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m dali_storage prove",
        description="Read a data set by dali_storage.readers and by fn.readers, and "
        "compare names, labels, bytes, the order of two epochs with shuffles and shards, "
        "checkpoints, and epochs on several ranks; of tars and .npy files, the outputs in each "
        "order; of MDS, litData and Parquet, the bytes that their own packages read. Nothing is "
        "written.",
    )
    add = parser.add_argument
    add("root", nargs="+", metavar="ROOT", help="a directory or a URL, as for file_root; or tars")
    add("--backend", metavar="NAME", help="the backend to compare; default: as in the readers")
    option = "an option of the backend; may be repeated; VALUE is JSON or text"
    pair = index_samples.key_and_value
    add("--option", type=pair, action="append", default=[], metavar="KEY=VALUE", help=option)
    most = "compare at most N random samples with their files, and their order"
    add("--samples", type=int, default=10_000, metavar="N", help=most)
    add("--seed", type=int, default=0, metavar="N", help="choose other random samples")
    limit = "limit the time of all checks together to about N seconds; default: 60"
    add("--seconds", type=float, default=60.0, metavar="N", help=limit)
    add("--json", action="store_true", help="print JSON instead of a table")
    index_samples.add_filters(parser.add_argument_group("filters", "as in readers.file"))
    given = parser.parse_args(arguments)
    if given.samples < 1:
        parser.error(f"--samples must be at least 1, not {given.samples}")
    if not 0 < given.seconds < math.inf:
        parser.error(f"--seconds must be a number above 0, not {given.seconds}")
    keys = [key for key, _ in given.option]
    if len(keys) > len({*keys}):
        parser.error(f"--option {max(keys, key=keys.count)} is given more than once")
    return given


def _compare(given: argparse.Namespace, about: dict[str, Any]) -> Iterator[Check]:
    """Run all checks, and complete the report `about` them."""
    import nvidia.dali  # not before the arguments have been parsed, for it is slow

    from ..proof import packages
    from ..proof.checks import compare
    from ..proof.subject import Subject

    paths = [location("ROOT", it) for it in given.root]  # refuses a password before it is shown
    root = os.path.commonpath(given.root) if given.root[1:] else given.root[0]
    about |= {"root": root, "dali": (version := nvidia.dali.__version__)}
    arguments = {name: getattr(given, name) for name in index_samples.FILTERS}
    arguments = {name: value for name, value in arguments.items() if value}
    call, files = ("file", []) if arguments else data.call_of(paths)
    package = None
    if call == "webdataset":
        arguments = {"paths": files, "ext": _extensions(files[0])}
    elif call == "numpy":
        arguments = {"file_root": root}
    elif call in packages.PACKAGES:
        package = packages.find(call, root, files)
        arguments = package.arguments
    elif call != "file":
        raise ValueError(f"prove does not compare readers.{call}: see docs/prove.md for a program")
    options = dict(given.option)
    subject = Subject(root, given.backend, options, arguments, given.seconds, call, files)
    about |= {"backend": subject.backend, "reader": call}
    about["other"] = package.name if package else f"DALI {version}"
    hashed = [*_hashed(root, given.seconds / 4)] if call == "mds" else []
    if package and package.total is None and not hashed:
        raise ValueError(f"{root!r} cannot be compared by {package.name}: there are none")
    yield from hashed
    yield from compare(subject, given.samples, given.seed, package)


def _hashed(root: str, seconds: float) -> Iterator[Check]:
    """Compare the shards of MDS with the hashes in their index, if it has any."""
    check, began, known = Check("hashes of shards"), time.monotonic(), {}
    with suppress(ValueError):
        known = shards.hashes(found) if (found := shards.find(root)) else {}
    for path, its in known.items():
        if why := shards.differing(path, its):
            check.differs(f"{path}: {why}")
        check.samples += 1
        check.seconds = round(time.monotonic() - began, 3)
        if check.seconds >= seconds:
            break
    check.compared = f"{check.samples:,} of {len(known):,} shards"
    yield from [check] if known else []


def _extensions(tar: str) -> list[str]:
    """The extensions of the first files in a tar."""
    with tarfile.open(tar) as opened:
        names = [it.name.rpartition("/")[2] for it in islice(opened, 1000) if it.isfile()]
    return [*dict.fromkeys(it.partition(".")[2] for it in names if "." in it)][:16]


def _print_check(check: Check) -> None:
    verdict = "equal" if check.samples else "not compared"
    verdict = f"{check.differences:,} DIFFER" if check.differences else verdict
    lines = [f"{check.name:<35} {check.compared:<48} {check.seconds:5.1f} s  {verdict}"]
    lines += [f"    {line}" for line in check.first]
    if (more := check.differences - len(check.first)) > 0:
        lines.append(f"    and {more:,} more")
    for line in lines:
        console.print_result(line)
