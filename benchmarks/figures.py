"""Runs the benchmarks of docs/benchmarks.md, and writes their tables there: make figures.

    python -m benchmarks.figures                                  # all of them; takes an hour
    python -m benchmarks.figures files-hot --options="--rounds 1 --batches 20"

A table lies between `<!-- figures: NAME -->` and `<!-- end of figures -->`. A benchmark that fails,
for example because the page cache can only be dropped by root, leaves its table as it was, and the
exit status is 1.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import dataset, s3
from .report import cell

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
_FILES = "dali,dali-nommap,dali-io-file,python-file,memory,naive"
_DIRECT = "python-file-direct,xnvme-file,block,xnvme-block"
_TARS = "dali-webdataset,dali-webdataset-nommap,webdataset,webdataset-samples"
_RECORDS = "dali-tfrecord,dali-tfrecord-nommap,tfrecord,tfrecord-samples"
_HOT = "webdataset-read,webdataset-memory,tfrecord-read,tfrecord-memory"
_COLD = "webdataset-direct,webdataset-direct-samples,tfrecord-direct,tfrecord-direct-samples"
_OBJECTS = "dali-s3-16,dali-s3-32,object-store,python-file"
RUNS = {
    "gains": "compare --in twice,objects-30,cold,image,hot,tars",
    "files-cold": f"compare --cold --seed 1 --readers {_FILES},{_DIRECT}",
    "files-hot": f"compare --seed 1 --readers {_FILES}",
    "containers-cold": f"containers --cold --seed 1 --readers {_TARS},{_RECORDS},{_COLD}",
    "containers-hot": f"containers --seed 1 --readers {_TARS},{_RECORDS},{_HOT}",
    "objects": f"objects --url s3://files/train --seed 1 --readers {_OBJECTS}",
}
"""The options of benchmark.py, by the names of the tables."""
_GAINS = {
    "twice": (
        "data of twice the memory",
        {"python-file": "nothing", "python-file-direct": "`direct`"},
    ),
    "objects-30": ("S3, 30 ms to the first byte", {"object-store": "nothing"}),
    "cold": ("cold, a real disk", {"python-file": "nothing", "python-file-direct": "`direct`"}),
    "image": (
        "cold, ext4 in memory",
        {"python-file": "nothing", "python-file-direct": "`direct`", "block": "`block`"},
    ),
    "hot": ("hot, files", {"python-file": "nothing", "decoded": "nothing, decoded on the CPU"}),
    "tars": ("hot, tars", {"webdataset": "nothing", "webdataset-read": '`io="read"`'}),
}
"""The situations of the first table, and their readers by what a user writes for them."""
_COLUMNS = {"images/s": "img_per_s", "CPU s/GB": "cpu_s_per_gb"}
_COLUMNS |= {"x dali": "ratio", "quartiles": "ratio_q1", "CPU x": "cpu_ratio"}


def main(words: Sequence[str] | None = None) -> int:
    """Run benchmarks, and replace their tables; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--data", default="figures", help="where the data are made (figures)")
    parser.add_argument("--images", type=int, default=10_000, help="so many (10,000)")
    parser.add_argument("--options", default="", help="more options of benchmark.py")
    given = parser.parse_args(words)
    if unknown := {*given.names} - {*RUNS}:
        parser.error(f"unknown figures: {', '.join(sorted(unknown))}")
    failed = []
    for name in given.names or RUNS:
        command = f"{RUNS[name]} {given.options}".split()
        measured = _measure(command, _data(given.data, given.images))
        if measured is None:
            failed.append(name)
        else:
            made = (gains if name == "gains" else table)(measured, command)
            text = replaced(PAGE.read_text(encoding="utf-8"), name, made)
            PAGE.write_text(text, encoding="utf-8")
    if failed:
        print(f"figures: as they were: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def _start(name: str) -> str:
    return f"<!-- figures: {name} -->\n"


def replaced(page: str, name: str, table: str) -> str:
    """The page with another table of this name."""
    start, end = _start(name), "<!-- end of figures -->"
    parts = re.split(f"({re.escape(start)}).*?({end})", page, flags=re.DOTALL)
    if len(parts) != 4:
        raise ValueError(f"the page has no line {start.strip()}, or several")
    return "".join([*parts[:2], table, *parts[2:]])


def commit() -> str:
    """The version of the checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def gains(measured: Mapping[str, Any], command: Sequence[str]) -> str:
    """The table of all situations."""
    found = measured["situations"]
    rows = [["situation", "option", "x", "quartiles", "CPU x"]]
    for name, (title, readers) in _GAINS.items():
        for reader, option in readers.items():
            if (
                figures := found.get(name, {"readers": {}})["readers"]
                .get(reader, {})
                .get("summary")
            ):
                keys = ("ratio", "ratio_q1", "cpu_ratio")
                rows.append([title, option, *(_shown(key, figures) for key in keys)])
    return _head(next(iter(found.values())), command) + _rows(rows)


def table(measured: Mapping[str, Any], command: Sequence[str]) -> str:
    """The table of a benchmark, below its date, machine and command."""
    legs = {name: leg["summary"] for name, leg in measured["readers"].items() if leg["summary"]}
    rows = [["reader", *_COLUMNS]]
    for name, figures in legs.items():
        rows.append([f"`{name}`", *(_shown(key, figures) for key in _COLUMNS.values())])
    return _head(measured, command) + _rows(rows)


def _head(measured: Mapping[str, Any], command: Sequence[str]) -> str:
    machine, settings = measured["environment"], measured["settings"]
    return (
        "{date}, {commit}. {cpu}, {cores} cores, of which other programs took {others:.0%}, Linux "
        "{kernel}, {file_system}; Python {python}, DALI {dali}. `python benchmark.py {command}`: "
        "{rounds} rounds, batches of {batch_size}, {threads} threads. Read, not decoded.\n\n"
    ).format(
        **machine | settings | {"kernel": machine["kernel"].partition("-")[0]},
        date=machine["time"][:10],
        commit=commit(),
        others=max(machine["busy"].values()),
        command=" ".join(command),
    )


def _rows(rows: Sequence[Sequence[str]]) -> str:
    first, *others = (f"| {' | '.join(row)} |\n" for row in rows)
    return first + "|---" * len(rows[0]) + "|\n" + "".join(others)


def _shown(key: str, figures: Mapping[str, float | None]) -> str:
    text = cell(key, figures.get(key))
    if key == "ratio_q1" and key in figures:
        text += f" to {cell(key, figures['ratio_q3'])}"
    return text


def _data(directory: str, images: int) -> str:
    """The directory with the data, which are made where they are missing."""
    where = f"{directory}/files"
    if not Path(where).exists():
        made = [where, "--images", str(images), "--shards", "10"]
        subprocess.run([sys.executable, "-m", dataset.__name__, *made], check=True)
    return where


def _measure(command: Sequence[str], data: str) -> dict[str, Any] | None:
    """The figures of a benchmark; None if it fails, which it then has said."""
    with ExitStack() as stack:
        made = Path(stack.enter_context(tempfile.TemporaryDirectory()), "figures.json")
        line = [str(ROOT / "benchmark.py"), *command, "--datadir", data, "--json", str(made)]
        clients = {}
        if command[0] == "objects":
            clients = stack.enter_context(s3.serving(os.path.dirname(data), sys.stderr))
        if subprocess.run([sys.executable, *line], env=os.environ | clients).returncode:
            return None
        measured: dict[str, Any] = json.loads(made.read_bytes())
        return measured


if __name__ == "__main__":
    sys.exit(main())
