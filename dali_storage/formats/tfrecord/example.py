"""`tf.train.Example` in place: where the values of its features are.

A message of protobuf 3 [1]; the schema is TensorFlow's example.proto and feature.proto:

    message Example  { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature  { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2;
                                    Int64List int64_list = 3; } }
    message ...List  { repeated ... value = 1; }        numbers may be packed

Accepted and refused is what the parser of DALI 2.4, protobuf's for C++, accepts and refuses.

[1] https://protobuf.dev/programming-guides/encoding
"""

import re
from collections.abc import Container
from functools import lru_cache
from typing import TypeAlias

BYTES, FLOATS, INTS = 10, 18, 26
"""The kinds of features: the tag of the list in `Feature`."""

Field: TypeAlias = dict[bytes, tuple[int, list[tuple[int, int]]]]
"""The kind of each feature, and where its values start and stop: strings, floats or varints.

One of these parts may have many values, except of strings.
"""

MESSAGE = 10  # the tag of field 1, when it is a message, a string or packed
VALUE = 18  # of an entry of the map
_VALUES = {BYTES: (MESSAGE,), FLOATS: (MESSAGE, 13), INTS: (MESSAGE, 8)}
_NESTED = 100  # how deep messages and groups may be nested, in protobuf
_HEAD = 160  # bytes: enough for what is before the values, if the name is one of < 128
_AHEAD = 512  # bytes, which are copied
_LONG = re.compile(rb"[\x80-\xff]{10}")  # no varint is longer than 10 bytes, the last is < 128


class MalformedError(ValueError):
    """The bytes are not a message; the text says what is wrong and where."""


def find(message: memoryview, wanted: Container[bytes]) -> Field:
    """The features of an Example that are in `wanted`, by name.

    Raises:
        MalformedError: `message` is not an Example, be it in a feature that is not wanted.
    """
    try:
        return _find_common(message, wanted)
    except (IndexError, MalformedError):
        pass  # it is not common, or damaged
    return _find_any(message, wanted)


def _find_common(b: memoryview, wanted: Container[bytes]) -> Field:
    """The same where the map is all there is, and in one piece, as TensorFlow writes it.

    Raises:
        IndexError, MalformedError: it is something else.
    """
    found: Field = {}
    ahead, base, end = bytes(b[:_AHEAD]), 0, len(b)  # bytes are read faster than a view
    size, p = _varint(ahead, 1, 5)
    if ahead[0] != MESSAGE or p + size != end:
        raise MalformedError("the map of features is not all there is")
    while p < end:
        if p - base > _AHEAD - _HEAD:
            ahead, base = bytes(b[p : p + _AHEAD]), p
        at, values = p - base, None
        if ahead[at + 1] < 128:  # and so is every size in it
            key, kind, start, size = _short_head(ahead[at : at + 10 + ahead[at + 3]])
        else:
            key, kind, start, size = _head(ahead[at : at + _HEAD])
        start += p
        p = start + size
        if not kind:
            key, kind, values = _entry(b, start, p)
        elif kind == INTS and size and (size > 10 or b[p - 1] > 127):
            _require_whole(b, kind, start, p)
        if key in wanted:
            found[key] = kind, [(start, p)] if values is None else values
    if p > end:
        raise MalformedError(f"a feature goes beyond byte {end}")
    return found


def _head(h: bytes) -> tuple[bytes, int, int, int]:
    """The name and kind of a feature, and where its values are: the start from here, and the size.

    If they are not in one piece, kind is 0, and start and size are those of the entry of the map.
    """
    if h[0] != MESSAGE:
        raise MalformedError("a field is unknown")
    size, entry = _varint(h, 1, 5)
    try:
        value = entry + 2 + h[entry + 1]
        key, (value_size, kind_at) = h[entry + 2 : value], _varint(h, value + 1, 5)
        kind, (list_size, first) = h[kind_at], _varint(h, kind_at + 1, 5)
        tag, count, start = MESSAGE, 0, first
        if list_size or kind == BYTES:
            tag, (count, start) = h[first], _varint(h, first + 1, 5)
    except IndexError:
        return b"", 0, entry, size
    is_common = h[entry] == tag == MESSAGE and h[value] == VALUE and len(key) < 128
    # What is within ends where the entry ends.
    is_common &= entry + size == kind_at + value_size == first + list_size == start + count
    is_common &= kind in _VALUES and (kind != FLOATS or count % 4 == 0)
    return (key, kind, start, count) if is_common and key.isascii() else (b"", 0, entry, size)


