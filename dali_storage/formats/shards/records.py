"""Shards of records: the catalog of a data set, and the columns of a batch.

MDS and litData share one layout, little-endian. A shard of n samples:

    0    uint32         n
    4    uint32[n + 1]  the start of each record, and the end of the file
    ...                 in MDS its configuration: JSON text up to the first start
    ...                 the records

A record has a uint32 for the size of each column whose size is stored, then the values of all
columns, without padding.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import index as integer
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog, join_path
from ...contract.errors import ContainerChangedError, RecordError, os_error
from ...contract.format import Format, Output
from ...contract.views import SMALL, Contents, Views
from ..files import LOCAL, Files, assembled, noting_states, sizes
from ..lists import below, parsed
from ..pieces import typed

_TRAILER = 8  # bytes
_AGAIN = "it is truncated, damaged, or of another data set than its index: copy both again"


class ShardEntry(NamedTuple):
    """A shard: its path below the directory of the index, and the possible lengths of its file.

    `hint` is the remedy if the file is missing, or "".
    """

    name: str
    samples: int
    sizes: Collection[int]
    hint: str = ""


class Column(NamedTuple):
    """A column of all records.

    Attributes:
        name, dtype: the name, and the type of the values.
        shape: the shape of the values; None: one dimension, of any length.
        is_stored: whether the size is stored in each record.
        refused: why its bytes are no values of `dtype`, and the remedy; "": they are.
    """

    name: str
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    shape: tuple[int, ...] | None = None
    is_stored: bool = True
    refused: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of each value; -1 if they vary."""
        return -1 if self.shape is None else math.prod(self.shape) * self.dtype.itemsize


class ShardIndex(NamedTuple):
    """The content of an index.json; the columns are in the order of their values in a record.

    Attributes:
        is_configured: whether shards have a configuration before the records.
        trailers: messages for files that end with these 8 bytes, and so have no records.
    """

    shards: Sequence[ShardEntry]
    columns: tuple[Column, ...]
    is_configured: bool = False
    trailers: Mapping[bytes, str] = {}


Parse: TypeAlias = Callable[[str, Any], ShardIndex]
"""Makes the index of a directory, as text, from its JSON value.

Any error of `_INCOMPLETE` means that the value is not complete.
"""
_INCOMPLETE = AttributeError, IndexError, KeyError, RecursionError, TypeError, json.JSONDecodeError


def find(root: bytes, wanted: Sequence[str], parse: Parse, files: Files = LOCAL) -> Catalog:
    """Find the samples of the data set at `root`, in the order of its index and of its shards.

    The sidecar of the catalog has "layout": the tuple of all `Column`s. `wanted` are the names of
    those to be read. `files` reads the index and the tables. Raises as `readers.mds`.
    """
    index = read(root, parse, files)
    shards, about = [it for it in index.shards if it.samples], f"path {os.fsdecode(root)!r}"
    if not shards:
        raise ValueError(f"{about} has no samples")
    known = {it.name: it for it in index.columns}
    for name in wanted:
        if name not in known:
            raise ValueError(f"{about} has no column {name!r}: it has {[*known]!s:.400}")
        if why := known[name].refused:
            raise ValueError(f"{about}, column {name!r}: {why}; or read other columns")
    listed = join_path(root, b"index.json")
    names = [join_path(root, below(listed, it.name)) for it in shards]
    try:
        found = noting_states(files.catalog(names))
        places = _places(found, index, shards, files)
    except FileNotFoundError as error:
        missing = os.fsencode(error.filename or "")
        if hint := dict(zip(names, (it.hint for it in shards), strict=True)).get(missing):
            raise os_error(errno.ENOENT, missing, hint) from None
        raise
    found = assembled(found, places)
    found.sidecar["layout"] = index.columns
    return found


def read(root: bytes, parse: Parse, files: Files = LOCAL) -> ShardIndex:
    """Read the index of the data set at `root`; raises as `find()`."""
    path = join_path(root, b"index.json")
    with files.opened([path]) as opened:
        entries = parsed(path, next(opened).read(), "the shards of a data set")
    about, remedy = repr(os.fsdecode(path)), "it is truncated or damaged: copy it again"
    try:
        index = parse(os.fsdecode(root), entries)
        numbers = [integer(it) for each in index.shards for it in (each.samples, *each.sizes)]
        numbers += [integer(it.nbytes) + 1 for it in index.columns]
    except _INCOMPLETE as error:
        what = f"{about} lacks an entry ({type(error).__name__}: {error})"
        raise ValueError(f"{what}; {remedy}, or write it by the format's own writer") from None
    if min(numbers, default=0) < 0:
        raise ValueError(f"{about} has a negative number of samples or bytes; {remedy}")
    return index


