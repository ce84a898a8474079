"""DLIO, the engine of MLPerf Storage, with DLIO's, DALI's and our loader: docs/mlperf-storage.md.

    python -m benchmarks.dlio DIR                        # every leg, with 1, 2 and 4 ranks
    python -m benchmarks.dlio DIR --workloads retinanet --legs ours,dali --ranks 1
    python -m benchmarks.dlio DIR --names 100000,1000000,8300000

The data are made in DIR, 3 GB. Nothing is decoded, but JPEGs by the legs dlio-0, dlio-2 and dlio-4.
DIR/results.json keeps the latest result of each leg. Exit status 1: a leg has not delivered all
bytes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from dali_storage.contract.errors import BackendUnavailable

from ..environment import is_cold, usable_cores
from ..figures import ROOT, commit, replaced
from . import names
from .workloads import WORKLOADS, Workload, tfrecord_sample, write_tfrecords

PAGE = ROOT / "docs" / "mlperf-storage.md"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dlio", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("directory", metavar="DIR")
    known = {"workloads": [*WORKLOADS]}
    known["legs"] = [*dict.fromkeys(leg for each in WORKLOADS.values() for leg in each.legs)]
    for option, choices in known.items():
        parser.add_argument(f"--{option}", default=",".join(choices), help="default: %(default)s")
    parser.add_argument("--ranks", default="1,2,4", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="of all legs; keep the median run")
    parser.add_argument("--files", type=int, help="the number of files")
    parser.add_argument("--names", help="measure lists of so many files instead: N,N")
    parser.add_argument("--page", action="store_true", help=f"also write to {PAGE.name}")
    given = parser.parse_args()
    given.workloads, given.legs = given.workloads.split(","), given.legs.split(",")
    given.ranks = [int(each) for each in given.ranks.split(",")]
    for option, choices in known.items():
        if unknown := {*vars(given)[option]} - {*choices}:
            parser.error(
                f"--{option}: no {', '.join(sorted(unknown))}; known: {', '.join(choices)}"
            )
    for name in given.workloads:
        batch, files = WORKLOADS[name].batch, given.files or WORKLOADS[name].files
        if any(files % (batch * each) for each in given.ranks):
            parser.error(f"--files of {name}: use a multiple of {batch} times each number of ranks")
    try:
        import dali_storage.dlio  # noqa: F401  (names what is missing)
    except BackendUnavailable as error:
        parser.error(str(error))
    _require_mpi(parser)
    return given


def main() -> int:
    """Measure, and print the tables; return the exit status."""
    given = _arguments()
    if given.names:
        counts = [int(each) for each in given.names.split(",")]
        head = ["names", "list of", "first batch s", "PSS MB", "of it names MB"]
        return _show("names", [head, *names.rows(given.directory, counts, _dlio_names)], given.page)
    results = Path(given.directory, "results.json")
    found = json.loads(results.read_text()) if results.exists() else {}
    runs = dict[str, list[dict[str, Any]]]()
    for name in given.workloads * given.rounds:
        data = _data(given.directory, name, given.files or WORKLOADS[name].files)
        for leg in [leg for leg in given.legs if leg in WORKLOADS[name].legs]:
            for count in given.ranks:
                print(f"{name}, {leg}, {count} ranks", file=sys.stderr)
                of_leg = runs.setdefault(f"{name} {leg} {count}", [])
                of_leg.append(_measure(data, leg, count))
                median = sorted(of_leg, key=itemgetter("rate"))[len(of_leg) // 2]
                found[f"{name} {leg} {count}"] = median
                results.write_text(json.dumps(found, indent=1))
    for name in given.workloads:
        keys = [f"{name} {leg} {n}" for n in range(1, 65) for leg in WORKLOADS[name].legs]
        rows = [_row(key, found[key]) for key in keys if key in found]
        when = sorted({_measured(found[key]) for key in keys if key in found})
        heading = f"Measured {'; '.join(when)}."
        _show(name, [[*rows[0]], *([*row.values()] for row in rows)], given.page, heading)
    return int(any(each["delivered"] == "WRONG" for each in found.values()))


def _require_mpi(parser: argparse.ArgumentParser) -> None:
    tried = subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True)
    if tried.returncode or not shutil.which("mpirun"):
        parser.error("there is no MPI: apt-get install openmpi-bin libopenmpi-dev")


@dataclass(frozen=True)
class _Data:
    """The files of a workload, and what all epochs together have to deliver."""

    workload: Workload
    directory: str
    files: int

    @property
    def settings(self) -> dict[str, Any]:
        return self.workload.settings(self.directory, self.files)

    def paths(self) -> list[Path]:
        return [*Path(self.directory, "train").iterdir()]

    def looked(self) -> tuple[int, ...]:
        """The sum of the digests, the bytes and the number of samples, by other means."""
        from .plugins import digest

        samples: Any
        if self.workload.format == "tfrecord":
            length = self.workload.length
            samples = (tfrecord_sample(number, length) for number in range(self.files))
        elif self.workload.format == "npz":
            samples = (np.load(path)["x"].reshape(-1) for path in self.paths())
        else:
            samples = (np.fromfile(path, np.uint8) for path in self.paths())
        return _sum([digest(sample) for sample in samples])


def _data(directory: str, name: str, files: int) -> _Data:
    """Make the files, unless they are there."""
    data = _Data(WORKLOADS[name], str(Path(directory, f"{name}_{files}").absolute()), files)
    if len([*Path(data.directory).glob("train/*")]) == files:
        return data
    if data.workload.format == "tfrecord":
        write_tfrecords(data.directory, files, data.workload.length)
    else:
        making = {"workflow.generate_data": True, "workflow.train": False}
        _run(usable_cores(), data.settings | making, data=data.directory)
    return data


def _run(ranks: int, settings: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The reports of the ranks of a run of DLIO."""
    with tempfile.TemporaryDirectory() as out:
        given = {"free": 3, "bisect": True, "names": 0} | more
        given |= {"settings": settings | {"output.folder": f"{out}/dlio"}, "out": f"{out}/rank"}
        line = [sys.executable, "-W", "ignore", "-m", "benchmarks.dlio.rank", json.dumps(given)]
        if ranks > 1:
            root = ["--allow-run-as-root"] * (os.geteuid() == 0)
            # Open MPI pins two ranks to a core each, and spins at barriers.
            how = ["--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
            line = ["mpirun", *root, *how, "-n", str(ranks), *line]
        environ = {"DFTRACER_ENABLE": "0", "DALI_STORAGE_OPTIONS": more.get("options", "{}")}
        with open(f"{out}/log", "wb") as log:
            environ = os.environ | environ
            ended = subprocess.run(line, env=environ, cwd=ROOT, stdout=log, stderr=log)
        if ended.returncode:
            raise SystemExit(f"DLIO has failed: {Path(out, 'log').read_text()[-3000:]}")
        return [json.loads(path.read_text()) for path in sorted(Path(out).glob("rank.*"))]


def _measure(data: _Data, leg: str, ranks: int) -> dict[str, Any]:
    more = data.workload.legs[leg]
    given = {"data": data.directory, "seconds": data.workload.seconds}
    given |= {"options": '{"direct": true}'} if leg == "ours-direct" else {}
    reports = _run(ranks, data.settings | more, **given)
    first, epochs = reports[0], reports[0]["epochs"]
    free = [each for each in epochs if not each["k"]]
    enough = [each for each in epochs if each["k"] and each["au"] >= 90]
    best: dict[str, Any] = max(enough, key=lambda each: each["k"], default={"k": 0, "au": None})
    wanted = data.looked()
    looked = [[epoch["looked"] for epoch in each["epochs"]] for each in reports]
    seen = {_sum(each) for each in zip(*looked, strict=True)}
    gigabytes = wanted[1] / 1e9
    decoded = seen == {(0, 0, 0)} and "reader.reader_classname" not in more and "dlio-" in leg
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "commit": commit(),
        "cold": _evicted(data),
        "rate": statistics.median(each["rate"] for each in free),
        "sample_bytes": wanted[1] / wanted[2],
        "accelerators": best["k"] * ranks,
        "au": best["au"],
        "cpu": statistics.median(each["cpu"] for each in free) / gigabytes,
        "machine": statistics.median(each["machine"] for each in free) / gigabytes,
        "pss": sum(each["pss"] for each in reports),
        "processes": first["processes"] * ranks,
        "first": statistics.median(each["first"] for each in free),
        "delivered": "decoded" if decoded else "all" if seen == {wanted} else "WRONG",
        "digest": f"{wanted[0]:016x}",
        "epochs": epochs,
    }