_short_head = lru_cache(4096)(_head)  # what begins small features is the same in many records


def _find_any(b: memoryview, wanted: Container[bytes]) -> Field:
    found: Field = {}
    try:
        for tag, start, stop in _fields(b, 0, len(b), _NESTED):
            for inner, first, last in (
                _fields(b, start, stop, _NESTED - 1) if tag == MESSAGE else ()
            ):
                if inner == MESSAGE:
                    key, kind, values = _entry(b, first, last)
                    if key in wanted:
                        found[key] = kind, values  # of equal names, the last
    except IndexError:
        raise MalformedError(f"a field goes beyond byte {len(b)}") from None
    return found


def _entry(b: memoryview, start: int, stop: int) -> tuple[bytes, int, list[tuple[int, int]]]:
    """The name, kind and values of a feature."""
    key, kind, values = b"", 0, list[tuple[int, int]]()
    for tag, first, last in _fields(b, start, stop, _NESTED - 2):
        if tag == MESSAGE:
            key = bytes(b[first:last])
            try:
                key.decode()
            except UnicodeDecodeError:
                what = f"the name of a feature, {key!r}, is not UTF-8"
                raise MalformedError(what) from None
        for inner, s, e in _fields(b, first, last, _NESTED - 3) if tag == VALUE else ():
            if inner in _VALUES:
                if inner != kind:  # a oneof: the last kind counts
                    kind, values = inner, []
                values += _list(b, inner, s, e)
    return key, kind, values


def _list(b: memoryview, kind: int, start: int, stop: int) -> list[tuple[int, int]]:
    values = []
    for tag, first, last in _fields(b, start, stop, _NESTED - 4):
        if tag in _VALUES[kind]:
            _require_whole(b, kind, first, last)
            values.append((first, last))
    return values


def _require_whole(b: memoryview, kind: int, start: int, stop: int) -> None:
    """Refuse numbers of which the last is cut off, or a varint is too long."""
    is_whole = kind != FLOATS or (stop - start) % 4 == 0
    if kind == INTS and start < stop:
        is_long = stop - start > 10 and _LONG.search(b, start, stop)
        is_whole = b[stop - 1] < 128 and not is_long
    if not is_whole:
        raise MalformedError(f"numbers are cut off at byte {stop}")


def _fields(b: memoryview, p: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """The tag of each field of a message, and where its content starts and stops."""
    fields = []
    while p < end:
        tag, p = _tag(b, p)
        start, p = _content(b, tag, p, end, depth)
        fields.append((tag, start, p))
    return fields


def _tag(b: memoryview, p: int) -> tuple[int, int]:
    """The tag at p and the position behind it. Of five bytes, only 32 bits count."""
    tag, behind = _varint(b, p, 5)
    tag &= 0xFFFFFFFF
    if tag < 8:
        raise MalformedError(f"a field has the number 0 at byte {p}")
    return tag, behind


def _content(b: memoryview, tag: int, p: int, end: int, depth: int) -> tuple[int, int]:
    start = p
    match tag & 7:
        case 0:
            _, p = _varint(b, p, 10)
        case 1:
            p += 8
        case 2:
            size, start = _varint(b, p, 5)
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


def _varint(b: bytes | memoryview, p: int, longest: int) -> tuple[int, int]:
    """The number at p, of `longest` bytes at most, and the position behind it."""
    value, bits = b[p], 7
    while value >> bits:  # the highest bit of a byte says that another follows
        if bits == 7 * longest:
            raise MalformedError(f"a number does not end at byte {p}")
        p += 1
        value += (b[p] - 1) << bits
        bits += 7
    return value, p + 1
