"""The wire format of protobuf messages [1]: fields in place, and the numbers of repeated fields.

Messages are accepted and refused as by protobuf's parser for C++, which DALI 2.4 has, but for
messages in fields that nobody asks for: these are skipped, and not parsed.

[1] https://protobuf.dev/programming-guides/encoding
"""

import re
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.views import Contents

NESTED = 100
"""How deep messages and groups may be nested."""

_LONG = re.compile(rb"[\x80-\xff]{10}")  # no varint is longer than 10 bytes, the last is < 128


class MalformedError(ValueError):
    """The bytes are not a message; the text says what is wrong and where."""


def fields(b: memoryview, p: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """The tag of each field of the message at bytes p to `end`, and where its content is.

    That is two positions in `b`, of the first byte and behind the last. Groups and messages may be
    nested `depth` times.

    Raises:
        MalformedError: it is no message.
        IndexError: `b` ends within a field.
    """
    found = []
    while p < end:
        tag, start = b[p], p + 1
        if not 7 < tag < 128:
            tag, start = _tag(b, p)
        if tag & 7 or b[start] > 127 or start >= end:
            start, p = _content(b, tag, start, end, depth)
        else:  # a number of one byte
            p = start + 1
        found.append((tag, start, p))
    return found


def _tag(b: memoryview, p: int) -> tuple[int, int]:
    """The tag at p and the position behind it. Of five bytes, only 32 bits count."""
    tag, behind = varint(b, p, 5)
    tag &= 0xFFFFFFFF
    if tag < 8:
        raise MalformedError(f"a field has the number 0 at byte {p}")
    return tag, behind


def _content(b: memoryview, tag: int, p: int, end: int, depth: int) -> tuple[int, int]:
    start = p
    match tag & 7:
        case 0:
            _, p = varint(b, p, 10)
        case 1:
            p += 8
        case 2:
            size, start = varint(b, p, 5)
            p = start + size
        case 3:
            p = _group(b, tag, p, end, depth)
        case 5:
            p += 4
        case _:
            raise MalformedError(f"a field has no type at byte {p}")
    if p > end:
        raise MalformedError(f"a field at byte {start} is longer than what it is in")
    return start, p


def _group(b: memoryview, tag: int, p: int, end: int, depth: int) -> int:
    """Where a group ends: with a tag of its number. Groups are unknown here, and skipped."""
    if not depth:
        raise MalformedError(f"groups are nested too deep at byte {p}")
    while True:
        inner, p = _tag(b, p)
        if inner == tag + 1:
            return p
        _, p = _content(b, inner, p, end, depth - 1)


def varint(b: bytes | memoryview, p: int, longest: int) -> tuple[int, int]:
    """The number at p, of `longest` bytes at most, and the position behind it."""
    value, bits = b[p], 7
    while value >> bits:  # the highest bit of a byte says that another follows
        if bits == 7 * longest:
            raise MalformedError(f"a number does not end at byte {p}")
        p += 1
        value += (b[p] - 1) << bits
        bits += 7
    return value, p + 1


def require_words(start: int, stop: int, size: int) -> None:
    """Refuse packed numbers of `size` bytes each, of which the last is cut off."""
    if (stop - start) % size:
        raise MalformedError(f"numbers are cut off at byte {stop}")


def require_varints(b: memoryview, start: int, stop: int) -> None:
    """Refuse packed varints of which the last is cut off, or one is too long."""
    is_long = stop - start > 10 and _LONG.search(b, start, stop)
    if start < stop and (b[stop - 1] > 127 or is_long):
        raise MalformedError(f"numbers are cut off at byte {stop}")


def signed32(b: memoryview, p: int) -> int:
    """The int32 at p: of a varint, only 32 bits count."""
    return (varint(b, p, 10)[0] + (1 << 31)) % (1 << 32) - (1 << 31)


def numbers(parts: Sequence[bytes], floats: bool) -> tuple[NDArray[Any], IntArray]:
    """The packed numbers of n records, and how many each has: float32 or int64, and int64[n]."""
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    encoded = np.frombuffer(bytearray().join(parts), np.uint8)
    return (encoded.view("<f4"), sizes // 4) if floats else _varints(encoded, sizes)


def arrays(values: NDArray[Any], counts: IntArray, shape: tuple[int, ...] = ()) -> Contents:
    """An array of shape (k, *shape) for each record, which has so many of the values.

    They are the rows of one array if all have equally many.
    """
    if (counts == counts[0]).all():
        return values.reshape(counts.size, counts[0] // prod(shape), *shape)
    ends = np.cumsum(counts)
    bounds = zip((ends - counts).tolist(), ends.tolist(), strict=True)
    return [values[start:end].reshape(-1, *shape) for start, end in bounds]


def _varints(encoded: NDArray[np.uint8], sizes: IntArray) -> tuple[NDArray[Any], IntArray]:
    """The numbers in varints of all records, which have `sizes` bytes, and how many each has.

    Each byte has 7 bits, the low ones first; the 10th has one bit [1].

    [1] https://protobuf.dev/programming-guides/encoding/#varints
    """
    is_last = encoded < 128
    if is_last.all():
        return encoded.astype(np.int64), sizes
    stops = np.flatnonzero(is_last) + 1
    starts = np.concatenate(([0], stops[:-1]))
    shifts = np.arange(encoded.size) - np.repeat(starts, stops - starts)
    bits = (encoded & np.uint8(127)).astype(np.uint64) << (7 * shifts).astype(np.uint64)
    values = np.bitwise_or.reduceat(bits, starts).view(np.int64)
    ends = np.searchsorted(stops, np.cumsum(sizes), "right")
    return values, np.diff(ends, prepend=0)
