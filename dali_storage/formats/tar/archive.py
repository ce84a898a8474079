"""Tars: the places of their files.

The rules follow DALI's libtar, but pax headers are read, too, and sizes of 8 GiB and more.
Formats: POSIX pax(1), and "Basic Tar Format" in the manual of GNU tar.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...contract.catalog import open_regular
from ...contract.errors import named
from ..files import compressed

BLOCK = 512
REGULAR = b"0\x007"  # also contiguous files
_NO_FILES = b"123456"  # links, devices, directories, FIFOs
_RECORDS = b"xgLK"  # which describe the next file
_SPARSE = "a sparse file; extract the tar, and make another one without --sparse"
_LONGEST = 16 << 20  # bytes of a pax header or long name
_SIZE = re.compile(rb"[0-9]{1,18}\n")
_UNSAFE = re.compile(rb"/*(?:(?:.*/)?\.\./)?", re.DOTALL)  # the start of a name that libtar removes


class Header(NamedTuple):
    """The contents of a header block. A name of 100 bytes may be cut."""

    kind: int  # of `REGULAR`, for a file
    name: bytes
    size: int


class Member(NamedTuple):
    """A regular file in a tar.

    Attributes:
        name: as in libtar: without leading slashes.
        offset: the start of its data, in bytes.
        size: bytes.
    """

    name: bytes
    offset: int
    size: int


def matches(head: bytes) -> bool:
    """Return whether these 512 bytes begin a tar. Zeros are an empty tar."""
    try:
        return len(head) >= BLOCK and (not any(head) or header(head) is not None)
    except ValueError:
        return False


def header(block: bytes) -> Header:
    """Parse the header in a block.

    Raises:
        ValueError: the checksum is wrong, or the size is not a number.
    """
    rest = block[:148] + b" " * 8 + block[156:]
    written = _number(block[148:156])
    if written != sum(rest) and written != sum(rest) - 256 * sum(byte > 127 for byte in rest):
        raise ValueError("not a tar header: the checksum is wrong")
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0]
    if prefix and block[257:263] == b"ustar\0":  # GNU tar has times there
        name = prefix + b"/" + name
    return Header(block[156], name, _number(block[124:136]))


def _number(field: bytes) -> int:
    """Parse octal digits or, for sizes of 8 GiB and more, base 256."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:])
    digits = field.partition(b"\0")[0].strip()
    if digits.strip(b"01234567"):
        raise ValueError(f"not a tar header: {field!r} should be a number")
    return int(digits or b"0", 8)


def members(path: bytes, progress: Callable[[int], object] = int) -> Iterator[Member]:
    """Yield the regular files of a tar up to two blocks of zeros, as in DALI, or its end.

    Raises:
        ValueError: the tar is damaged, truncated, compressed, or has a sparse file; names the
            offset.
        OSError: the tar cannot be read.
    """
    with open_regular(path) as file, named(path):
        yield from _Walk(file.fileno(), path).members(progress)


class _Walk:
    """A walk through an open tar, from header to header."""

    def __init__(self, fd: int, path: bytes) -> None:
        self._fd, self._path = fd, path
        self._end = os.fstat(fd).st_size
        self._position = 0
        self._name: bytes | None = None  # of the next file, from a record before it
        self._size: int | None = None

    def members(self, progress: Callable[[int], object]) -> Iterator[Member]:
        if not self._end:
            raise self._error("the file is empty")
        zeros = 0
        while zeros < 2 and self._position < self._end:
            block = os.pread(self._fd, BLOCK, self._position)
            if len(block) < BLOCK:
                raise self._error("the file ends within a header: it is truncated; copy it again")
            if not any(block):
                zeros += 1
                self._position += BLOCK
                continue
            zeros = 0
            try:
                found = header(block)
            except ValueError as error:
                raise self._error(compressed(block) or str(error)) from None
            progress(self._position)
            if (member := self._step(found)) is not None:
                yield member

    def _step(self, found: Header) -> Member | None:
        """Go to the next header; return the file, if this header is of one."""
        kind, data = found.kind, self._position + BLOCK
        size = found.size if self._size is None or kind in _RECORDS else self._size
        stored = size
        if size and kind in _NO_FILES:  # some writers give a link a size, but no data
            behind = os.pread(self._fd, BLOCK, data)
            stored = size if behind and not matches(behind) else 0
        following = data + -(-stored // BLOCK) * BLOCK
        if following > self._end:
            raise self._error(f"{size:,} bytes of data, but the file ends: it is truncated")
        if kind in b"xL" and stored > _LONGEST:
            raise self._error(f"a header of {stored:,} bytes; the tar is damaged")
        if kind in b"L":
            self._name = os.pread(self._fd, stored, data).partition(b"\0")[0]
        elif kind in b"x":
            self._read_pax(os.pread(self._fd, stored, data))
        elif kind in b"S":
            raise self._error(_SPARSE)
        self._position = following
        if kind in _RECORDS:
            return None
        name = found.name if self._name is None else self._name
        self._name = self._size = None
        if kind not in REGULAR or (kind == 0 and name.endswith(b"/")):  # a directory, in old tars
            return None
        return Member(_UNSAFE.sub(b"", name, count=1), data, size)

    def _read_pax(self, content: bytes) -> None:
        """Parse records "LENGTH KEY=VALUE" and a line feed, with the length of a whole record."""
        position = 0
        while position < len(content):
            length = content[position : position + 20].partition(b" ")[0]
            end = position + int(length) if length.isdigit() else position
            key, _, value = content[position + len(length) + 1 : end].partition(b"=")
            is_size = key == b"size"
            if (
                end > len(content)
                or value[-1:] != b"\n"
                or (is_size and not _SIZE.fullmatch(value))
            ):
                raise self._error("the pax header is damaged")
            if key.startswith(b"GNU.sparse"):
                raise self._error(_SPARSE)
            if key == b"path":
                self._name = value[:-1]
            elif is_size:
                self._size = int(value)
            position = end

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{os.fsdecode(self._path)!r}, at {self._position:,}: {what}")
