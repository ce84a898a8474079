"""`python -m dali_storage receipt PATH -o FILE`: the receipt of a data set.

`receipt compare FILE EPOCH` compares it with the receipt of an epoch, or with a JSON list of the
receipts of all ranks. FILE has JSON: the receipt, the reader and its arguments, the number of
samples that share their names, and the sizes of the samples in the order of the keys' hashes. The
names in the verdict are those of the data set of today, at the same place or at `--root`. The exit
status is 0 if the epoch is complete, 1 if not, 2 if there is no result.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from bmap_tools import console
from bmap_tools.atomic import destination, replacing

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.format import Format
from ..contract.reader import Reader
from ..order import OrderOptions
from ..order.ordering import Ordering
from ..readers.arguments import Prepared
from ..readers.batches import ReaderBatches
from ..reading.opening import Opening
from ..receipts import values
from ..receipts.dataset import NAMES, compare, suspects
from ..receipts.hashing import Hashes
from ..receipts.ledger import receipts_of
from ..receipts.values import COLUMNS, ROWS, Receipt, Words
from ..runtime.machine import processors
from . import reader_options

_SHOWN = 20  # most names of a group, which are shown all or not at all
_MOVED = "if it was moved, give --root or --argument"
_BATCH = 64
_READING = {
    "bytes": "read all samples, and hash their bytes, too",
    "content": "read all samples, and hash their outputs alone, to compare other containers",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the receipt, or print the verdict; errors go to stderr. Returns the exit status."""
    given = list(sys.argv[2:] if arguments is None else arguments)
    comparing = given[:1] == ["compare"]
    parser = argparse.ArgumentParser(
        prog=f"python -m dali_storage receipt{' compare' * comparing}", description=__doc__
    )
    add = parser.add_argument
    if comparing:
        add("dataset", metavar="FILE", help="written by `receipt`")
        add("epoch", metavar="EPOCH", help="JSON of one receipt, or of all ranks'")
        text = "where the data set is now, if it was moved"
        add("--root", metavar="PATH", nargs="+", dest="paths", default=[], help=text)
        reader_options.add_argument(parser)
    else:
        reader_options.add_options(parser)
        text = "the receipt to write, in JSON"
        add("-o", "--output", metavar="FILE", required=True, help=text)
        parser.set_defaults(mode="samples")
        for mode, text in _READING.items():
            add(f"--{mode}", dest="mode", action="store_const", const=mode, help=text)
    options = parser.parse_args(given[comparing:])
    try:
        return _compare(options) if comparing else _write(options)
    except reader_options.ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _write(given: argparse.Namespace) -> int:
    destination(given.output)  # before the listing, which may be slow
    made, mode = reader_options.described(given), given.mode
    with replacing(given.output) as file:
        opening = reader_options.opening_of(**made)
        catalog, reader, ordering = opening.open()
        with reader:
            if [*ordering.sources] != [None]:
                what = "a mixture has receipts of its sources or classes"
                raise ValueError(f"{what}: make that of the files of one of them")
            table, keys, sizes = _hashed(catalog, reader, Hashes(catalog, ordering))
        if mode != "samples":
            table = _read(replace(opening, find=lambda *_: catalog), mode)
        dataset = {"dataset": catalog.checksum(), "source": None, "epoch": None}
        receipt = values.receipt_of(table, mode=mode, **dataset, shard=None, run={})
        counts = np.unique(keys if mode != "content" else [], return_counts=True)[1]
        ordered = values.packed(sizes[np.argsort(keys, kind="stable")])
        made |= {"receipt": receipt, "alike": int(counts[counts > 1].sum()), "sizes": ordered}
        file.write(json.dumps(made, indent=1).encode())
    what = f"{receipt['count']:,} samples, {int(sizes.sum()):,} bytes"
    console.print_result(f"{given.output!r}: {what}, {mode}: {receipt['sum']}")
    if made["alike"]:
        what = f"{made['alike']:,} samples share their names, so that they are not told apart"
        print(f"warning: {what}: list each file once", file=sys.stderr)
    return 0


def _compare(given: argparse.Namespace) -> int:
    made, epoch = (reader_options.loaded(it) for it in (given.dataset, given.epoch))
    keys = {"reader", "arguments", "receipt", "sizes"}
    if not isinstance(made, dict) or made.keys() - {"alike"} != keys:
        what = "is not the receipt of a data set; make one by `python -m dali_storage receipt`"
        raise ValueError(f"{given.dataset!r} {what}")
    then = values.unpacked(made["sizes"], repr(given.dataset)).view(np.int64)
    ranks = epoch if isinstance(epoch, list) else [epoch]
    for path, each in [(given.dataset, made["receipt"]), *((given.epoch, it) for it in ranks)]:
        values.table_of(each, f"{path!r}: not a receipt")  # for an error with the path
    epoch = values.combine(*ranks)
    complete, verdict = compare(made["receipt"], epoch, made.get("alike", 0))
    console.print_result(verdict)
    if len(ranks) > 1 and not set.intersection(*({*it["run"]} for it in ranks)):
        what = "nothing shows that these receipts are of one run"
        print(f"note: {what}; for that, set DALI_STORAGE_RUN on all ranks", file=sys.stderr)
    if complete:
        return 0
    _name(given, made, then, epoch)
    return 1


