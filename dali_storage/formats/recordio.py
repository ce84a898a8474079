"""RecordIO files of MXNet: images with labels, and one index of all files.

The layout is that of MXNet's recordio.cc and image_recordio.h. Which samples there are, and which
file DALI counts each to, is as in its loader/recordio_loader.h.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import RecordError
from ..contract.format import Format, Output
from ..contract.ranges import Ranges
from ..contract.views import SMALL, Contents, Views
from .files import LOCAL, Files, sizes

_MAGIC = struct.pack("<I", 0xCED7230A)
_PART = struct.Struct("<4sI")  # magic; length and kind of a part
_LENGTH = (1 << 29) - 1  # mask; the upper 3 bits are the kind
_WHOLE, _LAST = 0, 3  # kinds of parts
_HEADER = struct.Struct("<IfQQ")  # count of labels, or 0; the only label; identifier


def find(paths: Sequence[bytes], index: bytes, files: Files = LOCAL) -> Catalog:
    """The records of `paths`, which count as one long file, by their common index.

    A record goes on to the start of the next one. It has a sample of the catalog for each file that
    it lies in; all have as many as the one that lies in most.

    Raises:
        OSError: a file cannot be accessed.
        ValueError: the index is not one, or not of these files.
    """
    found = files.catalog(paths)
    stops = np.cumsum(sizes(found), dtype=np.int64)
    with files.opened([index]) as opened:
        offsets = _parse_index(index, next(opened).read(), int(stops[-1]))
    ends = np.append(offsets[1:], stops[-1])
    some = ends > offsets
    if not some.any():
        raise ValueError(f"index_path {os.fsdecode(index)!r} has no record that is not empty")
    counts = _counts(offsets, some, stops)
    offsets, ends = offsets[some, None], ends[some, None]
    # Files whose end is not behind a byte are before the file of this byte.
    first = np.searchsorted(stops, offsets, "right")
    pieces = int((np.searchsorted(stops, ends - 1, "right") - first).max()) + 1
    bounds = np.concatenate(([0], stops, np.repeat(stops[-1:], pieces)))  # of files, and beyond
    which = first + np.arange(pieces)
    starts = np.maximum(offsets, bounds[which])
    lengths = np.maximum(np.minimum(ends, bounds[which + 1]) - starts, 0)  # what there is not: 0
    starts -= bounds[which]
    rows = [each.ravel() for each in (np.minimum(which, len(paths) - 1), starts, lengths)]
    return replace(found, ranges=Ranges.of_columns(*rows), pieces=pieces, containers=counts)


def _counts(offsets: IntArray, some: NDArray[np.bool_], stops: IntArray) -> IntArray:
    """int64[files], how many of `some` records DALI counts to each file.

    It goes on by one file at a record that is not before the end of the current file, and does not
    look at the last record: where that is the only one of its file, the file before has it.
    """
    number = np.arange(offsets.size)
    ahead = np.searchsorted(stops, offsets, "right") - number
    counted = number + np.minimum(np.minimum.accumulate(ahead), 1)
    counted[-1] = counted[-2] if offsets.size > 1 else 0
    return np.bincount(counted[some], minlength=stops.size).astype(np.int64)


def _parse_index(path: bytes, text: bytes, nbytes: int) -> IntArray:
    """int64[n], the offsets of records in `nbytes` of all files, ascending.

    An index is pairs of a key and an offset, between white space. Keys mean nothing.
    """
    name, remedy = f"index_path {os.fsdecode(path)!r}", "make the index anew"
    if other := text.translate(None, b"0123456789 \t\n\v\f\r"):
        number = text.count(b"\n", 0, text.index(other[:1]))
        line = text.split(b"\n")[number][:80]
        what = f"expected a key and an offset, not {line!r}"
        raise ValueError(f"{name}, line {number + 1}: {what}; {remedy}")
    numbers = np.fromstring(text, np.int64, sep=" ") if text.strip() else np.empty(0, np.int64)
    if not numbers.size or numbers.size % 2:
        what = f"it has {numbers.size} numbers, and needs pairs of a key and an offset"
        raise ValueError(f"{name}: {what}; {remedy}")
    offsets = numbers[1::2]
    for beyond in np.flatnonzero(offsets > nbytes)[:1].tolist():
        what = f"record {beyond + 1} begins at {offsets[beyond]:,}"
        what = f"{what}, and the files have {nbytes:,} bytes together"
        raise ValueError(f"{name}: {what}; give it with its own files, or {remedy}")
    return np.sort(offsets)


class RecordIO(Format):
    """The image and the label or labels of a record."""

    operator = "mxnet"
    schema = "MXNet"
    outputs = (Output(), Output(np.dtype(np.float32)))
    labels = False

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Images, uint8, and labels, float32; raises RecordError for what is no such record."""
        images, labels, contents = [], [], views.slices()
        for slot, row in enumerate((delivered * catalog.pieces).tolist()):
            pieces = contents[slot * catalog.pieces : (slot + 1) * catalog.pieces]
            some = [piece for piece in pieces if len(piece)]
            record = some[0] if len(some) == 1 else np.frombuffer(bytearray().join(some), np.uint8)
            try:
                image, label = parse(record)
            except ValueError as error:
                what = f"{catalog.where(row)}: {error}; the file is damaged, or not that of the"
                raise RecordError(catalog.path(row), f"{what} index: make both anew") from None
            images.append(image)
            labels.append(label)
        return _packed(images, np.dtype(np.uint8)), _packed(labels, np.dtype(np.float32))


