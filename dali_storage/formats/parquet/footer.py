"""The footer of a Parquet file: its columns, and what is refused of them.

pyarrow parses the schema. Chunks of columns are parsed here: pyarrow 26 ends the process when it is
asked for one that is encrypted or damaged.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .compact import Compact, Fields, number_in
from .pages import Chunk, Leaf, Request

Read = Callable[[Sequence[Request]], Sequence[bytes]]
"""Returns the bytes at places in a file; fewer at its end."""

_END = struct.Struct("<I4s")  # the bytes of the footer, and the magic number
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_TAIL = 1 << 16  # bytes at the end of a file, which are read first
_CODECS = "UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"
_DELTA = {5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"}
_STORED = {0, 2, 3, 4, 8}  # encodings: PLAIN, of levels, and indices into a dictionary
_BYTES = {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}
_WRONG = LookupError, OSError, RecursionError, TypeError, ValueError, pa.ArrowException
AGAIN = "copy or download the file again"


class Footer(NamedTuple):
    """The footer of a file.

    Attributes:
        metadata: pyarrow's FileMetaData.
        groups: the row groups, as fields of Thrift.
        nbytes: the bytes of the file.
        crc: the CRC-32 of the footer's bytes.
    """

    metadata: Any
    groups: Sequence[Fields]
    nbytes: int
    crc: int

    @property
    def leaves(self) -> list[str]:
        """The names of all columns that have values, as pyarrow's `path_in_schema`."""
        schema = self.metadata.schema
        return [schema.column(number).path for number in range(len(schema))]


def read_footer(read: Read, nbytes: int) -> Footer:
    """Read the footer of a file of `nbytes` bytes.

    Raises:
        ValueError: the file is not Parquet, is truncated or encrypted; has the remedy.
    """
    if not nbytes:
        raise ValueError("the file is empty")
    (tail,) = read([(max(nbytes - _TAIL, 0), _TAIL)])
    size, magic = _END.unpack(tail[-_END.size :].rjust(_END.size, b"\0"))
    if tail.startswith(b"version https://git-lfs"):
        raise ValueError("the file is a pointer of Git LFS, not the data: run git lfs pull")
    if magic == _ENCRYPTED:
        raise ValueError("the file is encrypted; write it without encryption")
    if magic != _MAGIC or size + _END.size + len(_MAGIC) > nbytes:
        raise ValueError(f"the file is not Parquet, or is truncated: {AGAIN}")
    if size + _END.size > len(tail):
        (tail,) = read([(nbytes - size - _END.size, size + _END.size)])
    if len(tail) < min(size + _END.size, nbytes):
        raise ValueError(f"the file is truncated: {AGAIN}")
    content = tail[len(tail) - size - _END.size :]
    try:
        fields = Compact(content[:size]).fields()
        groups = fields.get(4, [])
        is_encrypted = 8 in fields or any(8 in chunk for group in groups for chunk in group[1])
        metadata = None if is_encrypted else pq.read_metadata(pa.BufferReader(_MAGIC + content))
    except _WRONG as error:
        raise ValueError(f"its footer is damaged ({error}): {AGAIN}") from None
    if is_encrypted:
        raise ValueError("the file has encrypted columns; write it without encryption")
    return Footer(metadata, groups, nbytes, zlib.crc32(content))


def number_of(footer: Footer, column: str) -> int:
    """Return the number of the column of bytes of this name, or of `column.bytes` of a struct.

    Raises:
        ValueError: there is no such column, or its values are not bytes, or are lists.
    """
    paths = footer.leaves
    path = next((it for it in (column, f"{column}.bytes") if it in paths), column)
    schema, all_of_them = footer.metadata.schema, ", ".join(map(repr, paths[:100]))
    within = [n for n, it in enumerate(paths) if f"{it}.".startswith(f"{path}.")]
    if any(schema.column(number).max_repetition_level for number in within):
        raise ValueError(f"the column {path!r} has lists; a sample must be one value")
    if path not in paths:
        raise ValueError(f"there is no column {column!r} of bytes; there are {all_of_them}")
    number = paths.index(path)
    if not _has_bytes(schema.column(number)):
        about = schema.column(number)
        kind = about.physical_type if about.logical_type.type == "NONE" else about.logical_type.type
        what = f"the column {path!r} has values of type {kind}, not bytes"
        raise ValueError(f"{what}; there are {all_of_them}")
    return number


def numbers_of_bytes(footer: Footer) -> list[int]:
    """Return the numbers of all columns of bytes; ValueError if there are none."""
    schema = footer.metadata.schema
    columns = map(schema.column, range(len(schema)))
    found = [n for n, it in enumerate(columns) if _has_bytes(it) and not it.max_repetition_level]
    if not found:
        raise ValueError(f"no column has bytes; there are {', '.join(map(repr, footer.leaves))}")
    return found


def _has_bytes(about: Any) -> bool:
    return about.physical_type in _BYTES and about.logical_type.type == "NONE"


def leaf_of(footer: Footer, number: int) -> Leaf:
    """Return a column of bytes, whose values must be in the file as they are.

    Raises:
        ValueError: they are compressed, or encoded otherwise; has the remedy. Or as `chunks_of()`.
    """
    about, chunks = footer.metadata.schema.column(number), chunks_of(footer, number)
    for it in chunks:
        how = [_DELTA.get(each, str(each)) for each in sorted(it.encodings - _STORED)]
        if it.codec or how:
            what = codec_name(it.codec) if it.codec else ", ".join(how)
            raise ValueError(
                f"the values of the column {about.path!r} are not in the file as they are ({what});"
                " write them without compression and PLAIN (pyarrow: compression='none', "
                "use_dictionary=False), or rewrite the file by python -m dali_storage unpack FILE "
                f"-o DIR --column {about.path}"
            )
    fixed = about.length if about.physical_type.startswith("FIXED") else 0
    return Leaf(about.path, about.max_definition_level, fixed, chunks)


def codec_name(codec: int) -> str:
    """Return the name of a compression in the footer."""
    return _CODECS[codec] if codec < len(_CODECS) else str(codec)


def chunks_of(footer: Footer, number: int) -> list[Chunk]:
    """Return the chunks of a column in the row groups with rows.

    Raises:
        ValueError: the footer is damaged, or the file is truncated.
    """
    found = []
    for group, fields in enumerate(footer.groups):
        try:
            rows, about = number_in(fields, 3), fields[1][number][3]
            if not rows:  # then there need not be a page, and the places mean nothing
                continue
            start, dictionary = number_in(about, 9), about.get(11)
            # Some writers give the dictionary the place 0.
            if type(dictionary) is int and 0 < dictionary < start:
                start = dictionary
            end, codec = start + number_in(about, 7), number_in(about, 4)
            encodings = frozenset(map(int, about[2]))
            index = fields[1][number].get(4), fields[1][number].get(5)
            is_wrong = not len(_MAGIC) <= start < end or 1 in fields[1][number]
        except (AttributeError, *_WRONG) as error:
            raise ValueError(f"row group {group} is damaged ({error}): {AGAIN}") from None
        if is_wrong:
            raise ValueError(f"row group {group} has wrong places, or other files: {AGAIN}")
        if end > footer.nbytes:
            what = f"the file has {footer.nbytes:,} bytes, fewer than its footer says ({end:,})"
            raise ValueError(f"{what}: {AGAIN}")
        is_there = [*map(type, index)] == [int, int] and 0 < index[0] < sum(index) <= footer.nbytes
        found.append(Chunk(start, end, rows, codec, encodings, index if is_there else None))
    return found
