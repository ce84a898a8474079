"""`python -m dali_storage receipt PATH -o FILE`: the receipt of a data set.

`receipt compare FILE EPOCH` compares it with the receipt of an epoch, or with a JSON list of the
receipts of all ranks. FILE has JSON: the receipt, the reader and its arguments, and the sizes of
the samples. The exit status is 0 if the epoch is complete, 1 if not, 2 if there is no result.
"""

import argparse
import base64
import json
import sys
import zlib
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np

from bmap_tools import console
from bmap_tools.atomic import destination, replacing

from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..receipts.dataset import compare, marks_of, stream_of, suspects
from ..receipts.hashing import above_all, hashed, shown
from ..receipts.values import COLUMNS, Words, combine, receipt_of
from . import reader_options

_SHOWN = 5  # names of a row
_OF_ALL = "source", "epoch", "shard"  # None in the receipt of a data set


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
    except (BackendUnavailable, KeyError, MemoryError, OSError, TypeError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _write(given: argparse.Namespace) -> int:
    destination(given.output)  # before the listing, which may be slow
    made = reader_options.described(given)
    with replacing(given.output) as file:
        catalog, rows, _, hashes = _hashed(made, given.bytes)
        table, nothing = np.zeros((256, COLUMNS), np.uint64), np.zeros(len(rows), np.uint64)
        np.add.at(table, hashes[:, 0] % 256, np.column_stack([nothing + 1, nothing, hashes]))
        mode, whole = "bytes" if given.bytes else "samples", dict.fromkeys(_OF_ALL)
        receipt = receipt_of(table, mode=mode, dataset=catalog.checksum(), **whole)
        made["receipt"] = receipt
        sizes = rows[:, 1 :: 3 if given.bytes else 1]
        made["sizes"] = base64.b64encode(zlib.compress(sizes.astype("<u8").tobytes())).decode()
        file.write(json.dumps(made, indent=1).encode())
    what = f"{len(rows):,} samples, {int(sizes.sum()):,} bytes"
    console.print_result(f"{given.output!r}: {what}, {mode}: {receipt['sum']}")
    return 0


def _compare(given: argparse.Namespace) -> int:
    made, epoch = (_loaded(it) for it in (given.dataset, given.epoch))
    if not isinstance(made, dict) or "receipt" not in made:
        what = "is not the receipt of a data set; make one by `python -m dali_storage receipt`"
        raise ValueError(f"{given.dataset!r} {what}")
    epoch = combine(*(epoch if isinstance(epoch, list) else [epoch]))
    complete, verdict = compare(made["receipt"], epoch)
    console.print_result(verdict)
    if complete:
        return 0
    catalog, rows, above, hashes = _hashed(made, hashes=False)
    then = np.frombuffer(zlib.decompress(base64.b64decode(made["sizes"])), "<u8")
    if (count := made["receipt"]["count"]) != len(rows):
        console.print_result(f"the data set has changed: {count:,} samples then, {len(rows):,} now")
    elif (changed := (then.reshape(rows[:, 1:].shape) != rows[:, 1:]).any(1)).any():
        for sample in np.flatnonzero(changed).tolist():
            console.print_result(f"its size has changed: {shown(catalog, sample, above)}")
    for kind, samples in suspects(made["receipt"], epoch, hashes[:, 0]):
        some = ", ".join(shown(catalog, it, above) for it in samples[:_SHOWN].tolist())
        among = f", among {samples.size:,} names" * (samples.size != 1)
        console.print_result(f"{kind}{among}: {some}{', ...' * (samples.size > _SHOWN)}")
    return 1


def _loaded(path: str) -> Any:
    with open(path, "rb") as file:
        try:
            return json.load(file)
        except ValueError as error:
            raise ValueError(f"{path!r} is not JSON: {error}") from None


def _hashed(made: dict[str, Any], hashes: bool) -> tuple[Catalog, Any, int, Words]:
    """Return the samples of a reader, the marks of all, the path above, and `hashing.hashed()`."""
    opening, found = reader_options.opening_of(made["reader"], made["arguments"]), list[Words]()
    with closing(stream_of(opening, hashes)) as stream:
        catalog = stream.open().catalog
        above = above_all(catalog, np.arange(catalog.delivered))
        with console.bar("hashing", catalog.delivered) as tick:
            for part in marks_of(stream):
                found.append(part)
                tick(int(part[0, 0]))
    parts = [hashed(catalog, part, [above] * len(part)) for part in found]
    return catalog, np.concatenate(found), above, np.concatenate(parts)
