"""A catalog as a file, which all processes of a machine map: `python -m dali_storage index ROOT`.

The file is written once, is never changed, and is replaced by renaming. It has the columns of a
`Catalog`, mapped read-only. So opening takes milliseconds at any length, and all processes share
the pages of the page cache. The layout, little-endian:

    0       8 bytes   "DALISIDX"
    8       uint32    bytes of the header
    12      uint32    CRC-32 of the header
    16      the header: a JSON object in ASCII
    ...     zeros up to the next multiple of 64: the start of the data
    data    columns, each at a multiple of 64, with zeros in between; the last one ends the file

The header has these members. Bytes are text in UTF-8; other bytes are surrogates, as in PEP 383.

    version    1, of this layout
    root       the base of relative names: a URL or an absolute path
    filters    of the listing: file_filters, dir_filters (null: all), case_sensitive_filter
    checksum   `Catalog.checksum()`, which opening must not compute
    columns    {name: {"dtype": of numpy, "offset": in the data, "length": in elements, "crc32"}}

    names      |u1[k]     the names of all files, one after another
    offsets    <i8[n + 1] file i has the bytes offsets[i] to offsets[i + 1] - 1 of the names
    labels     <i4[n]
    sizes      <i8[n]     bytes of each object; objects only
    versions   |S1 to |S256[n]  the ETag of each object, padded with zeros; objects only

Opening checks the header, its CRC, the bounds of all columns and the file's length, and reads no
column. `verify()` compares the CRCs of columns. With any damage to columns, an access outside of
them raises a Python exception. Truncating a mapped index in place kills the process (SIGBUS), as
for any mapped file: replace indexes by renaming, as `save()` does.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from bmap_tools.atomic import replacing

from ..contract._types import PathLike
from ..contract.catalog import Catalog, open_nonblocking
from ..contract.errors import named
from ..contract.objects import scheme
from .patterns import path_bytes

LAYOUT = 1
"""The version of the layout."""

LONGEST_VERSION = 256
"""Bytes of an object's version; an ETag of S3 has 34 or a few more."""

_MAGIC = b"DALISIDX"
_START = struct.Struct("<8sII")
_ALIGNMENT = 64
_TYPES = {"names": "|u1", "offsets": "<i8", "labels": "<i4", "sizes": "<i8", "versions": "|S"}
_WRONG = ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError


class CatalogFile:
    """An open index, mapped until neither this object nor its catalog is referenced.

    Attributes:
        path: the path of the file.
        root: the base of relative names: a URL or an absolute path.
        filters: see the layout.
    """

    def __init__(self, path: PathLike) -> None:
        """Open and check the file; read its header only.

        Raises:
            OSError: the file cannot be opened.
            ValueError: the file is not an index, is damaged or truncated, or has another layout.
        """
        self.path = os.fsdecode(path_bytes("index", path))
        self._memory = _map(self.path)
        start = bytes(self._memory[: _START.size])
        if not start.startswith(_MAGIC):
            what = f"{self.path!r} is neither a directory nor an index of samples"
            raise ValueError(f"{what}; make one with python -m dali_storage index ROOT -o FILE")
        _, length, crc = _START.unpack(start.ljust(_START.size, b"\0"))
        text = bytes(self._memory[_START.size : _START.size + length])
        if zlib.crc32(text) != crc:
            raise self._damaged("the header is truncated or has a wrong CRC-32")
        self._data = _aligned(_START.size + length)
        try:
            header = json.loads(text)
            layout = header["version"]
            if layout == LAYOUT:
                self._parse(header)
        except _WRONG as error:
            raise self._damaged(f"the header is wrong ({error})") from None
        if layout != LAYOUT:
            what = f"unsupported layout version {layout!r} (this release reads {LAYOUT})"
            raise ValueError(f"index {self.path!r}: {what}; rebuild the index")

    def catalog(self) -> Catalog:
        """Return the catalog; its columns are views of the mapped file."""
        columns: dict[str, Any] = self._columns | {"names": self._columns["names"].data}
        return Catalog(self.root, **columns).knowing(self._checksum)

    def verify(self) -> None:
        """Read all columns and compare their CRCs.

        Raises:
            ValueError: a column is damaged; names the column.
        """
        for name, column in self._columns.items():
            if zlib.crc32(column.data) != self._crcs[name]:
                raise self._damaged(f"column {name!r} has a wrong CRC-32")

    def _parse(self, header: dict[str, Any]) -> None:
        self.root: bytes = header["root"].encode("utf-8", "surrogateescape")
        self.filters: dict[str, Any] = dict(header["filters"])
        self._checksum = int(header["checksum"])
        about: dict[str, dict[str, Any]] = header["columns"]
        self._crcs = {name: int(each["crc32"]) for name, each in about.items()}
        columns = {name: self._column(name, **each) for name, each in about.items()}
        offsets, names = columns["offsets"], columns["names"]
        lengths = {len(columns[name]) for name in {"labels", *columns} - {"names", "offsets"}}
        if lengths != {len(offsets) - 1} or offsets[0] != 0 or offsets[-1] != len(names):
            raise ValueError("the lengths of columns do not match")
        end = self._data + max(
            each["offset"] + columns[name].nbytes for name, each in about.items()
        )
        if end != len(self._memory):
            raise ValueError(f"the file has {len(self._memory):,} bytes, not {end:,}")
        self._columns = columns

    def _column(
        self, name: str, dtype: str, offset: int, length: int, crc32: int
    ) -> npt.NDArray[Any]:
        kind, start = np.dtype(dtype), self._data + offset
        stop = start + kind.itemsize * length
        if not kind.str.startswith(_TYPES[name]) or not 0 < kind.itemsize <= LONGEST_VERSION:
            raise ValueError(f"column {name!r} is of type {dtype!r}")
        if offset % _ALIGNMENT or not self._data <= start <= stop <= len(self._memory):
            size = len(self._memory)
            raise ValueError(f"column {name!r} is at {start} to {stop} of {size} bytes")
        return np.frombuffer(self._memory[start:stop], kind, length)

    def _damaged(self, what: str) -> ValueError:
        return ValueError(f"index {self.path!r} is damaged: {what}; rebuild the index")


