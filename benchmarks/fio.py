"""fio on the storage that the leg `block` reads, as an upper limit: fio reads no files.

If only the leg `xnvme-gds` runs, fio is compared with that one.

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

from bmap_tools.console import Tick
from bmap_tools.extent_map import ExtentMap
from dali_storage.backends.extents.device import open_mapped
from dali_storage.backends.extents.map import LoadedMap, load_map
from dali_storage.backends.linux.storage import open_direct

from .environment import drop_caches
from .legs import MAPPED, takes_nvme_commands_only
from .measure import Result, Results, Round, Turn
from .workload import Workload

BLOCK_BYTES = 128 << 10
QUEUE_DEPTH = 32

_MOST_SECONDS = 10
_DIRECT_ALIGNMENT = 4096  # bytes; a multiple of the logical block size of every disk


@dataclass(frozen=True, slots=True)
class Fio:
    """Random reads with O_DIRECT, of as many bytes as a round of a leg.

    Attributes:
        result: the rounds so far; they have bytes but no samples.
        leg: the name of the leg that fio is compared with.
        path: the device or image.
        command: runs one round.
        cold: whether to drop the page cache first.
    """

    result: Result
    leg: str
    path: str
    command: tuple[str, ...]
    cold: bool

    def run(self, tick: Tick) -> Round:
        """Run fio for one round.

        Raises:
            RuntimeError: fio failed; has its message.
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


def prepare(workload: Workload, results: Results) -> Fio | None:
    """Fio for the storage that the mapped legs read; None if no such leg is to run."""
    running = [leg.name for leg in MAPPED if leg.name in results and results[leg.name].runs]
    if not running:
        return None
    cold, uri, result = workload.settings.cold, workload.settings.uri, Result("fio")
    if uri is not None and takes_nvme_commands_only(uri):
        result.skipped = f"it reads block devices and images, not {uri}"
        return Fio(result, running[0], uri, (), cold)
    loaded = load_map(str(workload.bmap))
    path, start = _find(uri, loaded, workload)
    if shutil.which("fio") is None:
        result.skipped = "not installed (apt-get install fio)"
    return Fio(result, running[0], path, _command(path, start, loaded.map, workload), cold)


def _find(uri: str | None, loaded: LoadedMap, workload: Workload) -> tuple[str, int]:
    """The device or image with the mapped file system, and its offset there, in bytes."""
    root = loaded.map.root if workload.root is None else os.fsencode(workload.root)
    opened, start = open_mapped(uri, loaded, root, open_direct)
    opened.close()
    return opened.storage.path, start


def turns(fio: Fio | None, results: Results) -> list[Turn]:
    """The turns of fio, if the leg that it is compared with runs."""
    if fio is None or not results[fio.leg].runs:
        return []
    return [(fio.result, fio.run)]


def _command(path: str, start: int, extent_map: ExtentMap, workload: Workload) -> tuple[str, ...]:
    offset, size = _region(path, start, extent_map)
    # --invalidate, fio's default, would drop the pages that the next leg is to find in the cache.
    return (
        *("fio", "--name=randread", "--readonly", "--rw=randread", "--direct=1", "--invalidate=0"),
        *("--ioengine=libaio", f"--iodepth={QUEUE_DEPTH}", f"--bs={BLOCK_BYTES}"),
        *(f"--filename={_escape(path)}", f"--offset={offset}", f"--size={size}"),
        f"--io_size={max(workload.delivered_bytes(workload.order.size), BLOCK_BYTES)}",
        *(f"--runtime={_MOST_SECONDS}", "--output-format=json"),
    )


def _escape(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:")  # a colon separates file names


def _region(path: str, start: int, extent_map: ExtentMap) -> tuple[int, int]:
    """Offset and size, in bytes, of the part of a device or image that has all mapped extents."""
    with open(path, "rb", buffering=0) as device:
        end = os.lseek(device.fileno(), 0, os.SEEK_END)
    written = extent_map.extents[extent_map.extents[:, 1] >= 0]
    first = int(written[:, 1].min(initial=extent_map.device.size))
    last = int((written[:, 1] + written[:, 2]).max(initial=0))
    size = min(-(-max(last - first, 1) // BLOCK_BYTES) * BLOCK_BYTES, end)
    offset = min(start + first, end - size) // _DIRECT_ALIGNMENT * _DIRECT_ALIGNMENT
    return offset, size


def _parse(output: str) -> Round:
    """The round in the output of fio --output-format=json, which messages may precede."""
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
    """Medians of the rounds. `block_share`: GB/s of the leg over GB/s of fio in the same round."""
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
    """The line below the table."""
    if not fio.result.runs:
        return f"fio: {fio.result.skipped or f'failed: {fio.result.failed}'}"
    figures = _summarize(fio, results)
    if not figures:
        return "fio: not run"
    share = f"{figures['block_share']:.0%}" if "block_share" in figures else "-"
    return (
        f"fio: {figures['gb_per_s']:.2f} GB/s, {figures['cpu_s_per_gb']:.2f} CPU s/GB: random "
        f"reads of {BLOCK_BYTES >> 10} KiB from {fio.path}, queue depth {QUEUE_DEPTH}, O_DIRECT; "
        f"{fio.leg} reaches {share} of its GB/s in the same round"
    )


def as_json(fio: Fio, results: Results) -> dict[str, Any]:
    """The rounds and figures, for the JSON file."""
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
