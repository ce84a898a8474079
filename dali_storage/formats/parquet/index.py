"""Indexes of Parquet files: the places of the values of all columns of bytes.

An index is little-endian:

    0    8 bytes   "DALIPARQ"
    8    uint32    the version of this layout: 1
    12   uint32    CRC-32 of the rest
    16   uint32    bytes of the header
    20   the header, JSON: {"bytes", "changed_ns", "footer_crc32", "version", "columns", "rows"};
         the file's time of modification and an object's version, as text, may be null
    ...  for each column int64[rows], the starts of the values, and int32[rows], their sizes; the
         size of a null is -1
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from ...contract.catalog import Catalog
from ...contract.errors import ContainerChangedError
from ..sealed import REMEDY, sealed, unsealed
from .pages import Places

if TYPE_CHECKING:
    from .footer import Footer  # imports pyarrow

_HEADER = struct.Struct("<I")
_FRAME = b"DALIPARQ", 1  # the magic number, and the layout


class Index(NamedTuple):
    """What an index says: the state of its file, and the places of values by column."""

    state: Mapping[str, Any]
    places: Mapping[str, Places]


def matches(head: bytes) -> bool:
    """Return whether `head` may begin a Parquet file, also an encrypted one."""
    return head.startswith((b"PAR1", b"PARE"))


def state(footer: Footer, catalog: Catalog, file: int) -> dict[str, Any]:
    """Return what identifies the content of a file or an object."""
    changed_ns = version = None
    if catalog.versions is not None:
        version = catalog.versions[file].decode("latin-1")
    elif catalog.states is not None:
        seconds, rest = catalog.states[file, 2:].tolist()
        changed_ns = seconds * 10**9 + rest
    known = {"bytes": footer.nbytes, "footer_crc32": footer.crc}
    return known | {"changed_ns": changed_ns, "version": version}


def written(known: Mapping[str, Any], places: Mapping[str, Places]) -> list[bytes]:
    """Return the parts of an index."""
    rows = [len(sizes) for _, sizes in places.values()]
    header = json.dumps({**known, "columns": [*places], "rows": rows[0]}).encode()
    parts = [_HEADER.pack(len(header)), header]
    for starts, sizes in places.values():
        parts += starts.astype("<i8").tobytes(), sizes.astype("<i4").tobytes()
    return sealed(_FRAME, parts)


def read_index(path: bytes, file: BinaryIO) -> Index:
    """Read an index.

    Raises:
        ValueError: not an index of a Parquet file, a damaged one, or another layout.
        OSError: the index cannot be read.
    """
    content = unsealed("index_paths", path, file, _FRAME, "a Parquet file")
    at = _HEADER.size + _HEADER.unpack_from(content)[0]
    known, places = json.loads(content[_HEADER.size : at]), {}
    for column in known["columns"]:
        starts = np.frombuffer(content, "<i8", known["rows"], at)
        sizes = np.frombuffer(content, "<i4", known["rows"], at + starts.nbytes)
        at += starts.nbytes + sizes.nbytes
        places[column] = starts.astype(np.int64), sizes.astype(np.int64)
    return Index(known, places)


def places_in(
    index: Index, index_path: bytes, path: bytes, now: Mapping[str, Any], columns: Sequence[str]
) -> list[Places]:
    """Return the places of some columns, if the file is still in the state `now`.

    A time or a version is compared if both have it: a local file and its copy in a store may share
    an index.

    Raises:
        ContainerChangedError: the index is of another file, or of another state of its file.
        ValueError: the index lacks a column.
    """
    name = f"index {os.fsdecode(index_path)!r}"
    both = [key for key in now if None not in (now[key], index.state.get(key))]
    if any(now[key] != index.state[key] for key in both):
        what = f"{name} is of another file, or the file was written since, or copied without its"
        raise ContainerChangedError(path, f"{what} time (cp -p keeps the time); {REMEDY}")
    for column in columns:
        if column not in index.places:
            raise ValueError(f"{name} has no column {column!r}; {REMEDY}")
    return [index.places[column] for column in columns]
