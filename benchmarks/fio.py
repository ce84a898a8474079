"""fio on the storage that the leg `block` reads: what it gives to a program that knows no files.

Where only the leg `xnvme-gds` runs, fio stands beside that.

The options and the JSON output are those of fio(1), version 3.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

import numpy as np

from bmap_tools.extent_map import ExtentMap
from dali_storage.backends.extents.device import open_mapped
from dali_storage.backends.extents.map import LoadedMap, load_map
from dali_storage.backends.linux.storage import open_direct

from .environment import drop_caches
from .legs import MAPPED
from .measure import Result, Results, Round, Turn
from .obstacles import is_for_nvme_commands
from .work import Tick, Work

BLOCK_BYTES = 128 << 10
QUEUE_DEPTH = 32

_MOST_SECONDS = 10
_DIRECT_ALIGNMENT = 4096  # bytes; a multiple of the logical block of every disk


@dataclass(frozen=True, slots=True)
class Fio:
    """Random reads with O_DIRECT, of as many bytes as a round of a leg.

    Attributes:
        result: what it has measured so far; its rounds have bytes but no samples.
        leg: the name of the leg that it is compared with.
        path: the device or image.
        command: what is run for a round.
    """

    result: Result
    leg: str
    path: str
    command: tuple[str, ...]
    cold: bool

    def run(self, tick: Tick) -> Round:
        """One round.

        Raises:
            RuntimeError: fio failed; says what it said.
        """
        if self.cold:
            drop_caches()
        done = subprocess.run(
            self.command, capture_output=True, text=True, check=False, timeout=6 * _MOST_SECONDS
        )
        if done.returncode != 0:
            complaint = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
            raise RuntimeError(complaint or f"exit status {done.returncode}")
        return _parse(done.stdout)


def prepare(work: Work, results: Results) -> Fio | None:
    """What measures the storage that the mapped legs read, if one of them is to run."""
    running = [leg.name for leg in MAPPED if leg.name in results and results[leg.name].runs]
    if not running:
        return None
    cold, uri, result = work.settings.cold, work.settings.uri, Result("fio")
    if uri is not None and is_for_nvme_commands(uri):
        result.skipped = f"it reads block devices and images, not {uri}"
        return Fio(result, running[0], uri, (), cold)
    loaded = load_map(str(work.bmap))
    mapped = loaded.map
    path, start = _find(uri, loaded, work)
    if shutil.which("fio") is None:
        result.skipped = "not installed (apt-get install fio)"
    return Fio(result, running[0], path, _command(path, start, mapped, work), cold)


def _find(uri: str | None, loaded: LoadedMap, work: Work) -> tuple[str, int]:
    """The device or image with the mapped file system, and the offset of that, in bytes."""
    root = loaded.map.root if work.root is None else os.fsencode(work.root)
    opened, start = open_mapped(uri, loaded, root, open_direct)
    opened.close()
    return opened.storage.path, start


def turns(fio: Fio | None, results: Results) -> list[Turn]:
    """Those of fio, if what it is compared with has any."""
    if fio is None or not results[fio.leg].runs:
        return []
    return [(fio.result, fio.run)]


def _command(path: str, start: int, mapped: ExtentMap, work: Work) -> tuple[str, ...]:
    offset, size = _region(path, start, mapped)
    # Not --invalidate, fio's default: it would empty caches that the next leg shall find filled.
    return (
        *("fio", "--name=randread", "--readonly", "--rw=randread", "--direct=1", "--invalidate=0"),
        *("--ioengine=libaio", f"--iodepth={QUEUE_DEPTH}", f"--bs={BLOCK_BYTES}"),
        *(f"--filename={_escape(path)}", f"--offset={offset}", f"--size={size}"),
        f"--io_size={max(work.delivered_bytes(work.order.size), BLOCK_BYTES)}",
        *(f"--runtime={_MOST_SECONDS}", "--output-format=json"),
    )


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:")  # a colon stands between file names


def _region(path: str, start: int, mapped: ExtentMap) -> tuple[int, int]:
    """The part of a device or image, in bytes, that the mapped files lie in: offset and size."""
    with open(path, "rb", buffering=0) as device:
        end = os.lseek(device.fileno(), 0, os.SEEK_END)
    written = mapped.extents[mapped.extents[:, 1] >= 0]
    first = int(written[:, 1].min(initial=mapped.device.size))
    last = int((written[:, 1] + written[:, 2]).max(initial=0))
    size = min(-(-max(last - first, 1) // BLOCK_BYTES) * BLOCK_BYTES, end)
    offset = min(start + first, end - size) // _DIRECT_ALIGNMENT * _DIRECT_ALIGNMENT
    return offset, size


def _parse(output: str) -> Round:
    """What fio has written with --output-format=json; remarks may stand before it."""
    (job,) = json.loads(output[max(output.find("{"), 0) :])["jobs"]
    cpu_share = (job["usr_cpu"] + job["sys_cpu"]) / 100
    return Round(
        seconds=max(job["read"]["runtime"], 1) / 1e3,
        cpu_seconds=cpu_share * job["job_runtime"] / 1e3,
        samples=0,
        size_bytes=job["read"]["io_bytes"],
        waits=np.zeros(0),
    )


def _summarize(fio: Fio, results: Results) -> dict[str, float]:
    """Medians over the rounds; `block_share`: of GB/s of the leg against fio in the same round."""
    rounds = fio.result.rounds
    figures = {
        "gb_per_s": [one.gb_per_s for one in rounds],
        "cpu_s_per_gb": [one.cpu_s_per_gb for one in rounds],
        "block_share": [
            ours.gb_per_s / its.gb_per_s
            for ours, its in zip(results[fio.leg].rounds, rounds, strict=False)
        ],
    }
    return {key: float(np.median(values)) for key, values in figures.items() if values}


def describe(fio: Fio, results: Results) -> str:
    """A line below the table."""
    if not fio.result.runs:
        return f"fio: {fio.result.skipped or f'failed: {fio.result.failed}'}"
    figures = _summarize(fio, results)
    if not figures:
        return "fio: not run"
    share = f"{figures['block_share']:.0%}" if "block_share" in figures else "-"
    return (
        f"fio: {figures['gb_per_s']:.2f} GB/s, {figures['cpu_s_per_gb']:.2f} CPU s/GB: random "
        f"reads of {BLOCK_BYTES >> 10} KiB from {fio.path}, {QUEUE_DEPTH} at once, with O_DIRECT; "
        f"GB/s of {fio.leg} against fio's in the same round: {share}"
    )


def as_json(fio: Fio, results: Results) -> dict[str, Any]:
    """For the JSON file."""
    return {
        "skipped": fio.result.skipped,
        "failed": fio.result.failed,
        "command": fio.command,
        "leg": fio.leg,
        "summary": _summarize(fio, results) or None,
        "rounds": [
            {"seconds": one.seconds, "cpu_seconds": one.cpu_seconds, "bytes": one.size_bytes}
            for one in fio.result.rounds
        ],
    }
