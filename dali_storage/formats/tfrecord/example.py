"""`tf.train.Example` in place: finds the values of its features.

A message of protobuf 3 [1]; the schema is TensorFlow's example.proto and feature.proto:

    message Example  { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }
    message Feature  { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2;
                                    Int64List int64_list = 3; } }
    message ...List  { repeated ... value = 1; }        numbers may be packed

Messages are accepted and refused as by protobuf's C++ parser in DALI 2.4.

[1] https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Container
from functools import lru_cache
from typing import TypeAlias

from ..wire import NESTED, MalformedError, fields, require_varints, require_words, varint

BYTES, FLOATS, INTS = 10, 18, 26
"""The kinds of features: the tag of the list in `Feature`."""

Field: TypeAlias = dict[bytes, tuple[int, list[tuple[int, int]]]]
"""The kind of each feature, and the start and stop of its values: strings, floats or varints.

One of these parts may have many values, except for strings.
"""

MESSAGE = 10  # the tag of field 1, when it is a message, a string or packed
VALUE = 18  # of an entry of the map
_VALUES = {BYTES: (MESSAGE,), FLOATS: (MESSAGE, 13), INTS: (MESSAGE, 8)}
_HEAD = 160  # bytes: enough for all before the values, if the name has < 128
_AHEAD = 512  # bytes to copy


def find(message: memoryview, wanted: Container[bytes]) -> Field:
    """Find the `wanted` features of an Example, by name.

    Raises:
        MalformedError: `message` is not an Example, even if only in an unwanted feature.
    """
    try:
        return _find_common(message, wanted)
    except (IndexError, MalformedError):
        pass  # unusual, or damaged
    return _find_any(message, wanted)


def _find_common(b: memoryview, wanted: Container[bytes]) -> Field:
    """Find features like `find()` if the message is only the map in one piece, as by TensorFlow.

    Raises:
        IndexError, MalformedError: the message has another form.
    """
    found: Field = {}
    ahead, base, end = bytes(b[:_AHEAD]), 0, len(b)  # bytes are read faster than a view
    size, p = varint(ahead, 1, 5)
    if ahead[0] != MESSAGE or p + size != end:
        raise MalformedError("there is more than the map of features")
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
            require_varints(b, start, p)
        if key in wanted:
            found[key] = kind, [(start, p)] if values is None else values
    if p > end:
        raise MalformedError(f"a feature goes beyond byte {end}")
    return found


def _head(h: bytes) -> tuple[bytes, int, int, int]:
    """Parse the name and kind of a feature, and the start (from here) and size of its values.

    If the values are not in one piece, kind is 0, with start and size of the entry of the map.
    """
    if h[0] != MESSAGE:
        raise MalformedError("a field is unknown")
    size, entry = varint(h, 1, 5)
    try:
        value = entry + 2 + h[entry + 1]
        key, (value_size, kind_at) = h[entry + 2 : value], varint(h, value + 1, 5)
        kind, (list_size, first) = h[kind_at], varint(h, kind_at + 1, 5)
        tag, count, start = MESSAGE, 0, first
        if list_size or kind == BYTES:
            tag, (count, start) = h[first], varint(h, first + 1, 5)
    except IndexError:
        return b"", 0, entry, size
    is_common = h[entry] == tag == MESSAGE and h[value] == VALUE and len(key) < 128
    # All inner parts end with the entry.
    is_common &= entry + size == kind_at + value_size == first + list_size == start + count
    is_common &= kind in _VALUES and (kind != FLOATS or count % 4 == 0)
    return (key, kind, start, count) if is_common and key.isascii() else (b"", 0, entry, size)


_short_head = lru_cache(4096)(_head)  # the heads of small features are equal in many records


def _find_any(b: memoryview, wanted: Container[bytes]) -> Field:
    found: Field = {}
    try:
        for tag, start, stop in fields(b, 0, len(b), NESTED):
            for inner, first, last in fields(b, start, stop, NESTED - 1) if tag == MESSAGE else ():
                if inner == MESSAGE:
                    key, kind, values = _entry(b, first, last)
                    if key in wanted:
                        found[key] = kind, values  # of equal names, the last
    except IndexError:
        raise MalformedError(f"a field goes beyond byte {len(b)}") from None
    return found


def _entry(b: memoryview, start: int, stop: int) -> tuple[bytes, int, list[tuple[int, int]]]:
    """Parse the name, kind and values of a feature."""
    key, kind, values = b"", 0, list[tuple[int, int]]()
    for tag, first, last in fields(b, start, stop, NESTED - 2):
        if tag == MESSAGE:
            key = bytes(b[first:last])
            try:
                key.decode()
            except UnicodeDecodeError:
                what = f"the name of a feature, {key!r}, is not UTF-8"
                raise MalformedError(what) from None
        for inner, s, e in fields(b, first, last, NESTED - 3) if tag == VALUE else ():
            if inner in _VALUES:
                if inner != kind:  # a oneof: the last kind counts
                    kind, values = inner, []
                values += _list(b, inner, s, e)
    return key, kind, values


def _list(b: memoryview, kind: int, start: int, stop: int) -> list[tuple[int, int]]:
    values = []
    for tag, first, last in fields(b, start, stop, NESTED - 4):
        if tag in _VALUES[kind]:
            if kind == FLOATS:
                require_words(first, last, 4)
            elif kind == INTS:
                require_varints(b, first, last)
            values.append((first, last))
    return values
