"""Random TFRecords and arguments: `readers.tfrecord` beside `fn.readers.tfrecord`, the oracle."""

from pathlib import Path

import numpy as np
from nvidia.dali import fn, tfrecord

from dali_storage import readers
from tests.kit.containers import bytes_feature, example, float_feature, int64_feature, tf_record
from tests.kit.parity import Case, ContainerParityTests, some_order

LONG = "long" * 50
FIXED = {"label": [], "size": [2], "box": (2, 2), "column": [1], LONG: (4, 1, 2), "none": (3, 0)}
"""Shapes of features that have all their values."""


def some_value(random, name):
    """A feature as TensorFlow would write it."""
    packed = random.random() < 0.7
    if name in FIXED:
        count = int(np.prod(FIXED[name], dtype=int))
    else:
        count = random.choice([0, 1, 1, 2, 5, 40]) * {"triples": 3, "grids": 6}.get(name, 1)
    if name == "image":
        several = [random.randbytes(random.choice([0, 1, 9])) for _ in range(random.randrange(3))]
        return bytes_feature([random.randbytes(random.choice([0, 1, 200, 9000])), *several])
    if name in ("box", "weights", "triples", "grids", "none"):
        return float_feature([random.uniform(-9, 9) for _ in range(count)], packed=packed)
    many = [0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63), random.randrange(-999, 999)]
    return int64_feature([random.choice(many) for _ in range(count)], packed=packed)


def some_feature(random, name):
    """The same, sometimes in two parts or of another kind; see also formats/test_tf_example.py."""
    value = some_value(random, name)
    if name in ("ids", "weights") and random.random() < 0.2:
        other = some_value(random, random.choice(["image", name]))
        value = random.choice([other + value, value + other, value, b""])
    return value


def some_file(random, path, names, strange):
    """Write a file and its index; how many records this has, and whether it is needed."""
    pairs, content = [], b""
    for _ in range(random.choice([0, 1, 2, 5, 9])):
        some = random.sample(names, len(names))
        record = tf_record(example({name: some_feature(random, name) for name in some}))
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
    text = "\n".join(f"{start} {size}" for start, size in pairs)
    path.with_suffix(".idx").write_text(text)
    return len(pairs), pairs != regular


def wanted(random):
    """Some of what may be asked for; "nowhere" is in no record."""
    float32, int64, string = tfrecord.float32, tfrecord.int64, tfrecord.string
    features = {
        "image": tfrecord.FixedLenFeature(random.choice([(), [1]]), string, ""),
        "label": tfrecord.FixedLenFeature(FIXED["label"], int64, 5),
        "size": tfrecord.FixedLenFeature(FIXED["size"], int64, 5),
        "box": tfrecord.FixedLenFeature(FIXED["box"], float32, 5.0),
        **{name: tfrecord.FixedLenFeature(FIXED[name], int64, 5) for name in ("column", LONG)},
        "none": tfrecord.FixedLenFeature(FIXED["none"], float32, 5.0),
        "ids": tfrecord.VarLenFeature(int64, 5),
        "weights": tfrecord.VarLenFeature(float32, 5.0),
        "triples": tfrecord.VarLenFeature([3], float32, 5.0),
        "grids": tfrecord.VarLenFeature([3, 2], float32, 5.0),
        "nowhere": tfrecord.FixedLenFeature([3], int64, 5),
    }
    return {name: features[name] for name in random.sample(sorted(features), random.randint(1, 6))}


class TestTfRecord(ContainerParityTests):
    reader = "tfrecord"
    new = ContainerParityTests.new | {"verify"}
    other_defaults = ContainerParityTests.other_defaults | {"index_path"}
    cases = 15, 300

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
