"""The small codings in Parquet files: Thrift's compact protocol, and runs of small integers.

A header is a struct: fields of a number, a type and a value, up to a zero byte. The first byte of a
field has the type in its low 4 bits, and in the high ones the difference from the number before; if
that is 0, the number follows. Integers are varints, most of them in zigzag.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ...contract._types import IntArray

Fields: TypeAlias = dict[int, Any]
"""The fields of a struct by their numbers; None for what is skipped."""

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = 4, 5, 6


class Compact:
    """Reads values from bytes, from `at` on; IndexError if the bytes end too early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def varint(self) -> int:
        """Read an unsigned integer; ValueError if it has more than 64 bits."""
        found = shift = 0
        while shift < 64:
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
        raise ValueError("a number has more than 64 bits")

    def fields(self) -> Fields:
        """Read a struct; ValueError for an unknown type."""
        found, number = Fields(), 0
        while head := self.data[self.at]:
            self.at += 1
            number = number + (head >> 4) if head >> 4 else self._signed()
            found[number] = self._value(head & 15)
        self.at += 1
        return found

    def _signed(self) -> int:
        found = self.varint()
        return (found >> 1) ^ -(found & 1)

    def _value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in _INTEGERS:
            return self._signed()
        if kind == _STRUCT:
            return self.fields()
        if kind in (_LIST, _SET):
            return self._list()
        if kind not in (_BYTE, _DOUBLE, _BINARY):
            raise ValueError(f"a field has the unknown type {kind}")
        size = {_BYTE: 1, _DOUBLE: 8}.get(kind) or self.varint()
        self.at += size  # after varint() has moved it
        return None

    def _list(self) -> list[Any]:
        head = self.data[self.at]
        self.at += 1
        kind, count = head & 15, head >> 4 if head >> 4 < 15 else self.varint()
        if kind in (_TRUE, _FALSE):  # in lists a byte each
            self.at += count
            return []
        return [self._value(kind) for _ in range(count)]


def number_in(fields: Fields, number: int) -> int:
    """Return a field that must be an integer of at least 0; ValueError for another, or none."""
    found = fields.get(number)
    if type(found) is not int or found < 0:
        raise ValueError(f"field {number} is missing or wrong")
    return found


def hybrid(data: bytes, count: int, width: int) -> IntArray:
    """Decode `count` integers of `width` bits, in runs and bit-packed groups of 8: int64[count].

    Raises:
        ValueError: the bytes hold fewer integers, or an integer has more than 32 bits.
        IndexError: the bytes end too early.
    """
    if width > 32:
        raise ValueError(f"integers of {width} bits")
    parts, got, found = [np.empty(0, np.int64)], 0, Compact(data)
    while got < count:
        head = found.varint()
        size = (head >> 1) * width if head & 1 else (width + 7) // 8
        if found.at + size > len(data) or head < 2:
            raise ValueError("a run is empty, or beyond the end of its bytes")
        if head & 1:
            part = _packed(data, found.at, size, width)[: count - got]
        else:
            value = int.from_bytes(data[found.at : found.at + size], "little")
            part = np.full(min(head >> 1, count - got), value, np.int64)
        found.at += size
        parts.append(part)
        got += len(part)
    return np.concatenate(parts)


def _packed(data: bytes, at: int, size: int, width: int) -> IntArray:
    packed = np.frombuffer(data, np.uint8, size, at)
    bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
    wide = np.zeros((len(bits), 32), np.uint8)
    wide[:, :width] = bits
    return np.packbits(wide, axis=1, bitorder="little").view("<u4")[:, 0].astype(np.int64)
