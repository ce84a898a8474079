"""What an NVMe command of the backend xnvme-block costs: `python -m benchmarks.submission`.

The commands go to libxnvme's implementation "nil", which completes them without doing anything, so
that only our own cost is left. A cycle is all that the backend does for a command: the columns, the
submission, the completion, its check. In a deeper queue than this one it costs less, because more
commands are submitted and looked after at once.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from dali_storage.backends.xnvme import library as _xnvme
from dali_storage.backends.extents.plan import Reads
from dali_storage.backends.xnvme.device import Device
from dali_storage.backends.xnvme.extent_reads import ExtentReads
from dali_storage.backends.xnvme.queue import Queue
from dali_storage.errors import BackendUnavailable
from dali_storage.reader import Buffer, IntArray

from . import arguments

Kind = TypeVar("Kind", bound=ExtentReads)

_LBA_BYTES = 512
_TRANSFER_BYTES = 4096
_QUEUE_DEPTH = 16  # the most that nil takes
_BATCH = 512  # commands of a batch, some 64 samples of 100 KB


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds a command: of its submission, and of CPU for its cycle."""

    submission: float
    cycle: float


class _TimedReads(ExtentReads):
    """Reads that know how long their submission took."""

    seconds = 0.0

    def submit(self, numbers: list[int], contexts: list[int]) -> list[int]:
        start = time.perf_counter()  # process_time() would cost as much as what it measures
        codes = super().submit(numbers, contexts)
        self.seconds += time.perf_counter() - start
        return codes


def measure(queue: Queue, batches: int) -> Cost:
    """Run batches of commands."""
    memory = queue.device.allocate(_BATCH * _TRANSFER_BYTES)
    places = np.arange(_BATCH, dtype=np.int64) * _TRANSFER_BYTES
    lengths = np.full(_BATCH, _TRANSFER_BYTES)
    start = time.process_time()
    for _ in range(batches):
        _run(queue, places, lengths, memory, ExtentReads)
    cycle = time.process_time() - start
    timed = (_run(queue, places, lengths, memory, _TimedReads) for _ in range(batches))
    submission = sum(reads.seconds for reads in timed)
    return Cost(submission / batches / _BATCH, cycle / batches / _BATCH)


def _run(
    queue: Queue, places: IntArray, lengths: IntArray, memory: Buffer, kind: type[Kind]
) -> Kind:
    reads = Reads(places, memory.ctypes.data + places, lengths)
    work = kind(queue, reads, _LBA_BYTES, retries=1, tells_length=False)
    queue.run(work, memory)
    if work.failed().any():
        raise RuntimeError("a command has failed where none can")
    return work


def main(command_line: Sequence[str] | None = None) -> int:
    """Measure and print; 2 without a libxnvme."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.submission", description=__doc__)
    number = arguments.at_least(1)
    parser.add_argument("--batches", type=number, default=200, metavar="N", help="in a round")
    parser.add_argument("--rounds", type=number, default=7, metavar="N")
    options = parser.parse_args(command_line)
    try:
        library = _xnvme.load()
    except BackendUnavailable as reason:
        print(f"submission: {reason}", file=sys.stderr)
        return 2
    with (
        Device(library, b"1GB", be="ramdisk", io="nil") as device,
        Queue(device, _QUEUE_DEPTH) as queue,
    ):
        device.geometry()
        costs = [measure(queue, options.batches) for _ in range(options.rounds)]
    submission = np.median([cost.submission for cost in costs]) * 1e6
    cycle = np.median([cost.cycle for cost in costs]) * 1e6
    print(
        f"libxnvme {library.version}, io nil, queue depth {_QUEUE_DEPTH}: {submission:.2f} us to "
        f"submit a command, {cycle:.2f} us of CPU for its whole cycle (medians of {len(costs)} "
        f"rounds of {options.batches * _BATCH:,} commands)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
