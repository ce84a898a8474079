"""The walker of protobuf's wire format; the oracle is protobuf's own parser."""

from collections import Counter
from random import Random

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError

from dali_storage.formats import wire
from tests.kit.containers import message, varint
from tests.kit.tiers import by_tier

SCHEMA = """
name: "tree.proto" package: "t" syntax: "proto2"
message_type { name: "Tree"
  field { name: "below" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".t.Tree" }
  field { name: "number" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 } }
"""


def tree():
    """The class of messages in messages."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(SCHEMA, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Tree"))


def walk(b, start, end):
    """Walk over a message and those in its field 1."""
    for tag, first, last in wire.fields(b, start, end, wire.NESTED):
        if tag == 10:
            walk(b, first, last)


@pytest.mark.parametrize(
    ("content", "end"),
    [(b"\x88\x01\x05", 1), (b"\x90\x80\x00\x05", 1), (b"\x08\x80\x05", 2), (b"\x08\x05", 1)],
)
def test_a_field_that_ends_behind_its_message_is_refused(content, end):
    with pytest.raises(wire.MalformedError):
        wire.fields(memoryview(content), 0, end, 5)


def some_message(random, depth):
    """Fields with tags of one byte and more, in messages whose last byte may be missing."""
    parts = []
    for _ in range(random.randint(0, 3)):
        long = random.choice([b"", b"", b"\x80", b"\x80\x80"])
        fields = [varint(16) + varint(random.choice([1, 300])), varint(200 << 3) + b"\x05"]
        fields += [bytes([16 | 128]) + long + b"\x00" + b"\x07", message(9, b"skipped")]
        fields += [message(1, some_message(random, depth - 1)) if depth else b""]
        parts.append(random.choice(fields))
    content = b"".join(parts)
    return content[: -random.randint(1, 2)] if random.random() < 0.15 else content


def test_messages_are_refused_as_by_protobuf():
    random, kind, found = Random(2), tree(), Counter[bool]()
    for _ in range(by_tier(2000, 50_000)):
        content = some_message(random, 3)
        try:
            kind.FromString(content)
            expected = True
        except DecodeError:
            expected = False
        try:
            walk(memoryview(content), 0, len(content))
            ours = True
        except (wire.MalformedError, IndexError):
            ours = False
        assert ours == expected, content
        found[ours] += 1
    assert min(found.values()) > 100