def _packed(items: Sequence[Any], dtype: np.dtype[Any]) -> Contents:
    """The bytes of n items as arrays of 1 dimension: one for all if they are small and equal."""
    size = len(items[0])
    if size <= SMALL and all(len(item) == size for item in items):
        shape = len(items), size // dtype.itemsize
        return np.ndarray(shape, dtype, bytearray().join(items))
    return items if dtype == np.uint8 else [np.frombuffer(item, dtype) for item in items]


def parse(record: Any) -> tuple[Any, Any]:
    """The image of a record and the bytes of its labels; of a record in one part, as slices.

    An image that has the magic number at a multiple of 4 bytes was cut into parts there.

    Raises:
        ValueError: it is no record of an image, or shorter than it says.
    """
    first, kind, at = _part(record, 0)
    data = first[_HEADER.size :]
    if len(first) < _HEADER.size:
        raise ValueError(f"its first part has {len(first)} bytes, and no header of an image")
    count, *_ = _HEADER.unpack_from(first)
    if count * 4 > len(data):
        raise ValueError(f"it should have {count:,} labels, and has {len(data):,} bytes for them")
    if kind != _WHOLE:
        parts = [data]
        while kind != _LAST:
            part, kind, at = _part(record, at)
            parts += _MAGIC, part
        if at > len(record):
            raise ValueError(f"its last part should be filled up to {at:,} bytes")
        data = np.frombuffer(bytearray().join(parts), np.uint8)
    return (data[count * 4 :], data[: count * 4]) if count else (data, first[4:8])


def _part(record: Any, at: int) -> tuple[Any, int, int]:
    """The data of the part at a byte of a record, its kind, and where the next part begins."""
    if at + _PART.size > len(record):
        raise ValueError(f"it has {len(record):,} bytes, and a part should begin at {at:,}")
    magic, word = _PART.unpack_from(record, at)
    if magic != _MAGIC:
        raise ValueError(f"{magic!r} at {at:,} of it is not the magic number {_MAGIC!r}")
    end = at + _PART.size + (word & _LENGTH)
    if end > len(record):
        raise ValueError(f"it has {len(record):,} bytes, and its part at {at:,} ends at {end:,}")
    return record[at + _PART.size : end], word >> 29, -(-end // 4) * 4
