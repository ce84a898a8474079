"""Lists of many files: an index of dali_storage, and the lists of DLIO. Few of the files exist.

A process of the index: python -m benchmarks.dlio.names INDEX RANK RANKS
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvidia.dali import Pipeline

from dali_storage import readers
from dali_storage.contract.catalog import CatalogBuilder
from dali_storage.dali.queries import source
from dali_storage.samples import index_file
from dali_storage.samples.listed import filters_as_text

BATCH = 24
RANKS = 12


def make(directory: str, names: int) -> str:
    """Make the files of each rank's first batch, and an index of all names; return its path."""
    root, width = Path(directory, f"names_{names}").absolute(), len(str(names))
    for folder in ("train", "valid"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    every = [f"img_{n:0{width}}_of_{names}.jpeg".encode() for n in range(names)]
    for rank in range(RANKS):
        for first in (names * rank // RANKS, -(-names // RANKS) * rank):
            for name in every[first : first + BATCH]:
                (root / "train" / name.decode()).write_bytes(name * 20)
    builder, path = CatalogBuilder(), root / "index"
    builder.extend(every, [0] * names, b"train/")
    index_file.save(builder.build(bytes(root)), path, filters_as_text())
    return str(path)


def by_index(index: str) -> tuple[float, int]:
    """Seconds to the first batch of the last process, and the PSS of all, in bytes."""
    line = [sys.executable, "-m", __name__, index]
    running = [
        subprocess.Popen([*line, str(rank), str(RANKS)], stdin=-1, stdout=-1)
        for rank in range(RANKS)
    ]
    try:
        seconds = [float(each.stdout.readline()) for each in running if each.stdout]
        return max(seconds), sum(pss_of(each.pid) for each in running)
    finally:
        for each in running:
            each.communicate(b"")


def pss_of(process: int) -> int:
    """The PSS of a process, in bytes."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def rows(
    directory: str, counts: list[int], dlio: Callable[[str, int], tuple[float, int]]
) -> list[list[str]]:
    """A row for each number of names; `dlio` measures DLIO, up to a million names.

    The memory is what the names add to that of the same processes with few names.
    """
    few = RANKS * BATCH
    base: dict[str, int] = {}
    table = []
    for names in [few, *counts]:
        index = make(directory, names)
        measured: dict[str, Any] = {"index": by_index(index)}
        if names <= 1_100_000:
            measured["DLIO"] = dlio(str(Path(index).parent), names)
        for what, (seconds, pss) in measured.items():
            added = (pss - base.setdefault(what, pss)) / 1e6
            shown = [f"{seconds:.1f}", f"{pss / 1e6:,.0f}", f"{added:,.0f}"]
            table.append([f"{names:,}", what, *shown])
    return table


def _first_batch(index: str, rank: int, ranks: int) -> None:
    begun = time.monotonic()
    with (pipe := Pipeline(BATCH, 1, None, prefetch_queue_depth=1)):
        pipe.set_outputs(
            *readers.file(file_root=index, shard_id=rank, num_shards=ranks, name="Reader")
        )
    source(pipe, "Reader").position.successor = lambda batch: batch  # the other files are missing
    pipe.run()
    print(time.monotonic() - begun, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _first_batch(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