def save(catalog: Catalog, path: PathLike, filters: Mapping[str, Any]) -> None:
    """Write a catalog of whole files to `path`; an old file is replaced by the complete new one.

    `filters` is the member of the layout.

    Raises:
        ValueError: the catalog has no samples or no labels, or samples are ranges; the root is a
            relative path; or the version of an object is too long.
        OSError: the file cannot be written.
    """
    columns = _columns(catalog)
    about: dict[str, dict[str, Any]] = {}
    end = 0
    for name, column in columns.items():
        start = _aligned(end)
        about[name] = {"dtype": column.dtype.str, "offset": start, "length": len(column)}
        about[name]["crc32"] = zlib.crc32(column.data)
        end = start + column.nbytes
    header = {
        "version": LAYOUT,
        "root": catalog.root.decode("utf-8", "surrogateescape"),
        "filters": dict(filters),
        "checksum": catalog.checksum(),
        "columns": about,
    }
    text = json.dumps(header).encode("ascii")
    with replacing(os.fsdecode(path)) as file:
        file.write(_START.pack(_MAGIC, len(text), zlib.crc32(text)) + text)
        for column in columns.values():
            file.write(bytes(-file.tell() % _ALIGNMENT))
            file.write(column.data)


def _map(path: str) -> memoryview:
    with named(os.fsencode(path)), open(path, "rb", opener=open_nonblocking) as file:
        if not os.fstat(file.fileno()).st_size:  # cannot be mapped
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _columns(catalog: Catalog) -> dict[str, npt.NDArray[Any]]:
    """Return the columns in the byte order of the file."""
    root = os.fsdecode(catalog.root)
    if catalog.ranges is not None or not 0 < len(catalog) == len(catalog.labels):
        raise ValueError(f"{root!r}: an index needs whole files with labels, at least one")
    if not root.startswith("/") and not scheme(catalog.root):
        raise ValueError(f"{root!r} is a relative path; give an absolute one for an index")
    if (versions := catalog.versions) is not None and versions.itemsize > LONGEST_VERSION:
        longest = int(np.char.str_len(versions).argmax())
        what = f"the ETag has more than {LONGEST_VERSION} bytes, the limit of an index"
        raise ValueError(f"{os.fsdecode(catalog.file_path(longest))!r}: {what}")
    names = np.frombuffer(catalog.names, np.uint8)
    columns = names, catalog.offsets, catalog.labels, catalog.sizes, versions
    return {
        name: np.ascontiguousarray(column, column.dtype.newbyteorder("<"))
        for name, column in zip(_TYPES, columns, strict=True)
        if column is not None
    }


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
