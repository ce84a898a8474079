"""The index of an MDS data set, version 2, as MosaicML Streaming writes it (MDSWriter)."""

import posixpath
import re
from typing import Any

import numpy as np

from .records import Column, ShardEntry, ShardIndex

_RAW = {"bytes", "jpeg", "json", "png", "str", "str_decimal", "str_float", "str_int"}
_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)}
_NUMBERS -= {"float8"}
_ARRAY = re.compile(r"ndarray:(\w+):([1-9]\d{,15}(?:,[1-9]\d{,15})*)")
_REMEDIES = {
    "jpeg_array": "write a column for each image",
    "ndarray": "write it with dtype and shape, such as ndarray:float32:3,4",
    "pil": "write it as jpeg or png",
    "pkl": "pickles are never loaded: write it as json or bytes",
}
_COMMANDS = {"br": "brotli -d", "bz2": "bzip2 -dk", "gz": "gzip -dk", "zstd": "zstd -d"}


def parse(root: str, index: Any) -> ShardIndex:
    """Parse an index, see `records.Parse`. Compressed shards are not read.

    Raises:
        ValueError: it is of another format, or the shards have different columns.
    """
    if "chunks" in index:
        raise ValueError(f"path {root!r} is a data set of litData: use readers.litdata")
    shards, first = list[ShardEntry](), dict[str, Any]()
    for row in index["shards"]:
        raw, packed = row["raw_data"], row["zip_data"]
        about = f"path {root!r}, shard {raw['basename']!r}"
        if (row["format"], row["version"]) != ("mds", 2):
            what = f"{about} is of format {row['format']!r}, version {row['version']!r}"
            raise ValueError(f"{what}; only 'mds', 2 is read: write it by MDSWriter")
        columns = {key: row[f"column_{key}"] for key in ("names", "encodings", "sizes")}
        first = first or columns
        if columns != first:
            what = f"{about} has other columns or encodings than the first shard"
            raise ValueError(f"{what}; make a data set of each kind of shards")
        hint = _hint(root, packed["basename"], row["compression"]) if packed else ""
        shards.append(ShardEntry(raw["basename"], row["samples"], [raw["bytes"]], hint))
    if first and {*map(len, first.values())} != {len({*first["names"]})}:
        raise TypeError("the columns have not one name, encoding and size each")
    each = zip(*first.values(), strict=True)
    return ShardIndex(shards, tuple(_column(*it) for it in each), is_configured=True)


def _hint(root: str, packed: str, compression: str) -> str:
    """Return the remedy for a shard that exists only compressed."""
    codec = compression.partition(":")[0]
    where = posixpath.join(root, posixpath.dirname(packed))
    how = f"{_COMMANDS[codec]} *.{codec}" if codec in _COMMANDS else f"all files *.{codec}"
    return f"; the shards are compressed, and must be decompressed once, in {where!r}: {how}"


def _column(name: str, encoding: str, size: int | None) -> Column:
    kind, dtype, shape = encoding.partition(":")[0], encoding, "1"
    if array := _ARRAY.fullmatch(encoding):
        dtype, shape = array.groups()
    if kind in _RAW and size is None:
        return Column(name)
    if (dtype := "int64" if dtype == "int" else dtype) in _NUMBERS:
        column = Column(name, np.dtype(dtype), tuple(map(int, shape.split(","))), is_stored=False)
        if size == column.nbytes:
            return column
    what = f"the encoding {encoding!r} (size {size}) has no plain values"
    remedy = _REMEDIES.get(kind, "write it as bytes")
    known = None if size is None else (size,)
    return Column(name, shape=known, is_stored=size is None, refused=f"{what}; {remedy}")