def _name(given: argparse.Namespace, made: dict[str, Any], then: IntArray, epoch: Receipt) -> None:
    """Print the samples that are missing, too many or changed."""
    if epoch["mode"] == "content":
        console.print_result("no names: content has none")
        return
    given.reader = made["reader"]
    try:
        arguments = made["arguments"] | reader_options.described(given)["arguments"]
        catalog, reader, ordering = reader_options.opening_of(made["reader"], arguments).open()
        with reader:
            hashes = Hashes(catalog, ordering)
            today, keys, sizes = _hashed(catalog, reader, hashes, missing=True)
    except reader_options.ERRORS as error:
        hint = f"; {_MOVED}" * isinstance(error, (OSError, TypeError, ValueError))
        console.print_result(f"names need the data set: {error}{hint}")
        return
    here = made["receipt"]
    if (values.table_of(here) != today)[:, NAMES].any():
        what = f"{here['count']:,} samples then, {catalog.delivered:,} now"
        console.print_result(f"the names of the data set have changed: {what}")
    elif then.size == sizes.size:
        order = np.argsort(keys, kind="stable")
        rows, columns = np.nonzero(then.reshape(sizes.shape) != sizes[order])
        differ = np.sort(order[rows] * catalog.pieces + columns)
        for piece in differ[:_SHOWN].tolist():
            what = "it is missing" if sizes.flat[piece] < 0 else "its size has changed"
            console.print_result(f"{what}: {_shown(catalog, [piece])}")
        if (more := differ.size - _SHOWN) > 0:
            console.print_result(f"{more:,} more files are missing or changed; {_MOVED}")
    for kind, found in suspects(here, epoch, today, keys):
        if isinstance(found, str):
            console.print_result(f"{kind}: {found}")
        elif found.size > _SHOWN:
            console.print_result(f"{kind}: some of a group of {found.size:,} samples")
        else:
            among = f", among {found.size:,} names" * (found.size > 1)
            its = catalog.pieces_of(found).reshape(-1, catalog.pieces)
            some = ", ".join(_shown(catalog, it) for it in its.tolist())
            console.print_result(f"{kind}{among}: {some}")


def _read(opening: Opening, mode: str) -> Words:
    """Read each sample once, and return the table of the receipt."""
    ledger, order = receipts_of(mode, "cpu", True), OrderOptions(pad_last_batch=True)
    fmt = opening.fmt
    if mode == "bytes":
        fmt = Format()  # decodes nothing: a damaged record has bytes, too
        fmt.labels = False
    opening = replace(opening, ledger=ledger, order=order, ordering=Ordering, fmt=fmt)
    with ReaderBatches(Prepared(opening), _BATCH) as batches:
        with console.bar("reading", len(batches)) as tick:
            for number, _ in enumerate(batches):
                tick(number)
        return values.table_of(batches.receipt(0))


def _hashed(
    catalog: Catalog, reader: Reader, hashes: Hashes, missing: bool = False
) -> tuple[Words, Words, IntArray]:
    """Go through the n samples of an open reader, without reading them.

    Returns:
        The table of a receipt; the halves of the keys' hashes, uint64[n]; and the sizes of the
        pieces, int64[n, pieces]. With `missing`, a missing file has the size -1.
    """
    own, lanes, ranges = threading.local(), count(), catalog.ranges

    def sizes_of(pieces: IntArray) -> Any:
        try:
            return reader.sizes(pieces, own.lane) if ranges is None else ranges.sizes[pieces]
        except FileNotFoundError:
            if not missing:
                raise
            one = pieces.size == 1
            return [-1] if one else np.concatenate([sizes_of(it) for it in pieces[:, None]])

    def work(start: int) -> tuple[Words, IntArray]:
        samples = np.arange(start, min(start + _BATCH, catalog.delivered))
        sizes = np.asarray(sizes_of(catalog.pieces_of(samples)), np.int64)
        return hashes.rows(samples, sizes, None), sizes

    table, keys, sizes = np.zeros((ROWS, COLUMNS), np.uint64), list[Words](), list[IntArray]()
    jobs = min(processors(), reader.lanes)
    pool = ThreadPoolExecutor(jobs, initializer=lambda: setattr(own, "lane", next(lanes)))
    with console.bar("hashing", catalog.delivered) as tick, pool:
        try:
            starts = range(0, catalog.delivered, _BATCH)
            for start, (rows, its) in zip(starts, pool.map(work, starts), strict=True):
                np.add.at(table, rows[:, 2] % np.uint64(ROWS), rows)
                keys.append(rows[:, 2].copy())
                sizes.append(its)
                tick(start)
        finally:
            pool.shutdown(cancel_futures=True)
    return table, np.concatenate(keys), np.concatenate(sizes).reshape(-1, catalog.pieces)


def _shown(catalog: Catalog, pieces: list[int]) -> str:
    names = dict.fromkeys(os.fsdecode(catalog.name(it)) for it in pieces)
    return f"{' with '.join(names)} {catalog.where(pieces[0])}".rstrip()
