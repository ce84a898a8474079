"""dali_storage.readers.mxnet beside the real fn.readers.mxnet, which is the oracle of parity."""

import itertools
import os
import struct
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import fn

from dali_storage import readers
from dali_storage.contract.errors import RecordError
from dali_storage.formats import recordio
from tests.kit import versions
from tests.kit.containers import RECORDIO_MAGIC, recordio_record
from tests.kit.parity import build, take
from tests.kit.process import open_files


def written(root, data, starts):
    """Files with this data and an index with these offsets."""
    paths = [str(root / f"{number}.rec") for number in range(len(data))]
    for path, content in zip(paths, data, strict=True):
        Path(path).write_bytes(content)
    (root / "index").write_text("".join(f"{key}\t{at}\n" for key, at in enumerate(starts)))
    return {"path": paths, "index_path": str(root / "index")}


def batch_of(arguments, count):
    pipeline = build(readers.mxnet, count, {}, **arguments)
    return take(pipeline, 1)[0]


@pytest.mark.parametrize("direct", [False, True])
def test_a_record_may_lie_in_many_files(tmp_path, direct):
    """Here DALI reads other bytes where a file begins with the end of a record."""
    payloads = [Random(number).randbytes(size) for number, size in enumerate([300, 9000, 0, 50])]
    records = [recordio_record(it, float(number)) for number, it in enumerate(payloads)]
    data, starts = b"".join(records), np.cumsum([0, *map(len, records)]).tolist()[:-1]
    cuts = [0, 400, 400, 2000, 2001, len(data) - 90, len(data) - 20, len(data)]
    parts = [data[begin:end] for begin, end in itertools.pairwise(cuts)]
    arguments = written(tmp_path, parts, starts)
    index = os.fsencode(arguments["index_path"])
    images, labels = batch_of({**arguments, "backend_options": {"direct": direct}}, 4)
    assert [it[2] for it in images] == payloads
    assert [np.frombuffer(it[2], np.float32)[0] for it in labels] == [0, 1, 2, 3]
    found = recordio.find(list(map(os.fsencode, arguments["path"])), index)
    assert found.ranges is not None
    assert found.ranges.sizes.sum() == len(data)  # no byte is read twice
    with pytest.raises(RuntimeError, match=r"wrong magic number|Incomplete or corrupted"):
        take(build(fn.readers.mxnet, 4, {}, **arguments, dont_use_mmap=True), 1)


def test_bits_of_labels_are_not_changed(tmp_path):
    signalling = struct.unpack("<I", b"\x01\x00\xa0\x7f")[0]  # a NaN that float() would make quiet
    head = struct.pack("<IIQQ", 0, signalling, 0, 0)
    record = RECORDIO_MAGIC + struct.pack("<I", len(head)) + head
    records = [record, recordio_record(b"", [1.5, -2.5, 3.5]), recordio_record(b"abc", 7.0)]
    starts = np.cumsum([0, *map(len, records)]).tolist()[:-1]
    images, labels = batch_of(written(tmp_path, [b"".join(records)], starts), 3)
    assert [it[2] for it in images] == [b"", b"", b"abc"]
    assert [it[1] for it in labels] == [(1,), (3,), (1,)]
    assert labels[0][2] == b"\x01\x00\xa0\x7f"
    assert np.frombuffer(labels[1][2], np.float32).tolist() == [1.5, -2.5, 3.5]


def test_an_image_may_be_the_magic_number_alone(tmp_path):
    records = [recordio_record(b"longer", 2.0), recordio_record(RECORDIO_MAGIC, 1.0)]
    arguments = written(tmp_path, [b"".join(records)], [0, len(records[0])])
    assert batch_of(arguments, 2) == take(build(fn.readers.mxnet, 2, {}, **arguments), 1)[0]


def test_an_image_in_one_piece_is_not_copied():
    record = recordio_record(bytes(range(250)) * 40, 3.0)
    memory = np.frombuffer(record, np.uint8)
    image, _ = recordio.parse(memory.data)
    assert np.shares_memory(np.asarray(image), memory)
    joined, _ = recordio.parse(memoryview(recordio_record(RECORDIO_MAGIC * 2, 3.0)))
    assert not isinstance(joined, memoryview)  # it must not pass for a part of the batch's buffer
    assert joined.tobytes() == RECORDIO_MAGIC * 2


# --- bad input ----------------------------------------------------------------------------------