def _places(
    found: Catalog, index: ShardIndex, shards: Sequence[ShardEntry], files: Files
) -> list[tuple[IntArray, IntArray]]:
    """Return the starts and sizes of the records of each shard."""
    ends = sizes(found).tolist()
    tables = [(number, 0, 4 * (it.samples + 2)) for number, it in enumerate(shards)]
    for (number, _, size), shard, end in zip(tables, shards, ends, strict=True):
        if end not in shard.sizes or end < size:
            told = " or ".join(f"{it:,}" for it in shard.sizes)
            what = f"it has {end:,} bytes, not {told} for {shard.samples:,} samples"
            raise ContainerChangedError(found.file_path(number), what, _AGAIN)
    places = []
    for (number, _, size), head in zip(tables, files.parts(found, tables), strict=True):
        count, *_ = words = np.frombuffer(head.ljust(size, b"\0"), "<u4").astype(np.int64)
        starts, lengths, end = words[1:-1], np.diff(words[1:]), ends[number]
        is_first = starts[0] >= size if index.is_configured else starts[0] == size
        if count == starts.size and is_first and words[-1] == end and (lengths >= 0).all():
            places.append((starts, lengths))
            continue
        path = found.file_path(number)
        (trailer,) = files.parts(found, [(number, end - _TRAILER, _TRAILER)])
        if trailer in index.trailers:
            raise ValueError(f"{os.fsdecode(path)!r}: {index.trailers[trailer]}")
        what = f"its table of {count:,} offsets is not one of {starts.size:,} samples"
        raise ContainerChangedError(path, f"{what} in {end:,} bytes", _AGAIN)
    return places


class ShardColumns(Format):
    """The chosen columns of a record."""

    labels = False

    def __init__(self, operator: str, columns: Sequence[str]) -> None:
        self.operator, self.schema = operator, operator.title()
        self.outputs = [Output(None, None)] * len(columns)
        self.named, self._columns = range(len(columns)), columns

    def described(self, catalog: Catalog) -> Sequence[Output]:
        """See `Describes`."""
        known = {it.name: it for it in catalog.sidecar["layout"]}
        return [
            Output(it.dtype, 1 if it.shape is None else len(it.shape), encoded=it.shape is None)
            for it in map(known.__getitem__, self._columns)
        ]

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return the columns; raise RecordError if the sizes in a record are not those it has."""
        layout: Sequence[Column] = catalog.sidecar["layout"]
        sized, wrong = _sizes(layout, views)
        for sample in delivered[wrong][:1].tolist():
            what = f"{catalog.where(sample)}, but the sizes of its columns do not fit"
            raise RecordError(catalog.path(sample), f"{what}; the shard is damaged: copy it again")
        starts = (views.offsets + views.sizes)[:, None] - sized[:, ::-1].cumsum(1)[:, ::-1]
        numbers = {it.name: number for number, it in enumerate(layout)}
        return [
            _values(Views(views.buffer, starts[:, it], sized[:, it]), layout[it])
            for it in map(numbers.__getitem__, self._columns)
        ]


def _sizes(layout: Sequence[Column], views: Views) -> tuple[IntArray, NDArray[np.bool_]]:
    """Return the sizes of the values, int64[n, columns], and which of the n records are wrong."""
    expected = np.array([it.nbytes for it in layout])
    stored = [number for number, it in enumerate(layout) if it.is_stored]
    sized, head = np.tile(expected, (views.sizes.size, 1)), 4 * len(stored)
    if (short := views.sizes < head).any():
        return sized, short
    if head:
        sized[:, stored] = views.gather(head).view("<u4")
    odd = (sized != expected) & (expected >= 0) | (sized % [it.dtype.itemsize for it in layout] > 0)
    return sized, odd.any(axis=1) | (sized.sum(axis=1) + head != views.sizes)


def _values(views: Views, column: Column) -> Contents:
    """Return values aligned to their type, which no record is: bytes in place, others as copies."""
    shape, dtype = column.shape, column.dtype
    if shape is None:
        contents = typed(views.contents(), dtype)
        is_aligned = dtype.itemsize == 1 or isinstance(contents, np.ndarray)
        return contents if is_aligned else [np.array(it) for it in contents]
    if dtype.itemsize == 1 and column.nbytes > SMALL:
        return [np.ndarray(shape, dtype, it) for it in views.slices()]
    return views.gather(column.nbytes).view(dtype).reshape(-1, *shape)
