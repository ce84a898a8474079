"""fio on the storage that the leg `block` (else `xnvme-block`) reads: the upper limit of raw reads.

The options and the JSON output are those of fio(1), version 3.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bmap_tools.console import Tick
from dali_storage import BackendUnavailable
from dali_storage.backends.extents.device import open_mapped
from dali_storage.backends.extents.map import load_map
from dali_storage.backends.linux.storage import open_direct

from .environment import drop_caches
from .legs import MAPPED, Leg, takes_nvme_commands_only
from .measure import Result, Results, Round, medians, running
from .workload import Workload, summarize_error

BLOCK_BYTES = 128 << 10
QUEUE_DEPTH = 32

_MOST_SECONDS = 10
_DIRECT_ALIGNMENT = 4096  # bytes; a multiple of the logical block size of every disk


@dataclass(slots=True)
class Fio:
    """Random reads with O_DIRECT, of as many bytes as a round of a leg.

    Attributes:
        leg: the name of the leg that fio is compared with.
        path: the device or image.
        result: the rounds so far; they have bytes but no samples.
    """

    leg: str
    cold: bool
    path: str = ""
    command: tuple[str, ...] = ()
    result: Result = field(default_factory=lambda: Result("fio"))

    def run(self, _: Result, tick: Tick) -> Round:
        """Run fio for one round; a RuntimeError has the message of a failed one."""
        if self.cold:
            drop_caches()
        done = subprocess.run(
            self.command, capture_output=True, text=True, check=False, timeout=6 * _MOST_SECONDS
        )
        if done.returncode != 0:
            complaint = (done.stderr.strip() or done.stdout.strip()).partition("\n")[0]
            raise RuntimeError(complaint or f"exit status {done.returncode}")
        return _parse(done.stdout)

    def describe(self, results: Results) -> str:
        """The line below the table."""
        if not self.result.runs:
            return f"fio: {self.result.skipped or f'failed: {self.result.failed}'}"
        if not (figures := self._summary(results)):
            return "fio: not run"
        share = f"{figures['block_share']:.0%}" if "block_share" in figures else "-"
        return (
            f"fio: {figures['gb_per_s']:.2f} GB/s, {figures['cpu_s_per_gb']:.2f} CPU s/GB: random "
            f"reads of {BLOCK_BYTES >> 10} KiB from {self.path}, queue depth {QUEUE_DEPTH}, "
            f"O_DIRECT; {self.leg} reaches {share} of its GB/s"
        )

    def as_json(self, results: Results) -> dict[str, Any]:
        """The rounds and figures, for the JSON file."""
        return {
            "skipped": self.result.skipped,
            "failed": self.result.failed,
            "command": self.command,
            "reader": self.leg,
            "summary": self._summary(results),
            "rounds": [one.as_json() for one in self.result.rounds],
        }

    def _summary(self, results: Results) -> dict[str, float] | None:
        """Medians. `block_share`: GB/s of the leg over GB/s of fio."""
        if not self.result.rounds:
            return None
        figures = medians([one.figures for one in self.result.rounds])
        figures = {key: figures[key] for key in ("gb_per_s", "cpu_s_per_gb")}
        if ours := [one.figures for one in results[self.leg].rounds]:
            figures["block_share"] = medians(ours)["gb_per_s"] / figures["gb_per_s"]
        return figures


def prepare(legs: Iterable[Leg], workload: Workload, results: Results) -> Fio | None:
    """Fio for the storage that the mapped legs read; None if no such leg runs."""
    mapped = [leg for leg in running(legs, results) if leg in MAPPED]
    if not mapped:
        return None
    fio, uri = Fio(mapped[0].name, workload.settings.cold), workload.settings.uri
    if uri is not None and takes_nvme_commands_only(uri):
        fio.result.skipped = f"it reads block devices and images, not {uri}"
        return fio
    try:
        fio.path, offset, size = _find(workload)
    except (BackendUnavailable, OSError, ValueError) as error:
        fio.result.failed = summarize_error(error)
        return fio
    if shutil.which("fio") is None:
        fio.result.skipped = "not installed (apt-get install fio)"
    name = fio.path.replace("\\", "\\\\").replace(":", "\\:")  # a colon separates file names
    # --invalidate, fio's default, would drop the pages that the next leg is to find in the cache.
    fio.command = (
        *("fio", "--name=randread", "--readonly", "--rw=randread", "--direct=1", "--invalidate=0"),
        *("--ioengine=libaio", f"--iodepth={QUEUE_DEPTH}", f"--bs={BLOCK_BYTES}"),
        *(f"--filename={name}", f"--offset={offset}", f"--size={size}"),
        f"--io_size={max(workload.delivered_bytes(0, workload.order.size), BLOCK_BYTES)}",
        *(f"--runtime={_MOST_SECONDS}", "--output-format=json"),
    )
    return fio


def _find(workload: Workload) -> tuple[str, int, int]:
    """The device or image, and the offset and size in bytes of its part with all mapped extents."""
    loaded = load_map(str(workload.bmap))
    root = loaded.map.root if workload.root is None else os.fsencode(workload.root)
    opened, start = open_mapped(workload.settings.uri, loaded, root, open_direct)
    opened.close()
    end = opened.storage.size
    written = loaded.map.extents[loaded.map.extents[:, 1] >= 0]
    first = int(written[:, 1].min(initial=loaded.map.device.size))
    last = int((written[:, 1] + written[:, 2]).max(initial=0))
    size = min(-(-max(last - first, 1) // BLOCK_BYTES) * BLOCK_BYTES, end)
    offset = min(start + first, end - size) // _DIRECT_ALIGNMENT * _DIRECT_ALIGNMENT
    return opened.storage.path, offset, size


def _parse(output: str) -> Round:
    """The round in the output of fio --output-format=json, which messages may precede."""
    (job,) = json.loads(output[max(output.find("{"), 0) :])["jobs"]
    return Round(
        seconds=max(job["read"]["runtime"], 1) / 1e3,
        cpu_seconds=(job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3,
        samples=0,
        size_bytes=job["read"]["io_bytes"],
        waits=np.zeros(0),
    )
