"""RecordIO files of MXNet: images with labels, and one index of all files.

The layout follows MXNet's recordio.cc and image_recordio.h. The samples, and the file of each in
DALI's count, follow DALI's loader/recordio_loader.h.
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
    """Find the records of `paths`, which count as one long file, by their common index.

    A record ends at the start of the next one, and has a piece for each of its files. All records
    get as many pieces as the record with the most files.

    Raises:
        OSError: a file cannot be accessed.
        ValueError: the index is malformed, or belongs to other files.
    """
    found = files.catalog(paths)
    stops = np.cumsum(sizes(found), dtype=np.int64)
    with files.opened([index]) as opened:
        offsets = _parse_index(index, next(opened).read(), int(stops[-1]))
    ends = np.append(offsets[1:], stops[-1])
    some = ends > offsets
    if not some.any():
        raise ValueError(f"index_path {os.fsdecode(index)!r} has only empty records")
    counts = _counts(offsets, some, stops)
    offsets, ends = offsets[some, None], ends[some, None]
    # Files that end at or before a byte are before the file of this byte.
    first = np.searchsorted(stops, offsets, "right")
    pieces = int((np.searchsorted(stops, ends - 1, "right") - first).max()) + 1
    bounds = np.concatenate(([0], stops, np.repeat(stops[-1:], pieces)))  # of files, and beyond
    which = first + np.arange(pieces)
    starts = np.maximum(offsets, bounds[which])
    lengths = np.maximum(np.minimum(ends, bounds[which + 1]) - starts, 0)  # 0: no piece
    starts -= bounds[which]
    rows = [each.ravel() for each in (np.minimum(which, len(paths) - 1), starts, lengths)]
    return replace(found, ranges=Ranges.of_columns(*rows), pieces=pieces, containers=counts)


def _counts(offsets: IntArray, some: NDArray[np.bool_], stops: IntArray) -> IntArray:
    """Count the `some` records of each file as DALI does: int64[files].

    DALI moves on by one file at a record at or after the end of the current file, and does not look
    at the last record: alone in its file, this record counts for the file before.
    """
    number = np.arange(offsets.size)
    ahead = np.searchsorted(stops, offsets, "right") - number
    counted = number + np.minimum(np.minimum.accumulate(ahead), 1)
    counted[-1] = counted[-2] if offsets.size > 1 else 0
    return np.bincount(counted[some], minlength=stops.size).astype(np.int64)


def _parse_index(path: bytes, text: bytes, nbytes: int) -> IntArray:
    """Return the offsets of records in `nbytes` of all files, ascending: int64[n].

    An index is pairs of a key and an offset, between white space. Keys are ignored.
    """
    name, remedy = f"index_path {os.fsdecode(path)!r}", "rebuild the index"
    if other := text.translate(None, b"0123456789 \t\n\v\f\r"):
        number = text.count(b"\n", 0, text.index(other[:1]))
        line = text.split(b"\n")[number][:80]
        what = f"expected a key and an offset, not {line!r}"
        raise ValueError(f"{name}, line {number + 1}: {what}; {remedy}")
    numbers = np.fromstring(text, np.int64, sep=" ") if text.strip() else np.empty(0, np.int64)
    if not numbers.size or numbers.size % 2:
        what = f"expected pairs of a key and an offset, not {numbers.size} numbers"
        raise ValueError(f"{name}: {what}; {remedy}")
    offsets = numbers[1::2]
    for beyond in np.flatnonzero(offsets > nbytes)[:1].tolist():
        what = f"record {beyond + 1} begins at {offsets[beyond]:,}"
        what = f"{what}, but the files have {nbytes:,} bytes together"
        raise ValueError(f"{name}: {what}; give the files of this index, or {remedy}")
    return np.sort(offsets)


class RecordIO(Format):
    """The image and the label or labels of a record."""

    operator = "mxnet"
    schema = "MXNet"
    outputs = (Output(), Output(np.dtype(np.float32)))
    labels = False

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return images, uint8, and labels, float32; raise RecordError for a malformed record."""
        images, labels, contents = [], [], views.slices()
        for slot, row in enumerate((delivered * catalog.pieces).tolist()):
            pieces = contents[slot * catalog.pieces : (slot + 1) * catalog.pieces]
            some = [piece for piece in pieces if len(piece)]
            record = some[0] if len(some) == 1 else np.frombuffer(bytearray().join(some), np.uint8)
            try:
                image, label = parse(record)
            except ValueError as error:
                what = f"{catalog.where(row)}: {error}; the file is damaged, or not the file of the"
                raise RecordError(catalog.path(row), f"{what} index: rebuild both") from None
            images.append(image)
            labels.append(label)
        return _packed(images, np.dtype(np.uint8)), _packed(labels, np.dtype(np.float32))


def _packed(items: Sequence[Any], dtype: np.dtype[Any]) -> Contents:
    """Make arrays of 1 dimension from n items: one array for small items of equal size."""
    size = len(items[0])
    if size <= SMALL and all(len(item) == size for item in items):
        shape = len(items), size // dtype.itemsize
        return np.ndarray(shape, dtype, bytearray().join(items))
    return items if dtype == np.uint8 else [np.frombuffer(item, dtype) for item in items]


def parse(record: Any) -> tuple[Any, Any]:
    """Return the image of a record and the bytes of its labels; slices of a record in one part.

    An image with the magic number at a multiple of 4 bytes was cut into parts there.

    Raises:
        ValueError: the record is not of an image, or is shorter than its header says.
    """
    first, kind, at = _part(record, 0)
    data = first[_HEADER.size :]
    if len(first) < _HEADER.size:
        raise ValueError(f"its first part has {len(first)} bytes, too few for an image header")
    count, *_ = _HEADER.unpack_from(first)
    if count * 4 > len(data):
        raise ValueError(f"its header says {count:,} labels, but {len(data):,} bytes follow")
    if kind != _WHOLE:
        parts = [data]
        while kind != _LAST:
            part, kind, at = _part(record, at)
            parts += _MAGIC, part
        if at > len(record):
            raise ValueError(f"its last part is not padded to {at:,} bytes")
        data = np.frombuffer(bytearray().join(parts), np.uint8)
    return (data[count * 4 :], data[: count * 4]) if count else (data, first[4:8])


def _part(record: Any, at: int) -> tuple[Any, int, int]:
    """Return the data of the part at a byte of a record, its kind, and the next part's position."""
    if at + _PART.size > len(record):
        raise ValueError(f"it has {len(record):,} bytes, but a part begins at {at:,}")
    magic, word = _PART.unpack_from(record, at)
    if magic != _MAGIC:
        raise ValueError(f"{magic!r} at {at:,} in it is not the magic number {_MAGIC!r}")
    end = at + _PART.size + (word & _LENGTH)
    if end > len(record):
        raise ValueError(f"it has {len(record):,} bytes, but its part at {at:,} ends at {end:,}")
    return record[at + _PART.size : end], word >> 29, -(-end // 4) * 4
