""".npz files of numpy.savez(): zip archives of .npy files that are not compressed.

Python's zipfile parses their directories, as in numpy.load(). The data of a member follow a header
of their own (PKWARE's APPNOTE.TXT, 4.3.7), whose length is not in the directory.
"""

from __future__ import annotations

import errno
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.format import Output
from ...contract.objects import scheme
from ...contract.ranges import Ranges
from ...contract.views import Contents, Views
from ..files import LOCAL, Files, noting_states
from ..kinds import OneKind
from .header import Npy

_HEADER = struct.Struct("<4s2x2H16x2H")  # magic; flags, method; lengths of the name and of more
_ENCRYPTED, _PATCH, _UTF8 = 0x2041, 0x20, 0x800  # flags
_TAIL, _LONGEST = 1 << 12, 1 << 26  # bytes at the end of a file, in which the directory is sought


def find(catalog: Catalog, members: Sequence[str], verify: bool, files: Files = LOCAL) -> Catalog:
    """Add ranges to a catalog of archives: a piece for each of `members`, its whole .npy file.

    Only directories are read, and the headers of these members. With `verify`, the sidecar has
    "crc32": uint32[archives * members].

    Raises:
        ValueError: a file is not an archive, or is damaged; or a member is missing, compressed or
            encrypted.
        OSError: an archive cannot be read.
    """
    if catalog.sizes is None and scheme(catalog.path(0)):
        catalog = files.catalog(catalog.file_paths(np.arange(catalog.file_count)))
    found = noting_states(catalog)
    sizes = found.sizes if found.states is None else found.states[:, 1]
    ends: list[int] = [] if sizes is None else sizes.tolist()
    tails = files.parts(found, [(it, max(end - _TAIL, 0), _TAIL) for it, end in enumerate(ends)])
    chosen = list[zipfile.ZipInfo]()
    for file, (end, tail) in enumerate(zip(ends, tails, strict=True)):
        known = _directory(files, found, file, end, tail)
        chosen += [_stored(found.file_path(file), known, it) for it in members]
    which = np.repeat(np.arange(found.file_count), len(members))
    places = [
        (file, it.header_offset, _HEADER.size + len(it.orig_filename.encode()))
        for file, it in zip(which.tolist(), chosen, strict=True)
    ]
    starts = np.empty(len(chosen), np.int64)
    heads = zip(places, chosen, files.parts(found, places), strict=True)
    for row, ((file, at, _), member, head) in enumerate(heads):
        starts[row] = start = at + _header_size(member, head)
        if start == at or start + member.file_size > ends[file]:
            raise _damaged(found.file_path(file), f"{member.filename!r} is not at its place")
    ranges = Ranges.of_columns(which, starts, np.array([it.file_size for it in chosen], np.int64))
    found = replace(found, ranges=ranges, pieces=len(members))
    if verify:
        found.sidecar["crc32"] = np.array([it.CRC for it in chosen], np.uint32)
    return found


def _directory(
    files: Files, catalog: Catalog, file: int, end: int, tail: bytes
) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a file of `end` bytes by their names; `tail` are its last bytes."""
    size = _TAIL
    while True:
        try:
            known = zipfile.ZipFile(_End(tail, end)).NameToInfo
            break
        except Exception as error:  # zipfile does not document the types
            if size >= min(end, _LONGEST):
                what = f"it has no valid directory of a zip ({error})"
                raise _damaged(catalog.file_path(file), what) from None
        size *= 128
        tail = next(files.parts(catalog, [(file, max(end - size, 0), size)]))
    for member in known.values():
        if not 0 <= member.header_offset < end:
            raise _damaged(catalog.file_path(file), f"{member.filename!r} is not in the file")
    return known


class _End(BytesIO):
    """The last bytes of a file, at their places: directories of zip64 have some of these."""

    def __init__(self, tail: bytes, nbytes: int) -> None:
        super().__init__(tail)
        self._nbytes, self._missing = nbytes, nbytes - len(tail)

    def seek(self, position: int, whence: int = os.SEEK_SET) -> int:
        place = position if whence == os.SEEK_SET else self._nbytes + position
        if place < 0:
            raise OSError(errno.EINVAL, "before the start")  # zipfile knows what that means
        return self._missing + super().seek(place - self._missing)  # ValueError before the tail

    def tell(self) -> int:
        return self._missing + super().tell()


def _stored(path: bytes, known: Mapping[str, zipfile.ZipInfo], name: str) -> zipfile.ZipInfo:
    """Return a member whose bytes are in the file as they are."""
    found = known.get(name) or known.get(f"{name}.npy")  # in the order of numpy.load()
    about = f"{os.fsdecode(path)!r}: the member {name!r}"
    if found is None:
        has = ", ".join(repr(it.removesuffix(".npy")) for it in known) or "none"
        raise ValueError(f"{about} is missing; the file has {has:.400}: correct members")
    if found.flag_bits & _ENCRYPTED:
        raise ValueError(f"{about} is encrypted; write the file with numpy.savez()")
    if found.compress_type or found.flag_bits & _PATCH:
        what = f"is compressed (method {found.compress_type} of zip)"
        remedy = "write the file with numpy.savez() instead of numpy.savez_compressed()"
        raise ValueError(f"{about} {what}; {remedy}")
    if found.file_size != found.compress_size:
        raise _damaged(path, f"{name!r} is not compressed, but has two sizes")
    return found


def _header_size(member: zipfile.ZipInfo, head: bytes) -> int:
    """Return the bytes before the data of a member; 0 if `head` does not begin its header."""
    if len(head) < _HEADER.size:
        return 0
    magic, flags, method, length, more = _HEADER.unpack_from(head)
    name = member.orig_filename.encode("utf-8" if flags & _UTF8 else "cp437", "replace")
    if magic != b"PK\3\4" or flags & (_ENCRYPTED | _PATCH) or method:
        return 0
    is_same = length == len(name) and head[_HEADER.size :].startswith(name)
    return _HEADER.size + length + more if is_same else 0


def _damaged(path: bytes, what: str) -> ValueError:
    remedy = "the file is truncated, damaged or not of numpy.savez(): write it again"
    return ValueError(f"{os.fsdecode(path)!r}: {what}; {remedy}")


class Npz(Npy):
    """An array for each member; see `Npy`."""

    operator = "npz"
    schema = "Npz"

    def __init__(self, members: Sequence[str]) -> None:
        super().__init__()
        self._members = members
        self._kinds = [OneKind(f"the array {it!r}") for it in members]
        self.outputs, self.named = [Output(None, None)] * len(members), range(len(members))

    def decode(self, catalog: Catalog, delivered: IntArray, views: Views) -> Sequence[Contents]:
        """Return the arrays of each member; raise RecordError as `Npy`, or for a wrong CRC-32."""
        count = catalog.pieces
        return [
            self._arrays(catalog, delivered * count + it, views.every(count, it), kind)
            for it, kind in enumerate(self._kinds)
        ]

    def _array(self, catalog: Catalog, sample: int, content: memoryview) -> NDArray[Any]:
        crcs = catalog.sidecar.get("crc32")
        try:
            if crcs is not None and zlib.crc32(content) != crcs[sample]:
                raise ValueError("its CRC-32 is wrong; the file is damaged: copy it again")
            return super()._array(catalog, sample, content)
        except ValueError as error:
            name = self._members[sample % catalog.pieces]
            what = str(error).replace("numpy.save()", "numpy.savez()")
            raise ValueError(f"the array {name!r}: {what}") from None
