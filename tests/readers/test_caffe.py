"""readers.caffe and caffe2: what each field of a record does; DALI's readers are the oracle.

What kills DALI (SIGSEGV), or gives empty tensors there, is read by ours only.
"""

import io
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from nvidia.dali import fn
from PIL import Image

from dali_storage import readers
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import RecordError
from dali_storage.contract.ranges import Ranges
from dali_storage.contract.views import Views
from dali_storage.formats.caffe.datum import Datum
from dali_storage.formats.caffe.tensors import TensorProtos
from tests.kit import versions
from tests.kit.containers import message, varint
from tests.kit.databases import (
    BYTE,
    DOUBLE,
    FLOAT,
    INT32,
    INT64,
    STRING,
    datum,
    number,
    tensor,
    write_lmdb,
)
from tests.kit.parity import build, take
from tests.kit.tiers import by_tier

RAW = bytes(range(24))
IMAGE, LABEL = tensor(STRING, [b"image"]), tensor(INT32, [7])
BOX = tensor(INT32, [1, 2, 3, -4])
PARSE = Datum(True, True).parse


def batch_of(module, reader, directory, records, **options):
    path = str(directory / "db")
    if not Path(path).exists():
        write_lmdb(Path(path), records)
    return take(build(getattr(module, reader), len(records), {}, path=path, **options), 1)[0]


NONE_OF_IMAGES = {"image_available": False}
OPTIONS: dict[str, dict[str, object]] = {  # by case; the others have none
    "only labels": NONE_OF_IMAGES,
    "a bad image that is not wanted": NONE_OF_IMAGES,
    "None for the defaults": {"image_available": None, "label_available": None},
    "dense labels": {"label_type": 2, "num_labels": 4},
    "a box, no label": {"bbox": True, "label_type": 4},
    "inputs missing": {"additional_inputs": 1},
    "many inputs missing": {"additional_inputs": 20},
    "an input of strings": {"additional_inputs": 1},
    "an image": NONE_OF_IMAGES,
    **{case: {"bbox": True} for case in ("no box", "a box of floats", "a box of three")},
}
BIG_FLAG = varint(56) + b"\x80" * 9 + b"\x02"  # encoded, by a number of more than 64 bits
TWICE = message(1, message(6, b"x") + number(2, 3) + number(2, 4) + number(2, 77))
BAD_RAW = datum(RAW[:9], 3, False, (3, 2, 4))
SAME = {  # records that test_caffe_parity does not draw
    "caffe": {
        "one that does not say so": [datum(b"abc", 1), datum(b"", 2)],
        "raw, other sizes": [datum(RAW, 1, False, (3, 2, 4)), datum(b"", 1, False, (0, 2, 4))],
        "a size of more than 32 bits": [datum(RAW, 1, False, (1 << 32 | 3, 2, 4))],
        "long labels": [datum(b"a", (1 << 33) + 5), datum(b"a", -7), datum(b"a", 2**31)],
        "fields that are given twice": [datum(b"abc", 1) + datum(b"xyzw", 2)],
        "only labels": [datum(b"abc", 3)],
        "a bad image that is not wanted": [BAD_RAW, datum(RAW, 4, False)],
        "a big flag": [message(4, RAW) + BIG_FLAG + datum(None, 1, None, (3, 2, 4))],
        "None for the defaults": [datum(b"abc", 1)],
    },
    "caffe2": {
        "a type that is given twice": [TWICE + LABEL],
        "an empty string": [tensor(STRING, [b""]) + LABEL],
        "bytes": [tensor(BYTE, RAW, [2, 4, 3]) + LABEL, tensor(BYTE, b"abc", [1, 1, 3]) + LABEL],
        "bytes of four dimensions": [tensor(BYTE, RAW, [4, 6, 7, 9]) + LABEL],
        "no bytes": [tensor(BYTE, b"", [0, 4, 3]) + LABEL],
        "dimensions of more than 32 bits": [tensor(BYTE, RAW, [1 << 32 | 2, 4, 3]) + LABEL],
        "a float label": [IMAGE + tensor(FLOAT, [0.5]), IMAGE + tensor(None, [1.5])],
        "a long label": [IMAGE + tensor(INT32, [1 << 33 | 5])],
        "dense labels": [IMAGE + tensor(FLOAT, [0.5] * n, [9]) for n in (3, 0, 5)],
        "a box, no label": [IMAGE + BOX],
        "unknown fields": [IMAGE + number(1, 5) + LABEL + message(2, b"x")],
    },
}


