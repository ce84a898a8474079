"""The frame of our own indexes: 16 bytes, little-endian, before the rest.

0    8 bytes   a magic number
8    uint32    the version of the layout
12   uint32    CRC-32 of the rest
"""

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import BinaryIO

from ..contract.errors import named

REMEDY = "rebuild the index (python -m dali_storage index)"
_START = struct.Struct("<8sII")


def sealed(frame: tuple[bytes, int], parts: Sequence[bytes]) -> list[bytes]:
    """Return the parts of an index: its frame, and the parts of the rest."""
    return [_START.pack(*frame, zlib.crc32(b"".join(parts))), *parts]


def unsealed(
    argument: str,
    path: bytes,
    file: BinaryIO,
    frame: tuple[bytes, int],
    kind: str,
    fits: Callable[[int], bool] = bool,
) -> bytes:
    """Read the rest of an index of `kind`, which a user has named by `argument`.

    `frame` is the magic number and the layout; `fits` tests the size of the rest in bytes.

    Raises:
        ValueError: another kind of file, a damaged one, or another layout.
        OSError: the index cannot be read.
    """
    magic, layout = frame
    with named(path):
        content = file.read()
    name = f"{argument} {os.fsdecode(path)!r}"
    if not content.startswith(magic):
        raise ValueError(f"{name} is not an index of {kind}; {REMEDY}")
    _, found, crc = _START.unpack(content[: _START.size].ljust(_START.size, b"\0"))
    if found != layout:
        raise ValueError(f"{name} has layout {found}, this release reads {layout}; {REMEDY}")
    rest = content[_START.size :]
    if not fits(len(rest)) or zlib.crc32(rest) != crc:
        raise ValueError(f"{name} is damaged: truncated, or with a wrong CRC-32; {REMEDY}")
    return rest
