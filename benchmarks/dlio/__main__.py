"""DLIO, the engine of MLPerf Storage, with DLIO's, DALI's and our loader: docs/mlperf-storage.md.

    python -m benchmarks.dlio DIR                        # every leg, with one rank and with two
    python -m benchmarks.dlio DIR --legs ours,dali --ranks 1
    python -m benchmarks.dlio DIR --names 100000,1000000,8300000

The data are made in DIR by DLIO: JPEGs as those of RetinaNet, which are read, and not decoded but
by the legs dlio-0, dlio-2 and dlio-4. DIR/results.json keeps the latest result of each leg. Exit
status 1: a leg has not delivered all bytes.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from dali_storage.contract.errors import BackendUnavailable

from ..environment import is_cold, usable_cores
from ..figures import ROOT, replaced
from . import names

PAGE = ROOT / "docs" / "mlperf-storage.md"
BATCH, SECONDS, PIXELS = 24, 0.04755, 322_957  # RetinaNet on a B200; files of 180 KB
PLUGINS = "benchmarks.dlio.plugins"
_TORCH: dict[str, Any] = {"reader.data_loader": "pytorch"}
_BYTES = _TORCH | {"reader.reader_classname": f"{PLUGINS}.Bytes"}
_OURS = _TORCH | {"reader.data_loader_sampler": "iterative"}
_OURS |= {"reader.data_loader_classname": f"{PLUGINS}.Ours"}
LEGS: dict[str, dict[str, Any]] = {
    **{f"dlio-{workers}": _TORCH | {"reader.read_threads": workers} for workers in (0, 2, 4)},
    **{f"dlio-bytes-{n}": _BYTES | {"reader.read_threads": n} for n in (2, 4)},
    "dali": _OURS | {"reader.data_loader_classname": f"{PLUGINS}.Dali"},
    "ours": _OURS,
    "ours-direct": _OURS,
}


def main() -> int:
    """Measure, print the table, and draw the picture; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dlio", description=__doc__)
    parser.add_argument("directory", metavar="DIR")
    parser.add_argument("--files", type=int, default=2016, help="default: %(default)s")
    parser.add_argument("--legs", default=",".join(LEGS), help="default: %(default)s")
    parser.add_argument("--ranks", default="1,2", help="default: %(default)s")
    parser.add_argument("--names", help="measure lists of so many files instead: N,N")
    parser.add_argument("--page", action="store_true", help=f"also write to {PAGE.name}")
    given = parser.parse_args()
    legs, ranks = given.legs.split(","), [int(each) for each in given.ranks.split(",")]
    if unknown := {*legs} - {*LEGS}:
        parser.error(f"unknown legs: {', '.join(sorted(unknown))}; known are {', '.join(LEGS)}")
    if any(given.files % (BATCH * each) for each in ranks):
        parser.error(f"--files must be a multiple of {BATCH} times each number of ranks")
    try:
        import dali_storage.dlio  # noqa: F401  (names what is missing)
    except BackendUnavailable as error:
        parser.error(str(error))
    _require_mpi(parser)
    if given.names:
        counts = [int(each) for each in given.names.split(",")]
        head = ["names", "list of", "first batch s", "PSS MB", "of it names MB"]
        return _show("names", [head, *names.rows(given.directory, counts, _dlio_names)], given.page)
    data, results = _data(given.directory, given.files), Path(given.directory, "results.json")
    found = json.loads(results.read_text()) if results.exists() else {}
    for leg in legs:
        for count in ranks:
            print(f"{leg}, {count} ranks", file=sys.stderr)
            found[f"{leg} {count}"] = _measure(data, given.files, leg, count)
            results.write_text(json.dumps(found, indent=1))
    known = [f"{leg} {n}" for n in range(1, 65) for leg in LEGS if f"{leg} {n}" in found]
    found = {key: found[key] for key in known}
    rows = [_row(key, each) for key, each in found.items()]
    _plot(
        found, ROOT / "docs" / "mlperf-storage.svg" if given.page else results.parent / "dlio.svg"
    )
    _show("dlio", [[*rows[0]], *([*row.values()] for row in rows)], given.page)
    return int(any(each["delivered"] == "WRONG" for each in found.values()))


def _require_mpi(parser: argparse.ArgumentParser) -> None:
    tried = subprocess.run([sys.executable, "-c", "from mpi4py import MPI"], capture_output=True)
    if tried.returncode or not shutil.which("mpirun"):
        parser.error("there is no MPI: apt-get install openmpi-bin libopenmpi-dev")


def _data(directory: str, files: int) -> str:
    """Have DLIO make the files, unless they are there."""
    data = Path(directory, f"retinanet_{files}").absolute()
    if len(list(data.glob("train/*"))) != files:
        settings = {"workflow.generate_data": True, "workflow.train": False}
        _run(usable_cores(), _settings(str(data), files) | settings, data=str(data))
    return str(data)


