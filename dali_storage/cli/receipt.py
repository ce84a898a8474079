"""`python -m dali_storage receipt PATH -o FILE`: the receipt of a data set.

`receipt compare FILE EPOCH` compares it with the receipt of an epoch, or with a JSON list of the
receipts of all ranks. FILE has JSON: the receipt, the reader and its arguments, and the sizes of
the samples. The exit status is 0 if the epoch is complete, 1 if not, 2 if there is no result.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np

from bmap_tools import console
from bmap_tools.atomic import destination, replacing

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..contract.reader import Reader
from ..contract.views import Views
from ..reading.batches import read_batch
from ..receipts.dataset import compare, suspects
from ..receipts.hashing import rows_of
from ..receipts.values import COLUMNS, ROWS, Words, combine, packed, receipt_of, table_of, unpacked
from ..runtime.machine import processors
from . import reader_options

_SHOWN = 5  # names of a group
_BATCH = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the receipt, or print the verdict; errors go to stderr. Returns the exit status."""
    given = list(sys.argv[2:] if arguments is None else arguments)
    comparing = given[:1] == ["compare"]
    parser = argparse.ArgumentParser(
        prog=f"python -m dali_storage receipt{' compare' * comparing}", description=__doc__
    )
    if comparing:
        parser.add_argument("dataset", metavar="FILE", help="written by `receipt`")
        parser.add_argument("epoch", metavar="EPOCH", help="JSON of one receipt, or of all ranks'")
    else:
        reader_options.add_options(parser)
        text = "the receipt to write, in JSON"
        parser.add_argument("-o", "--output", metavar="FILE", required=True, help=text)
        text = "read all samples, and hash their bytes"
        parser.add_argument("--bytes", action="store_true", help=text)
    options = parser.parse_args(given[comparing:])
    try:
        return _compare(options) if comparing else _write(options)
    except (BackendUnavailable, MemoryError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _write(given: argparse.Namespace) -> int:
    destination(given.output)  # before the listing, which may be slow
    made, mode = reader_options.described(given), "bytes" if given.bytes else "samples"
    with replacing(given.output) as file:
        catalog, reader, _ = reader_options.opening_of(**made).open()
        table, sizes = np.zeros((ROWS, COLUMNS), np.uint64), list[Any]()
        with reader:
            for rows, its in _rows(catalog, reader, given.bytes):
                np.add.at(table, rows[:, 2] % np.uint64(ROWS), rows)
                sizes.append(its)
        dataset = {"dataset": catalog.checksum(), "source": None, "epoch": None}
        receipt = receipt_of(table, mode=mode, **dataset, shard=None)
        made |= {"receipt": receipt, "sizes": packed(of_all := np.concatenate(sizes))}
        file.write(json.dumps(made, indent=1).encode())
    what = f"{receipt['count']:,} samples, {int(of_all.sum()):,} bytes"
    console.print_result(f"{given.output!r}: {what}, {mode}: {receipt['sum']}")
    return 0


def _compare(given: argparse.Namespace) -> int:
    made, epoch = (reader_options.loaded(it) for it in (given.dataset, given.epoch))
    if not isinstance(made, dict) or made.keys() != {"reader", "arguments", "receipt", "sizes"}:
        what = "is not the receipt of a data set; make one by `python -m dali_storage receipt`"
        raise ValueError(f"{given.dataset!r} {what}")
    then = unpacked(made["sizes"], repr(given.dataset)).view(np.int64)
    ranks = epoch if isinstance(epoch, list) else [epoch]
    for path, each in [(given.dataset, made["receipt"]), *((given.epoch, it) for it in ranks)]:
        table_of(each, f"{path!r}: not a receipt")  # for an error with the path
    epoch = combine(*ranks)
    complete, verdict = compare(made["receipt"], epoch)
    console.print_result(verdict)
    if complete:
        return 0
    catalog, reader, _ = reader_options.opening_of(made["reader"], made["arguments"]).open()
    with reader:
        found = zip(*_rows(catalog, reader), strict=True)
        rows, now = (np.concatenate(it) for it in found)
    size = made["receipt"]["count"]
    if made["receipt"]["dataset"] != catalog.checksum():
        what = f"{size:,} samples then, {catalog.delivered:,} now"
        console.print_result(f"the names or labels of the data set have changed: {what}")
    if then.size == now.size:
        for sample in np.unique(np.flatnonzero(then != now) // catalog.pieces).tolist():
            console.print_result(f"its size has changed: {_shown(catalog, sample)}")
    for kind, samples in suspects(made["receipt"], epoch, rows[:, 2]):
        some = ", ".join(_shown(catalog, it) for it in samples[:_SHOWN].tolist())
        some = some or "none of today's names"
        among = f", among {samples.size:,} names" * (samples.size > 1)
        console.print_result(f"{kind}{among}: {some}{', ...' * (samples.size > _SHOWN)}")
    return 1


def _rows(
    catalog: Catalog, reader: Reader, of_bytes: bool = False
) -> Iterator[tuple[Words, IntArray]]:
    """Go through all samples of an open reader: `rows_of()`, and the sizes of the pieces."""
    own, lanes, ranges = threading.local(), count(), catalog.ranges

    def work(start: int) -> tuple[Words, IntArray]:
        samples = np.arange(start, min(start + _BATCH, catalog.delivered))
        pieces = catalog.pieces_of(samples)
        if not of_bytes:
            sizes: Any = reader.sizes(pieces, own.lane) if ranges is None else ranges.sizes[pieces]
            return rows_of(catalog, samples, sizes, None), sizes
        batch = read_batch(reader, catalog, pieces, reader.allocate, own.lane)
        views = Views(batch.buffer, batch.offsets, batch.sizes)
        return rows_of(catalog, samples, views.sizes, views.slices()), views.sizes

    jobs = min(processors(), reader.lanes)
    pool = ThreadPoolExecutor(jobs, initializer=lambda: setattr(own, "lane", next(lanes)))
    with console.bar("hashing", catalog.delivered) as tick, pool:
        try:
            starts = range(0, catalog.delivered, _BATCH)
            for start, found in zip(starts, pool.map(work, starts), strict=True):
                yield found
                tick(start)
        finally:
            pool.shutdown(cancel_futures=True)


def _shown(catalog: Catalog, sample: int) -> str:
    name = os.fsdecode(catalog.name(piece := sample * catalog.pieces))
    return f"{name} {catalog.where(piece)}".rstrip()
