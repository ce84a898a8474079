"""The footer of a Parquet file, which pyarrow parses: its columns, and what is refused of them."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from .pages import Chunk, Leaf, Request

Read = Callable[[Sequence[Request]], Sequence[bytes]]
"""Returns the bytes at places in a file; fewer at its end."""

_END = struct.Struct("<I4s")  # the bytes of the footer, and the magic number
_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"
_TAIL = 1 << 16  # bytes at the end of a file, which are read first
_STORED = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_BYTES = {"BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"}
AGAIN = "copy or download the file again"


class Footer(NamedTuple):
    """The footer of a file.

    Attributes:
        metadata: pyarrow's FileMetaData.
        nbytes: the bytes of the file.
        crc: the CRC-32 of the footer's bytes.
    """

    metadata: Any
    nbytes: int
    crc: int

    @property
    def leaves(self) -> list[str]:
        """The names of all columns that have values, as pyarrow's `path_in_schema`."""
        schema = self.metadata.schema
        return [schema.column(number).path for number in range(len(schema))]

    @property
    def features(self) -> dict[str, Any]:
        """The features that the package datasets has written into the schema; or none."""
        text = (self.metadata.metadata or {}).get(b"huggingface")
        try:
            found = json.loads(text)["info"]["features"] if text else {}
        except (KeyError, RecursionError, TypeError, ValueError):
            found = {}
        return found if isinstance(found, dict) else {}


def matches(head: bytes) -> bool:
    """Return whether `head` may begin a Parquet file."""
    return head.startswith((_MAGIC, _ENCRYPTED))


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
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + content))
    except (OSError, pa.ArrowException) as error:
        raise ValueError(f"its footer is damaged ({error}): {AGAIN}") from None
    # Of an encrypted column pyarrow must not be asked: that ends the process. With one, a signature
    # of 28 bytes follows a footer that is not encrypted itself.
    if metadata.serialized_size != size:
        raise ValueError("the file has encrypted columns; write it without encryption")
    return Footer(metadata, nbytes, zlib.crc32(content))


def leaf_of(footer: Footer, column: str) -> Leaf:
    """Return the column of bytes of this name, or `column.bytes` of a struct.

    Raises:
        ValueError: there is no such column; its values are not bytes, or are lists; or they are not
            in the file as they are, but compressed, say. Has the remedy.
    """
    paths, schema = footer.leaves, footer.metadata.schema
    path = next((it for it in (column, f"{column}.bytes") if it in paths), None)
    if path is None:
        within = [number for number, it in enumerate(paths) if it.startswith(f"{column}.")]
        if any(schema.column(number).max_repetition_level for number in within):
            raise ValueError(f"the column {column!r} has lists; a sample must be one value")
        raise ValueError(f"there is no column {column!r} of bytes; there are {_shown(paths)}")
    number = paths.index(path)
    about = schema.column(number)
    if about.max_repetition_level:
        raise ValueError(f"the column {path!r} has lists; a sample must be one value")
    kind = about.logical_type.type
    if about.physical_type not in _BYTES or kind != "NONE":
        has = about.physical_type if kind == "NONE" else kind
        what = f"the column {path!r} has values of type {has}, not bytes"
        raise ValueError(f"{what}; there are {_shown(paths)}")
    chunks = [it for it in _chunks(footer, number, path) if it.rows]
    fixed = about.length if about.physical_type.startswith("FIXED") else 0
    return Leaf(path, about.max_definition_level, fixed, chunks)


def leaves_of_bytes(footer: Footer) -> list[Leaf]:
    """Return all columns that `leaf_of()` accepts.

    Raises:
        ValueError: there are none; the reason is that of the first column of bytes.
    """
    found, refused = [], [ValueError(f"no column has bytes; there are {_shown(footer.leaves)}")]
    for number, path in enumerate(footer.leaves):
        about = footer.metadata.schema.column(number)
        if about.physical_type in _BYTES and about.logical_type.type == "NONE":
            try:
                found.append(leaf_of(footer, path))
            except ValueError as error:
                refused.append(error)
    if not found:
        raise refused[:2][-1]
    return found


def _chunks(footer: Footer, number: int, path: str) -> list[Chunk]:
    """Return the chunks of a column, also those without rows, whose places mean nothing."""
    found = []
    for group in range(footer.metadata.num_row_groups):
        rows = footer.metadata.row_group(group).num_rows
        it = footer.metadata.row_group(group).column(number)
        start, _ = place_of(it)
        end = start + it.total_compressed_size
        how = f"{it.compression}, row group {group}"
        if it.compression != "UNCOMPRESSED":
            raise ValueError(f"the column {path!r} is compressed ({how}); {_remedy(path)}")
        if other := {*it.encodings} - _STORED:
            how = f"{', '.join(sorted(other))}, row group {group}"
            raise ValueError(f"the column {path!r} is not stored plainly ({how}); {_remedy(path)}")
        if rows and end > footer.nbytes:
            what = f"the file has {footer.nbytes:,} bytes, fewer than its footer says ({end:,})"
            raise ValueError(f"{what}: {AGAIN}")
        if rows < 0 or it.num_values != rows or (rows and not len(_MAGIC) <= start < end):
            raise ValueError(f"row group {group} of {path!r} is wrong in the footer: {AGAIN}")
        found.append(Chunk(start, end, rows))
    return found


def place_of(chunk: Any) -> Request:
    """Return the place of a chunk, which begins with the dictionary if there is one."""
    start = chunk.data_page_offset
    if chunk.dictionary_page_offset and chunk.dictionary_page_offset < start:  # some writers say 0
        start = chunk.dictionary_page_offset
    return start, chunk.total_compressed_size


def _remedy(path: str) -> str:
    return (
        "its values must be in the file as they are: write it without compression and with PLAIN "
        "encoding (pyarrow: compression='none', use_dictionary=False), or rewrite it by "
        f"python -m dali_storage unpack FILES -o DIR --column {path}"
    )


def _shown(paths: Sequence[str]) -> str:
    return ", ".join(map(repr, paths[:100])) or "none"
