"""The wire format of protobuf messages [1]: fields in place, and the numbers of repeated fields.

Messages are accepted and refused as by protobuf's C++ parser in DALI 2.4, except messages in
unrequested fields: these are skipped, not parsed.

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
"""The deepest nesting of messages and groups."""

_LONG = re.compile(rb"[\x80-\xff]{10}")  # no varint is longer than 10 bytes, the last is < 128


class MalformedError(ValueError):
    """Malformed bytes of a message; the text has the reason and the position."""


def fields(b: memoryview, p: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """Return the tag, start and stop of each field of the message at bytes p to `end`.

    Start and stop are positions of the content in `b`. Groups and messages may be nested `depth`
    times.

    Raises:
        MalformedError: the bytes are not a message.
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
    """Return the tag at p and the position after the tag. Only 32 bits of five bytes count."""
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
        raise MalformedError(f"a field at byte {start} is longer than its message")
    return start, p


def _group(b: memoryview, tag: int, p: int, end: int, depth: int) -> int:
    """Return the end of a group: a tag of its number. Groups are unknown here, and skipped."""
    if not depth:
        raise MalformedError(f"groups are nested too deep at byte {p}")
    while True:
        inner, p = _tag(b, p)
        if inner == tag + 1:
            return p
        _, p = _content(b, inner, p, end, depth - 1)


def varint(b: bytes | memoryview, p: int, longest: int) -> tuple[int, int]:
    """Return the number at p, of `longest` bytes at most, and the position after the number."""
    value, bits = b[p], 7
    while value >> bits:  # the highest bit of a byte: another byte follows
        if bits == 7 * longest:
            raise MalformedError(f"a number does not end at byte {p}")
        p += 1
        value += (b[p] - 1) << bits
        bits += 7
    return value, p + 1


def require_words(start: int, stop: int, size: int) -> None:
    """Refuse packed numbers of `size` bytes each with a truncated last number."""
    if (stop - start) % size:
        raise MalformedError(f"numbers are cut off at byte {stop}")


def require_varints(b: memoryview, start: int, stop: int) -> None:
    """Refuse packed varints with a truncated last number, or a number that is too long."""
    is_long = stop - start > 10 and _LONG.search(b, start, stop)
    if start < stop and (b[stop - 1] > 127 or is_long):
        raise MalformedError(f"numbers are cut off at byte {stop}")


def signed32(b: memoryview, p: int) -> int:
    """Return the int32 at p: the low 32 bits of a varint."""
    return (varint(b, p, 10)[0] + (1 << 31)) % (1 << 32) - (1 << 31)


def numbers(parts: Sequence[bytes], floats: bool) -> tuple[NDArray[Any], IntArray]:
    """Return the packed numbers of n records, float32 or int64, and their counts, int64[n]."""
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    encoded = np.frombuffer(bytearray().join(parts), np.uint8)
    return (encoded.view("<f4"), sizes // 4) if floats else _varints(encoded, sizes)


def arrays(values: NDArray[Any], counts: IntArray, shape: tuple[int, ...] = ()) -> Contents:
    """Return an array of shape (k, *shape) for each record, from `counts` of the values.

    The rows of one array, if all counts are equal.
    """
    if (counts == counts[0]).all():
        return values.reshape(counts.size, counts[0] // prod(shape), *shape)
    ends = np.cumsum(counts)
    bounds = zip((ends - counts).tolist(), ends.tolist(), strict=True)
    return [values[start:end].reshape(-1, *shape) for start, end in bounds]


def _varints(encoded: NDArray[np.uint8], sizes: IntArray) -> tuple[NDArray[Any], IntArray]:
    """Decode the varints of all records, which have `sizes` bytes; return numbers and counts.

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