def _evicted(data: _Data) -> bool:
    """Whether files of this file system leave the page cache; those of tmpfs do not."""
    from .rank import evict

    evict(data.directory)
    return is_cold(os.fsencode(data.paths()[0]))


def _sum(looked: Any) -> tuple[int, ...]:
    total, size, count = (sum(each) for each in zip(*looked, strict=True))
    return total % 2**64, size, count


def _dlio_names(data: str, count: int) -> tuple[float, int]:
    """Seconds to DLIO's first batch, and the PSS of its ranks, with names that have few files."""
    more = {"train.total_training_steps": 1, "reader.read_threads": 0, "reader.file_shuffle": "off"}
    retinanet = WORKLOADS["retinanet"]
    settings = retinanet.settings(data, count) | retinanet.legs["dlio-bytes-2"] | more
    settings |= {"train.epochs": 2}
    reports = _run(names.RANKS, settings, data=data, free=1, bisect=False, names=count)
    seconds = [each["epochs"][0]["at"] - each["begun"] for each in reports]
    return max(seconds), sum(each["pss"] for each in reports)


def _measured(it: dict[str, Any]) -> str:
    return f"{it['when'][:10]}, {it['commit']}{'' if it['cold'] else ', NOT COLD'}"


def _row(key: str, it: dict[str, Any]) -> dict[str, str]:
    _, leg, ranks = key.split()
    return {
        "reader": f"`{leg}`" + ("" if it["delivered"] == "all" else f", {it['delivered']}"),
        "ranks": ranks,
        "samples/s": f"{it['rate']:,.0f}",
        "accelerators": str(it["accelerators"]),
        "CPU s/GB": f"{it['cpu']:.2f}",
    }


def _show(name: str, rows: list[list[str]], page: bool, heading: str = "") -> int:
    first, *others = (f"| {' | '.join(row)} |\n" for row in rows)
    table = first + "|---" * len(rows[0]) + "|\n" + "".join(others)
    table = f"{heading}\n\n{table}" if heading else table
    print(table)
    text = PAGE.read_text(encoding="utf-8")
    if page and f"<!-- figures: {name} -->" in text:  # the page has not all of them
        PAGE.write_text(replaced(text, name, table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
