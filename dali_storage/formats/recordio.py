"""RecordIO files of MXNet: images with labels, and one index of all files.

The layout is that of MXNet's recordio.cc and image_recordio.h. Which samples there are, and which
file DALI counts each to, is as in its loader/recordio_loader.h.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._types import IntArray
from ..catalog import Catalog
from ..contents import Contents, Format, Output, packed
from ..errors import RecordError, named
from ..ranges import Ranges

_MAGIC = struct.pack("<I", 0xCED7230A)
_HEADER = struct.Struct("<4sIIfQQ")  # magic, length and kind of a part; count, label, identifier
_PART = struct.Struct("<4sI")
_LENGTH = (1 << 29) - 1  # mask; the upper 3 bits are the kind
_WHOLE, _LAST = 0, 3  # kinds of parts

_LINE = re.compile(rb"\s*(\d+\s+\d+\s*)?")


def find(paths: Sequence[bytes], index: bytes, *, by_container: bool) -> Catalog:
    """The records of `paths`, which count as one long file, by their common index.

    A record goes on to the start of the next one. It has a piece for each file that it lies in; all
    have as many pieces as the one that lies in most.

    Raises:
        OSError: a file cannot be accessed.
        ValueError: the index is not one, or not of these files.
    """
    with named():
        sizes = np.array([os.stat(path).st_size for path in paths], np.int64)
    stops = np.cumsum(sizes)
    offsets = _read_index(index, int(stops[-1]))
    ends = np.append(offsets[1:], stops[-1])
    some = ends > offsets
    if not some.any():
        raise ValueError(f"index_path {os.fsdecode(index)!r} has no record that is not empty")
    # Files whose end is not behind a byte are before the file of this byte.
    first = np.searchsorted(stops, offsets[some], "right")
    last = np.searchsorted(stops, ends[some] - 1, "right")
    pieces = int((last - first).max()) + 1
    files = first[:, None] + np.arange(pieces)
    exists = files <= last[:, None]
    files = np.minimum(files, last[:, None])
    begin = (stops - sizes)[files]
    starts = np.maximum(offsets[some, None] - begin, 0)
    stop = np.minimum(ends[some, None] - begin, sizes[files])
    rows = files.ravel(), np.where(exists, starts, 0).ravel(), np.where(exists, stop - starts, 0)
    return replace(
        Catalog.from_names(paths, ()),
        ranges=Ranges.of_columns(rows[0], rows[1], rows[2].ravel()),
        pieces=pieces,
        containers=_counts(offsets, some, stops) if by_container else None,
    )


def _counts(offsets: IntArray, some: NDArray[np.bool_], stops: IntArray) -> IntArray:
    """int64[files], how many records DALI counts to each file.

    It goes on by one file at a record that is not before the end of the current file, and does not
    look at the last record: where that is the only one of its file, the file before has it.
    """
    true = np.searchsorted(stops, offsets, "right")
    number = np.arange(offsets.size)
    counted = number + np.minimum(np.minimum.accumulate(true - number), 1)
    counted[-1] = counted[-2] if offsets.size > 1 else 0
    return np.bincount(counted[some], minlength=stops.size).astype(np.int64)


def _read_index(path: bytes, nbytes: int) -> IntArray:
    """int64[n], the offsets of records in `nbytes` of all files, ascending.

    An index is pairs of a key and an offset, between white space. Keys mean nothing.
    """
    name = f"index_path {os.fsdecode(path)!r}"
    with open(os.fsdecode(path), "rb") as file:
        text = file.read()
    if text.translate(None, b"0123456789 \t\n\v\f\r"):
        lines = enumerate(text.split(b"\n"), 1)
        number, line = next(it for it in lines if not _LINE.fullmatch(it[1]))
        what = f"expected a key and an offset, not {line[:80]!r}"
        raise ValueError(f"{name}, line {number}: {what}; make the index anew")
    numbers = np.fromstring(text, np.int64, sep=" ") if text.strip() else np.empty(0, np.int64)
    if not numbers.size or numbers.size % 2:
        what = f"it has {numbers.size} numbers, and needs pairs of a key and an offset"
        raise ValueError(f"{name}: {what}; make the index anew")
    for beyond in np.flatnonzero(numbers[1::2] > nbytes)[:1].tolist():
        what = f"record {beyond + 1} begins at {numbers[2 * beyond + 1]:,}"
        what = f"{what}, and the files have {nbytes:,} bytes together"
        raise ValueError(f"{name}: {what}; give it with its own files, or make the index anew")
    return np.sort(numbers[1::2])


class RecordIO(Format):
    """The image and the label or labels of a record."""

    operator = "mxnet"
    schema = "MXNet"
    outputs = (Output(), Output(np.dtype(np.float32)))
    labels = False

    def decode(
        self, catalog: Catalog, delivered: IntArray, contents: Contents
    ) -> Sequence[Contents]:
        """Images, uint8, and labels, float32; raises RecordError for what is no such record."""
        images, labels = [], []
        for number, sample in enumerate(delivered.tolist()):
            row = sample * catalog.pieces
            found = contents[number * catalog.pieces : (number + 1) * catalog.pieces]
            try:
                image, label = parse(found[0] if len(found) == 1 else _joined(found))
            except ValueError as error:
                what = f"{catalog.where(row)}: {error}; the file is damaged, or not that of the"
                raise RecordError(catalog.path(row), f"{what} index: make both anew") from None
            images.append(image)
            labels.append(label)
        return packed(images, np.dtype(np.uint8)), packed(labels, np.dtype(np.float32))


def parse(record: Any) -> tuple[Any, Any]:
    """The image of a record and the bytes of its labels; of a record in one part, as slices.

    An image that has the magic number at a multiple of 4 bytes was cut there.

    Raises:
        ValueError: it is no record of an image, or shorter than it says.
    """
    if len(record) < _HEADER.size:
        raise ValueError(f"a record of an image has at least {_HEADER.size} bytes")
    magic, word, count, _, _, _ = _HEADER.unpack_from(record)
    kind, end = word >> 29, _PART.size + (word & _LENGTH)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}, not with the magic number {_MAGIC!r}")
    if not _HEADER.size <= end <= len(record):
        raise ValueError(f"its first part ends at {end:,}, and it has {len(record):,} bytes")
    data = record[_HEADER.size : end]
    if count * 4 > len(data):
        raise ValueError(f"it should have {count:,} labels, and has {len(data):,} bytes for them")
    if kind != _WHOLE:
        data = _parts(record, kind, data, end)
    return (data[count * 4 :], data[: count * 4]) if count else (data, record[12:16])


def _parts(record: Any, kind: int, data: Any, end: int) -> NDArray[np.uint8]:
    """A copy of all parts of a record of several; the first is `data` and ends at `end`."""
    parts = [data]
    while True:
        at, name = -(-end // 4) * 4, f"part {len(parts) // 2 + 2}"
        if kind == _LAST and at <= len(record):
            return _joined(parts)
        if at + _PART.size > len(record):
            raise ValueError(f"{name} is missing")
        magic, word = _PART.unpack_from(record, at)
        kind, end = word >> 29, at + _PART.size + (word & _LENGTH)
        if magic != _MAGIC or end > len(record):
            raise ValueError(f"{name} has no magic number, or ends at {end:,}")
        parts += _MAGIC, record[at + _PART.size : end]


def _joined(parts: Any) -> NDArray[np.uint8]:
    """A copy of several parts in one; the part itself if the others are empty."""
    some = [part for part in parts if len(part)]
    return some[0] if len(some) == 1 else np.frombuffer(bytearray().join(some), np.uint8)
