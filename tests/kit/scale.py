"""Time and memory of many samples: catalog, index, order; generated names, and no file behind them.

python -m tests.kit.scale DIR --samples 10000000

Every step is a process of its own. `kept` and `peak` are what it adds to the process's memory, less
what it maps. Each of the processes that read the index at the end visits all of it; `share` is the
part of the index that one is charged with (PSS), and `own` is all that it has for itself.
"""

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dali_storage.contract.catalog import Catalog, CatalogBuilder
from dali_storage.order import Order, OrderOptions
from dali_storage.samples.index_file import CatalogFile, save

BATCH_SIZE = 64
CLASSES = 1000
SHUFFLES = "random_shuffle", "shuffle_after_epoch"
_OBJECTS = b"s3://bucket/train"
_KINDS = "RssAnon", "RssFile", "RssShmem", "VmRSS", "VmHWM"
_BATCHES = 200  # of which the median is taken


@dataclass(frozen=True, slots=True)
class Cost:
    """What a step takes: seconds of wall time and of CPU, bytes kept, bytes at the peak."""

    seconds: float
    cpu: float = 0
    kept: int = 0
    peak: int = 0


def measured(step: Callable[[], Any]) -> tuple[Any, Cost]:
    """The result of a step, and its cost; no other thread runs."""
    # The peak begins again, see proc_pid_clear_refs(5).
    Path("/proc/self/clear_refs").write_text("5")
    before, cpu, start = memory_of_process(), time.process_time(), time.perf_counter()
    result = step()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    after = memory_of_process()
    grown = {name: after[name] - before[name] for name in after}
    mapped = grown["RssFile"] + grown["RssShmem"]
    return result, Cost(seconds, cpu, grown["RssAnon"], after["VmHWM"] - before["VmRSS"] - mapped)


def generated(samples: int) -> Catalog:
    """A catalog as discovery makes it of a listing, with sizes and versions; names of 32 bytes."""
    builder = CatalogBuilder()
    for label in range(CLASSES):
        numbers = range(samples * label // CLASSES, samples * (label + 1) // CLASSES)
        names = [b"image_%011d.jpeg" % number for number in numbers]
        builder.extend(names, array("q", [label]) * len(names), prefix=b"n%08d/" % label)
    plain = builder.build(_OBJECTS)
    sizes, versions = np.arange(samples), np.full(samples, b'"%032x"' % samples, "S34")
    columns = plain.offsets, plain.labels, None, 1, None, sizes, versions
    return Catalog(plain.root, plain.names, *columns)


def make(path: str, samples: int) -> dict[str, Cost]:
    """Make the catalog and write the index to `path`."""
    costs = {}
    catalog, costs["catalog"] = measured(partial(generated, samples))
    _, costs["checksum"] = measured(catalog.checksum)
    _, costs["write the index"] = measured(partial(save, catalog, path, {}))
    return costs


def read(path: str) -> dict[str, Cost]:
    """Open the index at `path`, and read all of it."""
    catalog, opened = measured(CatalogFile(path).catalog)
    again = [measured(lambda: CatalogFile(path).catalog())[1] for _ in range(9)]
    opened = sorted([opened, *again], key=lambda cost: cost.seconds)[5]
    _, checksum = measured(catalog.checksum)
    _, verified = measured(CatalogFile(path).verify)
    return {"open the index": opened, "its checksum": checksum, "verify it": verified}


def order(path: str, shuffle: str) -> dict[str, Cost]:
    """Compute the paths of batches out of the index at `path`; `shuffle` is an argument's name."""
    catalog = CatalogFile(path).catalog()

    def first() -> Order:
        made = Order(len(catalog), BATCH_SIZE, OrderOptions(**{shuffle: True}))
        catalog.paths(made.batch(0))
        return made

    made, cost = measured(first)
    times = [time.perf_counter()]
    for number in range(1, _BATCHES):
        catalog.paths(made.batch(number))
        times.append(time.perf_counter())
    later = float(np.median(np.diff(times)))
    return {f"{shuffle}: first batch": cost, "later batches": Cost(later, later)}


def shared(path: str, processes: int) -> list[tuple[int, int, int, int]]:
    """Of each process: its samples, and bytes of the index resident, charged, and its own."""
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        everybody = manager.Barrier(processes, timeout=600)
        return list(pool.map(_share, [path] * processes, [everybody] * processes))


def _share(path: str, everybody: Any) -> tuple[int, int, int, int]:
    """Map the index, visit all of it, and look at the memory once all processes have."""
    try:
        before = memory_of_process()
        index = CatalogFile(path)
        index.verify()
        catalog = index.catalog()
        everybody.wait()
        maps = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="surrogateescape")
        (ours,) = re.findall(rf"{re.escape(path)}\n(.*?)VmFlags", maps, re.DOTALL)
        own = memory_of_process()["RssAnon"] - before["RssAnon"]
        everybody.wait()  # nobody unmaps it before
        return len(catalog), _kib(ours, "Rss"), _kib(ours, "Pss"), own
    except BaseException:
        everybody.abort()  # or the others wait
        raise


def main(arguments: list[str] | None = None) -> int:
    """Measure all steps; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.scale", description=__doc__)
    parser.add_argument("directory", metavar="DIR", help="for the index, which is deleted")
    parser.add_argument("--samples", type=int, default=10_000_000, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=8, help="default: %(default)s")
    given = parser.parse_args(arguments)
    context = multiprocessing.get_context("spawn")
    print(f"{given.samples:,} samples")
    print(f"{'':34} {'seconds':>10} {'CPU s':>8} {'kept MiB':>9} {'peak MiB':>9}")
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        path = os.path.join(os.path.realpath(folder), "scale.index")
        steps = [partial(make, path, given.samples), partial(read, path)]
        for step in [*steps, *(partial(order, path, shuffle) for shuffle in SHUFFLES)]:
            with ProcessPoolExecutor(1, context) as process:
                for name, cost in process.submit(step).result().items():
                    memory = f"{cost.kept / 2**20:9.0f} {cost.peak / 2**20:9.0f}"
                    print(f"{name:34} {cost.seconds:10.6f} {cost.cpu:8.3f} {memory}", flush=True)
        size = os.path.getsize(path)
        results = shared(path, given.processes)
    _, _, charged, own = (max(column) for column in zip(*results, strict=True))
    each = f"share {charged / 2**20:.0f} MiB each, own {own / 2**20:.1f} MiB"
    print(f"index: {size / 2**20:.0f} MiB; {given.processes} processes that read all of it: {each}")
    return 0


def memory_of_process() -> dict[str, int]:
    """Bytes of this process's memory, by their names in proc_pid_status(5)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {name: _kib(status, name) for name in _KINDS}


def _kib(text: str, name: str) -> int:
    """Bytes, from the line of a number of KiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


if __name__ == "__main__":
    sys.exit(main())
