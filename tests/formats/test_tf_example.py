"""The walker of tf.train.Example; the oracles are protobuf's own parser and that of DALI."""

import os
import struct
from random import Random
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError
from hypothesis import example as example_of
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import fn, tfrecord

from dali_storage.formats.tfrecord import example
from dali_storage.formats.tfrecord.example import BYTES, FLOATS, INTS
from dali_storage.formats.wire import MalformedError
from tests.kit import containers
from tests.kit.containers import (
    bytes_feature,
    float_feature,
    int64_feature,
    message,
    tf_record,
    varint,
)
from tests.kit.parity import build
from tests.kit.tiers import by_tier

KINDS = {"bytes_list": BYTES, "float_list": FLOATS, "int64_list": INTS, None: 0}
INT64 = tfrecord.VarLenFeature(tfrecord.int64, 0)
GROUP = varint(7 << 3 | 3)
END = varint(7 << 3 | 4)

Features = dict[str, tuple[int, list[Any]]]
"""The kind and the values of features, by name."""


def entry(numbers, key=b"a", extra=b""):
    """An entry of the map, of which `numbers` are the fields of the list."""
    return message(1, message(1, key) + extra + message(2, message(3, numbers)))


class Every:
    def __contains__(self, name):
        return True


SCHEMA = """
name: "example.proto" package: "e" syntax: "proto3"
message_type { name: "BytesList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List"
  field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type { name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".e.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".e.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".e.Int64List" oneof_index: 0 }
}
message_type { name: "Features"
  nested_type { name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL
            type: TYPE_MESSAGE type_name: ".e.Feature" }
  }
  field { name: "feature" number: 1 label: LABEL_REPEATED
          type: TYPE_MESSAGE type_name: ".e.Features.FeatureEntry" } }
message_type { name: "Example"
  field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".e.Features" } }
"""