@versions.CAFFE
@pytest.mark.parametrize(("reader", "case"), [(it, case) for it in SAME for case in SAME[it]])
def test_records_are_read_as_dali_reads_them(reader, case, tmp_path):
    given = reader, tmp_path, SAME[reader][case]
    options = OPTIONS.get(case, {})
    assert batch_of(readers, *given, **options) == batch_of(fn.readers, *given, **options)


ANOTHER_KIND = r"image is of uint8 and 3 dim.*, but the first \(sample 0: .*\) is of uint8 and 1"
ANOTHER_TYPE = r"label is of float32 and 1 dimension, but the first \(sample 0: .*\) is of int32"
LAST_OF_MANY = r"are image, label, \.\.\., additional input 19, additional input 20, and"
REFUSED = {  # records, and the words of the error, which is of the last one
    "caffe": {
        "raw, too short": ([datum(b"abc", 1, False, (3, 2, 4))], "2 x 4 x 3.* but has 3 by"),
        "raw, no sizes": ([datum(RAW, 1, False)], "is 0 x 0 x 0"),
        "raw, negative": ([datum(RAW, 1, False, (3, -2, -4))], "is -2 x -4 x 3"),
        "no data": ([datum(label=5)], "its Datum has no data"),
        "no label": ([datum(b"abc")], "its Datum has no label"),
        "empty": ([b""], "its Datum has no label"),
        "garbage": ([b"\xff\xff"], "not a record of Caffe: it ends within a field; w"),
        "cut floats": ([datum(b"a", 1) + message(6, b"abc")], "numbers are cut off"),
        "cut": ([datum(b"abcd", 1)[:-4]], "longer than its message|within a field"),
        "raw and encoded": ([datum(RAW, 1, True), datum(RAW, 1, False, (3, 2, 4))], ANOTHER_KIND),
    },
    "caffe2": {
        "no fields": ([b""], "are image, label, and it must have 2 of them, not 0; change"),
        "garbage": ([b"\xff\xff"], "it ends within a field"),
        "one too many": ([IMAGE + LABEL + BOX], "it must have 2 of them, not 3"),
        "one too few": ([IMAGE], "are image, label, and it must have 2 of them, not 1"),
        "inputs missing": ([IMAGE + LABEL], "label, additional input 1, and it must have 3 of th"),
        "many inputs missing": ([IMAGE + LABEL], LAST_OF_MANY),
        "many dimensions": ([tensor(BYTE, RAW, [1] * 99) + LABEL], "has 99 dimensions, not height"),
        "no box": ([IMAGE + LABEL], "are image, label, bounding box, and it must have 3"),
        "an image": ([IMAGE + LABEL], "are label, and it must have 1 of them, not 2"),
        "no string": ([tensor(STRING, []) + LABEL], "its image has no string"),
        "a float image": ([tensor(FLOAT, [1]) + LABEL], "image is of type FLOAT, not STR"),
        "dimensions": ([tensor(BYTE, RAW, [24]) + LABEL], r"dimensions \[24\], not .* of 24"),
        "bytes": ([tensor(BYTE, RAW, [2, 4, 2]) + LABEL], r"\[2, 4, 2\], not height.* of 24 bytes"),
        "negative": ([tensor(BYTE, RAW, [-4, -6]) + LABEL], r"\[-4, -6\], not .* of 24"),
        "INT64": ([IMAGE + tensor(INT64, [7])], "label is of type INT64, not INT32 or F"),
        "a string": ([IMAGE + IMAGE], "its label is of type STRING"),
        "two labels": ([IMAGE + tensor(INT32, [7, 300])], "its label has 2 numbers, not 1"),
        "no number": ([IMAGE + tensor(FLOAT, [])], "its label has 0 numbers, not 1"),
        "an input of strings": ([IMAGE + LABEL + IMAGE], "1 is of type STRING, not INT32 or FLOAT"),
        "a box of floats": ([IMAGE + LABEL + tensor(FLOAT, [1] * 4)], "box is of"),
        "a box of three": ([IMAGE + LABEL + tensor(INT32, [1] * 3)], "3 numbers"),
        "two types": ([IMAGE + LABEL, IMAGE + tensor(FLOAT, [7])], ANOTHER_TYPE),
        "two kinds": ([IMAGE + LABEL, tensor(BYTE, RAW, [2, 4, 3]) + LABEL], "uint8 and 3 dimens"),
    },
}
for tag in (10, 26, 34, 8 * DOUBLE + 2, 82):
    record = message(1, varint(tag) + varint(1) + b"\xff") + LABEL
    REFUSED["caffe2"][f"cut off: field {tag >> 3}"] = [record], "numbers are cut off"
