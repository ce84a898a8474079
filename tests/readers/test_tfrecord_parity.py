"""Random TFRecords and arguments: `readers.tfrecord` beside `fn.readers.tfrecord`, the oracle."""

from pathlib import Path

import numpy as np
from nvidia.dali import fn, tfrecord

from dali_storage import readers
from tests.kit.containers import (
    bytes_feature,
    float_feature,
    int64_feature,
    message,
    tf_record,
    varint,
)
from tests.kit.parity import Case, ContainerParityTests, some_order

UNKNOWN = [
    message(9, b"unknown"),
    varint(9 << 3) + varint(-1),
    varint(9 << 3 | 1) + bytes(8),
    varint(9 << 3 | 5) + bytes(4),
    varint(9 << 3 | 3) + message(1, b"in a group") + varint(9 << 3 | 4),
]
FIXED = {"label": [], "size": [2], "box": (2, 2)}  # shapes of features that have all their values


def some_value(random, name):
    """A feature as TensorFlow would write it."""
    packed = random.random() < 0.7
    if name in FIXED:
        count = int(np.prod(FIXED[name], dtype=int))
    else:
        count = random.choice([0, 1, 1, 2, 5, 40]) * (3 if name == "triples" else 1)
    if name == "image":
        several = [random.randbytes(random.choice([0, 1, 9])) for _ in range(random.randrange(3))]
        return bytes_feature([random.randbytes(random.choice([0, 1, 200, 9000])), *several])
    if name in ("box", "weights", "triples"):
        return float_feature([random.uniform(-9, 9) for _ in range(count)], packed=packed)
    many = [0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63), random.randrange(-999, 999)]
    return int64_feature([random.choice(many) for _ in range(count)], packed=packed)


def some_feature(random, name):
    """The same, sometimes strangely written."""
    value = some_value(random, name)
    if name in ("ids", "weights") and random.random() < 0.2:  # a list in two parts; another kind
        other = some_value(random, random.choice(["image", name]))
        value = random.choice([other + value, value + other, value, b""])
    if random.random() < 0.1:
        value = random.choice([bytes_feature([b"dropped"]) + value, value + random.choice(UNKNOWN)])
    return value


def some_entry(random, name):
    fields = [message(1, name.encode()), message(2, some_feature(random, name))]
    if random.random() < 0.1:
        fields.insert(random.randrange(3), random.choice(UNKNOWN))
    if random.random() < 0.1:
        random.shuffle(fields)
    return message(1, b"".join(fields))


def some_payload(random, names):
    """A tf.train.Example, sometimes with features twice or in parts."""
    entries = [some_entry(random, name) for name in names]
    if random.random() < 0.5:
        entries.append(message(1, message(1, "ñ".encode()) + message(2, int64_feature([7]))))
        random.shuffle(entries)
    if random.random() < 0.1:
        entries.append(some_entry(random, random.choice(names)))
    if random.random() < 0.1:
        return b"".join(message(1, entry) for entry in entries) + random.choice(UNKNOWN)
    return message(1, b"".join(entries))


def some_file(random, path, names, strange):
    """Write a file and its index; how many records this has, and whether it is needed."""
    pairs, content = [], b""
    for _ in range(random.choice([0, 1, 2, 5, 9])):
        record = tf_record(some_payload(random, names))
        if strange and random.random() < 0.2:
            record = record[:8] + random.randbytes(4) + record[12:-4] + random.randbytes(4)
        pairs.append((len(content), len(record)))
        content += record
    path.write_bytes(content)
    regular = pairs[:]
    if pairs and random.random() < 0.3:
        pairs = random.choices(pairs, k=random.randint(1, 9))
        position, size = pairs[0]  # more bytes than the record has are ignored
        pairs[0] = position, random.randint(size, len(content) - position)
    space = random.choice(["\n", "\n", "\r\n", " ", "\t\n ", "\n\n"])
    tail = random.choice(["", "", "", "12", "x", " 0.5 3", "99999999999999999999 4", "-"])
    text = space.join(f"{start} {size}" for start, size in pairs)
    path.with_suffix(".idx").write_text(f"{text}{space}{tail}" if pairs or tail != "12" else tail)
    return len(pairs), pairs != regular


def wanted(random):
    """Some of what may be asked for; "nowhere" is in no record."""
    float32, int64, string = tfrecord.float32, tfrecord.int64, tfrecord.string
    features = {
        "image": tfrecord.FixedLenFeature(random.choice([(), [1]]), string, ""),
        "label": tfrecord.FixedLenFeature(FIXED["label"], int64, 5),
        "size": tfrecord.FixedLenFeature(FIXED["size"], int64, 5),
        "box": tfrecord.FixedLenFeature(FIXED["box"], float32, 5.0),
        "ids": tfrecord.VarLenFeature(int64, 5),
        "weights": tfrecord.VarLenFeature(float32, 5.0),
        "triples": tfrecord.VarLenFeature([3], float32, 5.0),
        "nowhere": tfrecord.FixedLenFeature([3], int64, 5),
    }
    return {name: features[name] for name in random.sample(sorted(features), random.randint(1, 6))}


class TestTfRecord(ContainerParityTests):
    reader = "tfrecord"
    new = ContainerParityTests.new | {"verify"}
    other_defaults = ContainerParityTests.other_defaults | {"index_path"}
    cases = 25, 300

    def some_case(self, random, directory):
        features = wanted(random)
        written = {*features, random.choice(["label", "image", "ids"])} - {"nowhere"}
        strange, records, needed, paths = random.random() < 0.3, 0, False, list[Path]()
        while not records:
            for _ in range(random.randint(1, 4)):
                paths.append(directory / f"{len(paths)}.tfrecord")
                more, is_needed = some_file(random, paths[-1], sorted(written), strange)
                records, needed = records + more, needed or is_needed
        indexes = [str(path.with_suffix(".idx")) for path in paths]
        order = some_order(random, records, by_container=True)
        ours = {
            "index_path": indexes if needed or random.random() < 0.5 else None,
            "backend": random.choice(["memory", "python-file"]),
            "verify": not strange and random.random() < 0.3,
        }
        arguments = {"path": [*map(str, paths)], "features": features, **order}
        return Case(arguments, {"index_path": indexes}, ours)

    def operators(self, case):
        def reader(module, more):
            def read(**arguments):
                outputs = module.tfrecord(**arguments, **more)
                assert list(outputs) == list(arguments["features"])
                if "nowhere" in outputs:  # the values have no meaning in DALI
                    outputs["nowhere"] *= 0
                return outputs

            return read

        return reader(fn.readers, case.real), reader(readers, case.ours)
