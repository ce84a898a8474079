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
from typing import TypeAlias

BYTES, FLOATS, INTS = 10, 18, 26
"""The kinds of features: the tag of the list in `Feature`."""

Found: TypeAlias = dict[bytes, tuple[int, list[memoryview]]]
"""The kind of each feature, and its values: strings, floats or varints; one item may have many."""

MESSAGE = 10  # the tag of field 1, when it is a message, a string or packed
VALUE = 18  # of an entry of the map
_VALUES = {BYTES: (MESSAGE,), FLOATS: (MESSAGE, 13), INTS: (MESSAGE, 8)}
_NESTED = 100  # how deep messages and groups may be nested, in protobuf
_LONG = re.compile(rb"[\x80-\xff]{10}")  # no varint is longer than 10 bytes, the last is < 128


class MalformedError(ValueError):
    """The bytes are not a message; the text says what is wrong and where."""


def find(message: memoryview, wanted: Container[bytes]) -> Found:
    """The features of an Example that are in `wanted`, by name.

    The values are views of `message`, of which nothing is copied.

    Raises:
        MalformedError: `message` is not an Example, be it in a feature that is not wanted.
    """
    try:
        found = _find_common(message, wanted)
    except (IndexError, MalformedError):  # of something else, read as if it were common
        found = None
    return _find_any(message, wanted) if found is None else found


def _find_common(b: memoryview, wanted: Container[bytes]) -> Found | None:
    """The same for what TensorFlow and protobuf write, in a sixth of the time; otherwise None.

    The parts of a feature follow each other as in the schema, and its list is in one piece. So all
    of them end where the feature ends.

    Raises:
        IndexError, MalformedError: it is something else.
    """
    found: Found = {}
    p, end = _long_size(b, 1)[0], len(b)
    if b[0] != MESSAGE or sum(_long_size(b, 1)) != end:
        return None
    while p < end:
        # Written out, because to call a function for each of the levels doubles the time.
        entry, size = p + 2, b[p + 1]
        if size > 127:
            entry, size = _long_size(b, p + 1)
        key_size = b[entry + 1]
        value = entry + 2 + key_size
        if b[p] != MESSAGE or b[entry] != MESSAGE or key_size > 127 or b[value] != VALUE:
            return None
        p, key = entry + size, bytes(b[entry + 2 : value])
        at, size = value + 2, b[value + 1]
        if size > 127:
            at, size = _long_size(b, value + 1)
        value, kind = at + size, b[at]
        at, size = at + 2, b[at + 1]
        if size > 127:
            at, size = _long_size(b, at - 1)
        values, tag = at + size, b[at]
        at, size = at + 2, b[at + 1]
        if size > 127:
            at, size = _long_size(b, at - 1)
        is_last = tag == MESSAGE and value == values == at + size == p
        if not is_last or not key.isascii() or not _is_whole(b, kind, at, p):
            return None
        if key in wanted:
            found[key] = kind, [b[at:p]]
    return found if p == end else None


def _long_size(b: memoryview, p: int) -> tuple[int, int]:
    """The position behind a size, and the size."""
    size, shift = b[p] & 127, 0
    while b[p] > 127:
        p, shift = p + 1, shift + 7
        size |= (b[p] & 127) << shift
    if shift > 28:  # 5 bytes
        raise MalformedError(f"a size does not end at byte {p}")
    return p + 1, size


def _find_any(b: memoryview, wanted: Container[bytes]) -> Found:
    found: Found = {}
    for tag, start, stop in _fields(b, 0, len(b), _NESTED):
        for inner, first, last in _fields(b, start, stop, _NESTED - 1) if tag == MESSAGE else ():
            if inner == MESSAGE:
                key, kind, values = _entry(b, first, last)
                if key in wanted:
                    found[key] = kind, values  # of equal names, the last
    return found


def _entry(b: memoryview, start: int, stop: int) -> tuple[bytes, int, list[memoryview]]:
    """The name, kind and values of a feature."""
    key, kind, values = b"", 0, list[memoryview]()
    for tag, first, last in _fields(b, start, stop, _NESTED - 2):
        if tag == MESSAGE:
            key = _name(b, first, last)
        for inner, s, e in _fields(b, first, last, _NESTED - 3) if tag == VALUE else ():
            if inner in _VALUES:
                if inner != kind:  # a oneof: the last kind counts
                    kind, values = inner, []
                values += _list(b, inner, s, e)
    return key, kind, values


def _name(b: memoryview, start: int, stop: int) -> bytes:
    name = bytes(b[start:stop])
    try:
        name.decode()
    except UnicodeDecodeError:
        raise MalformedError(f"the name of a feature, {name!r}, is not UTF-8") from None
    return name


def _list(b: memoryview, kind: int, start: int, stop: int) -> list[memoryview]:
    values = []
    for tag, first, last in _fields(b, start, stop, _NESTED - 4):
        if tag in _VALUES[kind]:
            if not _is_whole(b, kind, first, last):
                raise MalformedError(f"numbers are cut off at byte {last}")
            values.append(b[first:last])
    return values


def _is_whole(b: memoryview, kind: int, start: int, stop: int) -> bool:
    """Whether a part is a string, or a number of floats or varints."""
    if kind == INTS and start < stop:
        return b[stop - 1] < 128 and (stop - start <= 10 or not _LONG.search(b, start, stop))
    return kind in _VALUES and (kind != FLOATS or (stop - start) % 4 == 0)


def _fields(b: memoryview, p: int, end: int, depth: int) -> list[tuple[int, int, int]]:
    """The tag of each field of a message, and where its content starts and stops."""
    fields = []
    while p < end:
        tag, p = _tag(b, p, end)
        start, p = _content(b, tag, p, end, depth)
        fields.append((tag, start, p))
    return fields


def _tag(b: memoryview, p: int, end: int) -> tuple[int, int]:
    """The tag at p, and the position behind it. Of five bytes, only 32 bits count."""
    tag, behind = _varint(b, p, end, 5)
    tag &= 0xFFFFFFFF
    if tag < 8:
        raise MalformedError(f"a field has the number 0 at byte {p}")
    return tag, behind


def _content(b: memoryview, tag: int, p: int, end: int, depth: int) -> tuple[int, int]:
    start = p
    match tag & 7:
        case 0:
            _, p = _varint(b, p, end, 10)
        case 1:
            p += 8
        case 2:
            size, start = _varint(b, p, end, 5)
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
        inner, p = _tag(b, p, end)
        if inner == tag + 1:
            return p
        _, p = _content(b, inner, p, end, depth - 1)


def _varint(b: memoryview, p: int, end: int, longest: int) -> tuple[int, int]:
    """The number at p, of `longest` bytes at most, and the position behind it."""
    value = 0
    for index, byte in enumerate(b[p : min(p + longest, end)]):
        value |= (byte & 127) << 7 * index
        if byte < 128:
            return value, p + index + 1
    raise MalformedError(f"a number does not end at byte {p}")