GOOD = recordio_record(b"image", 1.0)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("", "expected pairs of a key and an offset, not 0 numbers"),
        (" \n", "expected pairs of a key and an offset, not 0 numbers"),
        ("0\t0\n1\n", "expected pairs of a key and an offset, not 3 numbers"),
        ("0\t0\n1\tx\n", r"line 2: expected a key and an offset, not b'1\\tx'; rebuild"),
        ("0\t0\n\n1\t-4\n", "line 3: expected"),
        ("0 0.5\n", "line 1: expected"),
        ("0\n0\n1\nx\n", "line 4: expected a key and an offset, not b'x'"),
        ("0\t0x10\n", "line 1: expected"),
        ("0\t0\0\n", "line 1: expected"),
        (f"0\t0\n1\t{len(GOOD) + 1}\n", f"record 2 begins at {len(GOOD) + 1}, but the files have"),
        (f"0\t{2**64}\n", "record 1 begins at .* rebuild the index"),
        (f"0\t{len(GOOD)}\n", "has only empty records"),
    ],
    ids=range(12),
)
def test_a_wrong_index_is_refused_at_once(tmp_path, index, message):
    arguments = written(tmp_path, [GOOD], [0])
    Path(arguments["index_path"]).write_text(index)
    with pytest.raises(ValueError, match=f"index_path '.*/index'.*{message}"):
        build(readers.mxnet, 1, {}, **arguments)
    assert not open_files(tmp_path)


def test_white_space_of_an_index_does_not_matter(tmp_path):
    arguments = written(tmp_path, [GOOD * 3], [])
    Path(arguments["index_path"]).write_text(f"7 0\t8\v{len(GOOD)}\r\n\n  9\f\n{2 * len(GOOD)}")
    assert batch_of(arguments, 3) == take(build(fn.readers.mxnet, 3, {}, **arguments), 1)[0]


SPLIT = recordio_record(b"1234" + RECORDIO_MAGIC + b"5678" + RECORDIO_MAGIC, 1.0)


def flagged(record, at, kind, length):
    return record[:at] + struct.pack("<I", kind << 29 | length) + record[at + 4 :]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (GOOD[:31], "it has 31 bytes, but its part at 0 ends at 37"),
        (b"\0" + GOOD[1:], r"b'\\x00.*' at 0 in it is not the magic number"),
        (GOOD[:-4], "it has 36 bytes, but its part at 0 ends at 37"),
        (flagged(GOOD, 4, 0, 23), "its first part has 23 bytes, too few for an image header"),
        (flagged(GOOD, 4, 0, 2**29 - 1), "its part at 0 ends at 536,870,919"),
        (GOOD[:8] + struct.pack("<I", 2) + GOOD[12:], "header says 2 labels, but 5 bytes follow"),
        (GOOD[:8] + b"\xff" * 4 + GOOD[12:], "header says 4,294,967,295 labels, but 5 bytes"),
        (flagged(GOOD, 4, 1, 29), "it has 40 bytes, but a part begins at 40"),
        (SPLIT[:-8], "it has 48 bytes, but a part begins at 48"),
        (SPLIT[:-12], "it has 44 bytes, but its part at 36 ends at 48"),
        (SPLIT[:36] + b"\0" + SPLIT[37:], r"b'\\x00.*' at 36 in it is not the magic number"),
        (flagged(SPLIT, 40, 2, 2**29 - 1), "its part at 36 ends at 536,870,955"),
        (flagged(GOOD, 4, 3, 29)[:-3], "its last part is not padded to 40 bytes"),
    ],
    ids=range(13),
)
def test_a_damaged_record_is_named(tmp_path, record, message):
    arguments = written(tmp_path, [GOOD * 2 + record], [0, len(GOOD), 2 * len(GOOD)])
    where = f"sample 2: {len(record)} bytes at 80: "
    with pytest.raises(RecordError, match=f"{where}.*{message}") as caught:
        batch_of(arguments, 3)
    assert caught.value.filename == arguments["path"][0]
    if versions.has("2.3"):  # older ones read beyond the record, and the process may die
        with pytest.raises(RuntimeError):
            take(build(fn.readers.mxnet, 3, {}, **arguments), 1)
    del caught
    assert not open_files(tmp_path)


@given(st.binary(max_size=60), st.integers(0, 60), st.booleans())
def test_any_bytes_of_a_record_are_parsed_or_refused(noise, at, split):
    record = SPLIT if split else GOOD
    for damaged in (noise, record[:at] + noise, record[:at] + noise + record[at + len(noise) :]):
        try:
            image, label = recordio.parse(memoryview(damaged))
        except ValueError:
            continue
        assert len(image) + len(label) <= len(damaged)