def _settings(data: str, files: int) -> dict[str, Any]:
    return {
        "framework": "pytorch",
        "workflow.generate_data": False,
        "workflow.evaluation": False,
        "dataset.data_folder": data,
        "dataset.format": "jpeg",
        "dataset.record_length": PIXELS,
        "dataset.num_files_train": files,
        "dataset.num_files_eval": 0,
        "dataset.num_subfolders_train": 0,
        "dataset.num_subfolders_eval": 0,
        "reader.data_loader": "pytorch",
        "reader.batch_size": BATCH,
        "reader.file_shuffle": "seed",
        "train.epochs": 20,
    }


def _run(ranks: int, settings: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    """The reports of the ranks of a run of DLIO."""
    with tempfile.TemporaryDirectory() as out:
        given = {"seconds": SECONDS, "free": 3, "bisect": True, "names": 0} | more
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


def _measure(data: str, files: int, leg: str, ranks: int) -> dict[str, Any]:
    options = '{"direct": true}' if leg == "ours-direct" else "{}"
    reports = _run(ranks, _settings(data, files) | LEGS[leg], data=data, options=options)
    first, epochs = reports[0], reports[0]["epochs"]
    free = [each for each in epochs if not each["k"]]
    enough = [each for each in epochs if each["k"] and each["au"] >= 90]
    best: dict[str, Any] = max(enough, key=lambda each: each["k"], default={"k": 0, "au": None})
    from .plugins import digest

    paths = [*Path(data, "train").iterdir()]
    wanted = _sum([digest(np.fromfile(path, np.uint8)) for path in paths])
    looked = [[epoch["looked"] for epoch in each["epochs"]] for each in reports]
    seen = {_sum(each) for each in zip(*looked, strict=True)}
    gigabytes = wanted[1] / 1e9
    decoded = seen == {(0, 0, 0)} and LEGS[leg] | {"reader.read_threads": 0} == LEGS["dlio-0"]
    revision = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return {
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "commit": subprocess.run(revision, cwd=ROOT, capture_output=True, text=True).stdout.strip(),
        "cold": is_cold(os.fsencode(paths[0])) if not _evicted(data) else True,
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


def _evicted(data: str) -> bool:
    """Whether files of this file system leave the page cache; those of tmpfs do not."""
    from .rank import evict

    evict(data)
    return is_cold(os.fsencode(next(Path(data, "train").iterdir())))


def _sum(looked: Any) -> tuple[int, ...]:
    total, size, count = (sum(each) for each in zip(*looked, strict=True))
    return total % 2**64, size, count


def _dlio_names(data: str, count: int) -> tuple[float, int]:
    """Seconds to DLIO's first batch, and the PSS of its ranks, with names that have few files."""
    more = {"train.total_training_steps": 1, "reader.read_threads": 0, "reader.file_shuffle": "off"}
    settings = _settings(data, count) | _BYTES | more | {"train.epochs": 2}
    reports = _run(names.RANKS, settings, data=data, free=1, bisect=False, names=count)
    seconds = [each["epochs"][0]["at"] - each["begun"] for each in reports]
    return max(seconds), sum(each["pss"] for each in reports)


def _row(key: str, it: dict[str, Any]) -> dict[str, str]:
    leg, ranks = key.split()
    return {
        "leg": f"`{leg}`",
        "ranks": ranks,
        "samples/s": f"{it['rate']:,.0f}",
        "MB/s": f"{it['rate'] * it['sample_bytes'] / 1e6:,.0f}",
        "accelerators at AU of 90 %": str(it["accelerators"]),
        "a core": f"{it['accelerators'] / usable_cores():.1f}",
        "CPU s/GB": f"{it['cpu']:.2f}",
        "of the machine": f"{it['machine']:.2f}",
        "PSS MB": f"{it['pss'] / 1e6:,.0f}",
        "processes": str(it["processes"]),
        "first batch s": f"{it['first']:.2f}",
        "digest": {"all": it["digest"], "decoded": "decoded"}.get(it["delivered"], "WRONG"),
        "measured": f"{it['when'][:10]}, {it['commit']}{'' if it['cold'] else ', NOT COLD'}",
    }


def _show(name: str, rows: list[list[str]], page: bool) -> int:
    first, *others = (f"| {' | '.join(row)} |\n" for row in rows)
    table = first + "|---" * len(rows[0]) + "|\n" + "".join(others)
    print(table)
    if page:
        text = replaced(PAGE.read_text(encoding="utf-8"), name, table)
        PAGE.write_text(text, encoding="utf-8")
    return 0


def _plot(found: dict[str, Any], path: Path) -> None:
    from matplotlib.figure import Figure

    names = [*found][::-1]
    picture = Figure(figsize=(9, 1.5 + 0.3 * len(names)), layout="constrained")
    for axes, key, label in zip(
        picture.subplots(1, 2, sharey=True),
        ("rate", "cpu"),
        ("samples/s: read, not decoded (dlio-0, -2, -4: decoded)", "CPU seconds per GB"),
        strict=True,
    ):
        colors = ["tab:green" if name.startswith("ours") else "tab:gray" for name in names]
        bars = axes.barh(names, [found[name][key] for name in names], color=colors)
        axes.bar_label(bars, fmt="{:,.4g}")
        axes.set_xlabel(label)
    picture.suptitle("DLIO, emulated, not MLPerf; page cache cold", fontsize="medium")
    picture.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
