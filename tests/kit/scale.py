"""Memory of many samples: a catalog and its index; generated names, and no file behind them."""

import multiprocessing
import re
from array import array
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dali_storage.contract.catalog import Catalog, CatalogBuilder
from dali_storage.samples.index_file import CatalogFile

CLASSES = 1000


def generated(samples: int) -> Catalog:
    """A catalog as discovery makes it of a listing, with sizes and versions; names of 32 bytes."""
    builder = CatalogBuilder()
    for label in range(CLASSES):
        numbers = range(samples * label // CLASSES, samples * (label + 1) // CLASSES)
        names = [b"image_%011d.jpeg" % number for number in numbers]
        builder.extend(names, array("q", [label]) * len(names), prefix=b"n%08d/" % label)
    plain = builder.build(b"s3://bucket/train")
    sizes, versions = np.arange(samples), np.full(samples, b'"%032x"' % samples, "S34")
    return replace(plain, sizes=sizes, versions=versions)


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
        own = memory_of_process() - before
        everybody.wait()  # nobody unmaps it before
        return len(catalog), _kib(ours, "Rss"), _kib(ours, "Pss"), own
    except BaseException:
        everybody.abort()  # or the others wait
        raise


def memory_of_process() -> int:
    """The bytes that this process has for itself."""
    return _kib(Path("/proc/self/status").read_text(encoding="ascii"), "RssAnon")


def _kib(text: str, name: str) -> int:
    """Bytes, from the line of a number of KiB."""
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0
