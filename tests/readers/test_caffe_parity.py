"""Random databases and arguments: `readers.caffe` and `caffe2` beside `fn.readers`, the oracle."""

import struct

import lmdb
import numpy as np

from tests.kit import versions
from tests.kit.containers import message, varint
from tests.kit.databases import BYTE, FLOAT, INT32, INT64, STRING, datum, number, tensor
from tests.kit.parity import Case, ContainerParityTests

pytestmark = versions.CAFFE

NEW = {"index_path", "shuffle_after_epoch", "shuffle_after_epoch_seed"}
SIZES = [(0, 30), (1, 5000), (4090, 4100), (3000, 60_000)]
GROUP = varint(93 << 3 | 3) + number(1, 5) + varint(93 << 3 | 4)
UNKNOWN = [number(90, 7), message(90, b"zz"), varint(91 << 3 | 5) + b"abcd"]
UNKNOWN += [GROUP, varint(92 << 3 | 1) + bytes(8)]
UNKNOWN += [number(4, 9), message(5, b"q")]  # fields of Datum with another wire type
"""Fields that are skipped."""


def some_int(random):
    return random.choice([random.randint(-(2**31), 2**31 - 1), random.randint(0, 9)])


def some_datum(random, raw, size):
    label, fields = some_int(random), []
    if raw:
        shape = random.choice([1, 3, 4]), random.randint(1, 9), random.randint(1, 9)
        data = random.randbytes(int(np.prod(shape)))
        fields = [datum(shape=shape), datum(data), datum(encoded=False)]
    else:
        fields = [datum(random.randbytes(random.randint(*size)))]
        fields += [number(7, random.choice([1, 1, 5]))] * (random.random() < 0.6)
        fields += [datum(random.randbytes(9))] * (random.random() < 0.05)  # the last one counts
    fields += [datum(label=label)] + [datum(label=label + 1)] * (random.random() < 0.05)
    fields += [message(6, struct.pack("<2f", 1, 2))] * (random.random() < 0.1)
    fields += random.choices(UNKNOWN, k=random.random() < 0.1)
    if random.random() < 0.3:
        random.shuffle(fields)
    return b"".join(fields)


def some_tensor(random, kind, count):
    values = {
        FLOAT: lambda: random.random(),
        INT32: lambda: some_int(random),
        INT64: lambda: random.getrandbits(63) - 2**62,
    }[kind]
    named = None if kind == FLOAT and random.random() < 0.3 else kind
    dims = random.choice([(), (count,), (7, 7)])
    return tensor(named, [values() for _ in range(count)], dims, packed=random.random() < 0.7)


def some_protos(random, raw, size, options, kinds):
    """A TensorProtos with what the options ask for; `kinds`: of the label and of more inputs."""
    found = []
    if options["image_available"]:
        shape = [random.randint(1, 9), random.randint(1, 9), random.choice([1, 3, 5])][:raw]
        strings = [random.randbytes(random.randint(*size)) for _ in range(random.choice([1, 1, 2]))]
        image = tensor(BYTE, random.randbytes(int(np.prod(shape))), shape)
        found.append(image if raw else tensor(STRING, strings))
    counts = {0: [1], 2: [random.randint(1, 5)], 4: []}[options["label_type"]]
    counts += [random.randint(1, 6) for _ in range(options["additional_inputs"])]
    used = kinds if options["label_type"] != 4 else kinds[1:]
    found += [some_tensor(random, *it) for it in zip(used, counts, strict=True)]
    found += [some_tensor(random, INT32, 4)] * options["bbox"]
    return b"".join(found)


def write_databases(random, directory, record):
    """Up to three databases with records; their paths, and how many records there are."""
    paths, total = [], 0
    for place in range(random.choice([1, 1, 2, 3])):
        paths.append(str(directory / str(place)))
        with lmdb.open(paths[-1], map_size=1 << 26, sync=False) as database:
            with database.begin(write=True) as transaction:
                for each in range(random.choice([1, 3, 20, 60])):
                    keys = b"%08d" % each, random.randbytes(random.randint(1, 30)), b"%d" % each
                    transaction.put(random.choice(keys), record())
            total += database.stat()["entries"]
    return (paths if len(paths) > 1 or random.random() < 0.5 else paths[0]), total


class DatabaseParityTests(ContainerParityTests):
    new = ContainerParityTests.new | NEW
    by_epoch = False
    cases = 6, 200
    rounds = 1, 20

    def some_options(self, random):
        raise NotImplementedError

    def some_case(self, random, directory):
        options, record = self.some_options(random)
        paths, total = write_databases(random, directory, record)
        ours = {"backend": random.choice(["memory", "python-file"])}
        return Case({"path": paths, **options, **self.some_order(random, total)}, ours=ours)


class TestCaffe(DatabaseParityTests):
    reader = "caffe"

    def some_options(self, random):
        raw, size = random.random() < 0.4, random.choice(SIZES)
        options = dict.fromkeys(("image_available", "label_available"), True)
        if random.random() < 0.3:
            options[random.choice([*options])] = False
        return options, lambda: some_datum(random, raw, size)


class TestCaffe2(DatabaseParityTests):
    reader = "caffe2"

    def some_options(self, random):
        raw, size = random.choice([0, 0, 2, 3, 3]), random.choice(SIZES)
        options = {
            "image_available": random.random() < 0.85,
            "label_type": random.choice([0, 0, 2, 4]),
            "additional_inputs": random.choice([0, 0, 1, 2, 4]),
            "bbox": random.random() < 0.4,
        }
        if not options["image_available"] and not options["additional_inputs"]:
            options["label_type"] = 0
        kinds = random.choices([FLOAT, INT32], k=1)
        kinds += random.choices([FLOAT, INT32, INT64], k=options["additional_inputs"])
        return options, lambda: some_protos(random, raw, size, options, kinds)