ONLY_OURS = {"raw, negative", "no data", "no label", "empty", "no fields", "inputs missing"}
ONLY_OURS |= {"many inputs missing", "no string", "negative"}
"""What kills DALI, or gives empty tensors there."""


@pytest.mark.parametrize(("reader", "case"), [(it, case) for it in REFUSED for case in REFUSED[it]])
def test_a_wrong_record_is_refused_by_name(reader, case, tmp_path):
    (records, text), options = REFUSED[reader][case], OPTIONS.get(case, {})
    with pytest.raises(RecordError, match=text) as caught:
        batch_of(readers, reader, tmp_path, records, **options)
    assert caught.value.filename == str(tmp_path / "db" / "data.mdb")
    assert f"sample {len(records) - 1}: {len(records[-1])} bytes at" in str(caught.value)
    if case not in ONLY_OURS and versions.has("2.4"):  # older ones may die of more of them
        with pytest.raises(RuntimeError):
            batch_of(fn.readers, reader, tmp_path, records, **options)


@versions.CAFFE
@pytest.mark.parametrize(
    ("label_type", "more", "is_read"),
    [(1, b"", False), (3, tensor(FLOAT, [0.5, 2.5]), False), (1, LABEL + BOX, True)],
)
def test_sparse_labels_are_refused(label_type, more, is_read, tmp_path):
    """DALI fails with the records of Caffe2: there must be a box."""
    records = [IMAGE + tensor(INT32, [1, 3]) + more]
    options = {"label_type": label_type, "num_labels": 4}
    with nullcontext() if is_read else pytest.raises(RuntimeError):
        batch_of(fn.readers, "caffe2", tmp_path, records, **options)
    with pytest.raises(ValueError, match="no sparse labels"):
        batch_of(readers, "caffe2", tmp_path, records, **options)


def test_large_images_are_not_copied():
    record = np.frombuffer(datum(bytes(9000), 1, False, (3, 30, 100)), np.uint8)
    buffer = np.concatenate((record, record))
    at = np.array([0, record.size])
    ranges = Ranges.of_columns(np.array([0, 0]), at, np.full(2, record.size))
    catalog = replace(Catalog.from_names([b"data.mdb"], []), ranges=ranges)
    views = Views(buffer, at, ranges.sizes.astype(np.int64))
    for image in Datum(True, True).decode(catalog, np.arange(2), views)[0]:
        assert np.asarray(image).shape == (30, 100, 3)
        assert np.shares_memory(np.asarray(image), buffer)


@pytest.mark.parametrize("parse", [PARSE, TensorProtos(True, True, True, 0, False).parse])
def test_random_bytes_are_a_record_or_refused(parse):
    random, found = Random(3), Counter[bool]()
    good = datum(RAW, 1, False, (3, 2, 4))
    good = good if parse is PARSE else tensor(BYTE, RAW, [2, 4, 3]) + LABEL
    for _ in range(by_tier(300, 5000)):
        record = bytearray(good)
        for _ in range(random.randint(1, 3)):
            record[random.randrange(len(record))] = random.randrange(256)
        try:
            image = parse(memoryview(record))[0]
        except (ValueError, IndexError):
            found[False] += 1
            continue
        found[True] += 1
        assert image is None or 0 <= image.start <= image.start + image.size <= len(record)
    assert min(found.values()) > 20


def jpeg(size):
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), size, np.uint8)).save(file, "jpeg")
    return file.getvalue()


@versions.CAFFE
def test_mapped_images_are_decoded_where_they_are(tmp_path):
    path = str(write_lmdb(tmp_path / "db", [datum(jpeg(size), size) for size in (40, 80, 200)]))

    def decoded(reader, **options):
        def read():
            images, labels = reader(path=path, **options)
            return fn.decoders.image(images), labels

        return take(build(read, 3, {}), 2)

    ours = decoded(readers.caffe, backend="python-file", backend_options={"io": "mmap"})
    assert ours == decoded(fn.readers.caffe)


@pytest.mark.filterwarnings("ignore::dali_storage.contract.errors.SampleReplaced")
def test_a_bad_image_is_replaced(tmp_path):
    images = jpeg(8), jpeg(9), jpeg(9)[:-40]
    path = str(write_lmdb(tmp_path / "db", [datum(it, 1) for it in images]))
    options = {"on_error": "replace", "check": True, "name": "R"}
    pipeline = build(readers.caffe, 3, {}, path=path, **options)
    take(pipeline, 1)
    ((index, _, reason),) = readers.replaced(pipeline, "R")
    assert (index, "JPEG: " in reason) == (2, True)
