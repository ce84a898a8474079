"""Writes LMDB files by py-lmdb, and records of Caffe and Caffe2 as their .proto files say."""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import lmdb

from tests.kit.containers import message, numbered, varint

FLOAT, INT32, BYTE, STRING, DOUBLE, INT64 = 1, 2, 3, 4, 9, 10
"""Types of Caffe2's TensorProto; for all but DOUBLE, which is 13 there, see `FIELDS`."""
FIELDS = {FLOAT: 3, INT32: 4, BYTE: 5, STRING: 6, DOUBLE: 9, INT64: 10}


def write_lmdb(directory: Path, values: Iterable[bytes]) -> Path:
    """An LMDB of values in their order, in a new directory; returns its path."""
    options = {"map_size": 1 << 28, "sync": False}
    with lmdb.open(str(directory), **options) as base, base.begin(write=True) as transaction:
        for number, value in enumerate(values):
            transaction.put(b"%08d" % number, value)
    return directory


def number(field: int, value: int) -> bytes:
    """A field of protobuf that is a varint."""
    return varint(field << 3) + varint(value)


def datum(
    data: bytes | None = None,
    label: int | None = None,
    encoded: bool | None = None,
    shape: Sequence[int] = (),
) -> bytes:
    """Caffe's Datum; `shape` is channels, height and width. What is None is left out."""
    parts = [number(field, size) for field, size in enumerate(shape, 1)]
    parts += [] if data is None else [message(4, data)]
    parts += [] if label is None else [number(5, label)]
    parts += [] if encoded is None else [number(7, encoded)]
    return b"".join(parts)


def tensor(
    kind: int | None, values: Sequence[Any] | bytes, dims: Sequence[int] = (), packed: bool = True
) -> bytes:
    """A TensorProto in its TensorProtos; without a type for None, which then is FLOAT."""
    parts = [number(1, size) for size in dims]
    parts += [] if kind is None else [number(2, kind)]
    field = FIELDS[kind or FLOAT]
    if isinstance(values, bytes):
        return message(1, b"".join(parts) + message(field, values))
    if kind == STRING:
        return message(1, b"".join(parts + [message(field, value) for value in values]))
    is_float = kind in (None, FLOAT)
    items = [struct.pack("<f", it) if is_float else varint(it) for it in values]
    tag = varint(field << 3 | (5 if is_float else 0))
    several = message(field, b"".join(items)) if packed else b"".join(tag + it for it in items)
    return message(1, b"".join(parts) + several)


def write_numbered(reader: str, directory: Path, counts: Sequence[int]) -> dict[str, Any]:
    """The argument of a reader: databases with so many records each, whose labels count them."""
    make = {
        "lmdb": lambda label: b"%d" % label,
        "caffe": lambda label: datum(b"x", label, True),
        "caffe2": lambda label: tensor(STRING, [b"x"]) + tensor(INT32, [label]),
    }[reader]
    paths = [
        str(write_lmdb(directory / f"{place}.{reader}", map(make, group)))
        for place, group in enumerate(numbered(counts))
    ]
    return {"path": paths}