def protobuf_example():
    """The message class of tensorflow/core/example/example.proto."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("e.Example"))


EXAMPLE = protobuf_example()


def of_protobuf(data):
    """What protobuf reads; None of what it refuses."""
    try:
        parsed = EXAMPLE.FromString(data)
    except DecodeError:
        return None
    found = {}
    for name, feature in parsed.features.feature.items():
        kind = feature.WhichOneof("kind")
        found[name] = KINDS[kind], list(getattr(feature, kind).value) if kind else []
    return found


def ours(data, walk=example.find):
    """What we read, with values decoded one by one."""
    try:
        found = walk(memoryview(data), Every())
    except MalformedError:
        return None
    return {
        name.decode(): (kind, decoded(kind, [data[start:stop] for start, stop in parts]))
        for name, (kind, parts) in found.items()
    }


def decoded(kind, values):
    if kind == BYTES:
        return [bytes(value) for value in values]
    joined = b"".join(values)
    if kind == FLOATS:
        return [*struct.unpack(f"<{len(joined) // 4}f", joined)]
    numbers, number, shift = list[int](), 0, 0
    for byte in joined:
        number, shift = number | (byte & 127) << shift, shift + 7
        if byte < 128:
            numbers.append((number & 2**64 - 1 ^ 1 << 63) - (1 << 63))
            number = shift = 0
    assert shift == 0
    return numbers


floats = st.floats(width=32, allow_nan=False)
integers = st.integers(-(2**63), 2**63 - 1)
lists = st.one_of(
    st.lists(st.binary(max_size=200), max_size=3).map(bytes_feature),
    st.builds(float_feature, st.lists(floats, max_size=5), packed=st.booleans()),
    st.builds(int64_feature, st.lists(integers, max_size=5), packed=st.booleans()),
)
UNKNOWN = [message(9, b"unknown"), varint(9 << 3) + varint(-1), varint(9 << 3 | 1) + bytes(8)]
UNKNOWN += [varint(9 << 3 | 5) + bytes(4), varint(1 << 3 | 5) + bytes(4), varint(2 << 3) + b"\1"]
unknown = st.sampled_from([*UNKNOWN, GROUP + message(1, b"x") + GROUP + END + END])


def fields(*choices):
    return st.lists(st.one_of(*choices), max_size=4).map(b"".join)


def field(number, content):
    return content.map(lambda data: message(number, data))


names = st.sampled_from(["", "a", "image/encoded", "ñ", "x" * 130]).map(str.encode)
values = fields(lists, lists, unknown)
ordinary = st.tuples(field(1, names), field(2, lists)).map(b"".join)
# Python's protobuf leaves out entries with unknown fields. C++'s does not, so DALI is asked, below.
entries = st.one_of(ordinary, ordinary, fields(field(1, names), field(2, values)))
maps = st.lists(field(1, entries), max_size=6).map(b"".join)
examples = st.one_of(
    field(1, maps), fields(field(1, maps), field(1, fields(field(1, entries), unknown)), unknown)
)


@given(examples)
def test_a_message_is_read_as_protobuf_reads_it(data):
    expected = of_protobuf(data)
    assert expected is not None
    assert ours(data) == expected
    assert ours(data, example._find_any) == expected


@given(st.lists(field(1, ordinary), max_size=6).map(b"".join))
@example_of(message(1, message(1, b"a" * 127) + message(2, bytes_feature([bytes(1 << 21)]))))
@example_of(entry(message(1, bytes(400))) + entry(message(1, b"\1"), b"b") * 20)
def test_a_message_of_protobuf_is_read_in_one_pass(features):
    data = EXAMPLE.FromString(message(1, features)).SerializeToString()
    assert ours(data, example._find_common) == of_protobuf(data)


def test_a_message_of_tensorflow_is_not_read_field_by_field(monkeypatch):
    features = {f"image/{number}": bytes_feature([bytes(20 * number)]) for number in range(20)}
    features["image/encoded"] = bytes_feature([bytes(70_000)])
    features |= {"image/object/bbox/xmin": message(2, b""), "label": int64_feature([300])}
    data = containers.example(features)
    monkeypatch.setattr(example, "fields", None)
    assert ours(data) == of_protobuf(data)


@given(examples, st.data())
def test_damage_of_a_message_is_refused_as_by_protobuf(data, more):
    damaged = bytearray(data[: more.draw(st.integers(0, len(data)))])
    for _ in range(more.draw(st.integers(0, 3)) if damaged else 0):
        damaged[more.draw(st.integers(0, len(damaged) - 1))] = more.draw(st.integers(0, 255))
    assert_judged_right(bytes(damaged))


@given(st.binary(max_size=60))
@example_of(b"\x80\x80\x80\x81\x10\x00")
def test_any_bytes_are_read_or_refused(data):
    assert_judged_right(data)


def assert_judged_right(data):
    """Assert that we accept what protobuf accepts, in both ways the same."""
    found = ours(data)
    np.testing.assert_equal(ours(data, example._find_any), found)  # with what is no number
    if (found is None) != (of_protobuf(data) is None):
        same_as_dali(data)  # Python's protobuf refuses tags of more than 32 bits; C++'s cuts them


def of_dali(data):
    """What DALI reads of the feature "a"; a number that stands for itself if it is not there."""
    record = tf_record(data)
    with (
        os.fdopen(os.memfd_create("record"), "wb") as file,
        os.fdopen(os.memfd_create("index"), "wb") as index,
    ):
        for each, content in ((file, record), (index, b"0 %d" % len(record))):
            each.write(content)
            each.flush()
        path, index_path = (f"/proc/self/fd/{each.fileno()}" for each in (file, index))
        arguments = {"path": path, "index_path": index_path, "features": {"a": INT64}}
        pipeline = build(fn.readers.tfrecord, 1, {"prefetch_queue_depth": 1}, **arguments)
        try:
            values = np.asarray(pipeline.run()[0][0])
        except RuntimeError:
            return None
        return values.tolist() if values.ndim else ["nothing"]


def same_as_dali(data):
    """Whether it is accepted; asserts that we do the same."""
    expected, found = of_dali(data), ours(data)
    assert (found is None) == (expected is None), data
    if found is not None:
        kind, values = found.get("a", (INTS, ["nothing"]))
        assert (values if kind == INTS else []) == expected, data
        assert ours(data, example._find_any) == found
    return found is not None


def padded(number, length):
    """A varint of more bytes than it needs."""
    return bytes([number | 128]) + bytes([128]) * (length - 2) + b"\0"


def test_varints_are_as_long_as_dali_allows():
    def accepted(fields):
        return same_as_dali(message(1, entry(fields)))

    packed, single = message(1, padded(5, 10)), b"\x08" + padded(5, 10)
    assert accepted(packed)
    assert accepted(single)
    for last in (1, 2, 127):  # of the 10th byte only the lowest bit counts
        assert accepted(b"\x08" + b"\x80" * 9 + bytes([last]))
        assert accepted(message(1, b"\x80" * 9 + bytes([last])))
    assert not accepted(message(1, padded(5, 11)))
    assert not accepted(b"\x08" + padded(5, 11))
    assert not accepted(message(1, b"\x05\x80"))
    assert accepted(padded(8, 5) + b"\x05")  # a tag
    assert not accepted(padded(8, 6) + b"\x05")
    assert accepted(b"\x88\x80\x80\x80\x10\x05")  # has more than 32 bits, which are dropped
    assert accepted(b"\x0a" + padded(1, 5) + b"\x05")  # a size
    assert not accepted(b"\x0a" + padded(1, 6) + b"\x05")
    assert not accepted(b"\x0a\x81\x80\x80\x80\x10\x05")


@pytest.mark.parametrize(("level", "deepest"), [*enumerate([100, 99, 98, 97, 96])])
def test_groups_are_nested_as_deep_as_dali_allows(level, deepest):
    def nested(depth):
        groups = [b""] * 5
        groups[level] = GROUP * depth + END * depth
        content = message(3, message(1, b"\5") + groups[4]) + groups[3]
        content = message(1, b"a") + message(2, content) + groups[2]
        return message(1, message(1, content) + groups[1]) + groups[0]

    assert same_as_dali(nested(deepest))
    assert not same_as_dali(nested(deepest + 1))


# A name with a size of two bytes, of which the first is the size of a name that ends where fields
# that are unknown end, and before a value that would fill the entry.
_FIELDS = b"\x0a\x81\0a" + message(2, int64_feature([5])) + message(9, bytes(100))
_REST = message(9, bytes(2 + 129 - len(_FIELDS) - 2) + message(2, int64_feature([6])))
LOOKALIKE = message(1, message(1, _FIELDS + _REST))


REPEATED_REPLACED_OR_UNKNOWN = [
    message(1, entry(message(1, b"\1")) + entry(message(1, b"\2"))),
    message(1, entry(message(1, b"\1")) + message(1, message(1, b"a"))),
    message(1, entry(message(1, b"\1"))) + message(1, entry(message(1, b"\2"))),
    message(1, entry(message(1, b"\1"), b"b", message(1, b"a"))),
    message(1, entry(message(1, b"\1"), extra=message(2, message(3, b"\x08\2")))),
    message(1, entry(message(1, b"\1"), extra=message(2, message(1, b"")))),
    message(1, entry(message(1, b"\1"), extra=message(9, b"unknown"))),
    message(1, entry(message(1, b"\1"), "ñ".encode())),
    message(1, message(1, message(2, message(3, b"\x08\1")) + message(1, b"a"))),
    message(1, message(1, message(1, b"a") + message(2, message(2, message(1, b"1234"))))),
    LOOKALIKE,
    b"",
]
REFUSED = [
    message(1, entry(b"", b"\xff")),
    message(1, entry(message(1, b"\1"), b"\xff")),
    message(1, entry(message(1, b"\1\1"))[:-1]),
    message(1, message(1, message(1, b"a") + message(2, bytes_feature([b"xy"])))[:-1]),
    message(1, b"\x0a\x0a\x0a\x01a\x12\x05\x1a\x02\x0a\x01\x05"),
    message(1, entry(b"", b"\xed\xa0\x80")),
    message(1, entry(b"", b"\xff", message(1, b"a"))),
    message(1, entry(message(1, b"\x80")) + entry(message(1, b"\1"))),
    message(1, message(1, message(1, b"b") + message(2, message(2, message(1, b"12345"))))),
    message(1, entry(b"")) + b"\x03\x04",
    message(1, entry(b"")) + b"\x0e",
    message(1, entry(b"")) + b"\x0c",
    message(1, entry(b"")) + GROUP + varint(8 << 3 | 4),
    b"\0\0",
]


@pytest.mark.parametrize("data", REPEATED_REPLACED_OR_UNKNOWN + REFUSED)
def test_a_strange_message_is_read_or_refused_as_by_dali(data):
    assert same_as_dali(data) == (data in REPEATED_REPLACED_OR_UNKNOWN)


def test_a_damaged_message_is_read_as_dali_reads_it():
    accepted = 0
    for seed in range(rounds := by_tier(60, 400)):
        random = Random(seed)
        numbers = [random.randrange(-(2**63), 2**63) for _ in range(random.randrange(4))]
        feature = int64_feature(numbers, packed=random.random() < 0.5)
        extra = random.choice([b"", message(9, b""), message(2, float_feature([1.0]))])
        data = message(1, message(1, message(1, b"a") + extra + message(2, feature)))
        data += random.choice([b"", message(1, entry(message(1, b"\1"), b"b")), GROUP + END])
        damaged = bytearray(data)
        for _ in range(random.randint(1, 2)):
            damaged[random.randrange(len(damaged))] = random.choice([0, 1, 8, 10, 18, 26, 128, 255])
        accepted += same_as_dali(bytes(damaged))
    assert 0.1 < accepted / rounds < 0.9
