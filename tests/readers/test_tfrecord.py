"""`readers.tfrecord`: features, indexes, bad input. Parity is in test_tfrecord_parity.py."""

import gzip
import io
import os
import sys
import tempfile
from pathlib import Path
from random import Random

import google_crc32c
import numpy as np
import pytest
from nvidia.dali import Pipeline, fn
from nvidia.dali.ops import _OpCounter
from nvidia.dali.tfrecord import FixedLenFeature, VarLenFeature, float32, int64, string

import dali_storage
from dali_storage import readers
from dali_storage.cli.index import main
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import BackendUnavailable, RecordError
from dali_storage.dali import gpu_memory
from dali_storage.formats.tfrecord import example as example_module
from dali_storage.formats.tfrecord import index as tfrecord_index
from dali_storage.formats.tfrecord.features import TfRecord
from dali_storage.formats.tfrecord.record import Feature
from dali_storage.readers.features import describe
from dali_storage.reading.buffers import Lease
from tests.kit import parity
from tests.kit.containers import (
    bytes_feature,
    example,
    float_feature,
    int64_feature,
    tf_record,
    write_tfrecord,
)
from tests.kit.parity import numbers, take
from tests.kit.process import descriptors
from tests.kit.tiers import by_tier
from tests.kit.views import views_of

STRING = FixedLenFeature((), string, "")
NUMBER = FixedLenFeature((), int64, 0)
UINT8, FLOAT32, INT64 = np.dtype(np.uint8), np.dtype(np.float32), np.dtype(np.int64)
FINE = example({"a": bytes_feature([b"finest"]), "n": int64_feature([1])})  # a record of 47 bytes
WORD, ONE, TWO = bytes_feature([b"x"]), int64_feature([1]), int64_feature([1, 2])


@pytest.fixture
def write(tmp_path):
    """Writes a TFRecord file of payloads, and its index beside it; the path."""

    def write(*payloads):
        path = tmp_path / "x.tfrecord"
        return str(write_tfrecord(path, payloads, path.with_suffix(".idx")))

    return write


def build(batch_size=2, operator=readers.tfrecord, **arguments):
    arguments = {"features": {"n": NUMBER}} | arguments
    return parity.build(operator, batch_size, {}, **arguments)


def test_outputs_are_in_the_order_of_the_features_and_the_index_is_last(write):
    with (pipeline := Pipeline(2, num_threads=1, device_id=None)):
        features, path = {"n": NUMBER, "a": STRING}, write(FINE, FINE)
        outputs, index = readers.tfrecord(path=path, features=features, return_index=True)
        pipeline.set_outputs(outputs["a"], index)
    assert list(outputs) == ["n", "a"]
    data, index = pipeline.run()
    assert bytes(np.array(data[1])) == b"finest"
    assert index.as_array().tolist() == [[0], [1]]


# --- features ------------------------------------------------------------------------------------


def test_finding_out_features_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outer = Pipeline(1, 1, None)
    with outer:
        fn.random.uniform()
        before, files = (outer._next_op_id_counter, len(outer._sinks)), descriptors(tmp_path)
        operators = _OpCounter().id
        describe({"a": STRING, "n": NUMBER})
        with pytest.raises(ValueError):
            describe({"a": VarLenFeature(string, "")})
        assert Pipeline.current() is outer
        after = outer._next_op_id_counter, len(outer._sinks)
    assert after == before
    assert descriptors(tmp_path) <= files
    assert os.listdir(tmp_path) == []
    assert _OpCounter().id == operators + 1  # by having been asked for the number


def test_numbers_that_are_missing_are_zeros_of_dalis_shape(write):
    features = {
        "rest": FixedLenFeature([2, 2], int64, 5),
        "other kind": FixedLenFeature([2], float32, 5.0),
        "none": VarLenFeature([3], float32, 5.0),
        "absent": FixedLenFeature([2], float32, 5.0),
        "absent too": VarLenFeature([2], int64, 5),
        "sometimes": FixedLenFeature([], int64, 5),
    }
    feature = {"rest": int64_feature([-1, 3, 2]), "other kind": int64_feature([3])}
    feature |= {"none": bytes_feature([b"x"])}
    path = write(example(feature), example({**feature, "sometimes": int64_feature([8])}))
    index = path.replace(".tfrecord", ".idx")
    real = build(operator=fn.readers.tfrecord, path=path, index_path=index, features=features)
    both = [real.run(), build(path=path, features=features).run()]
    dali, ours = ([[np.array(it) for it in output] for output in outputs] for outputs in both)
    kinds = [[(it.dtype, it.shape) for out in outputs for it in out] for outputs in (ours, dali)]
    assert kinds[0] == kinds[1]
    values = [output[0].tolist() for output in ours]
    assert values == [[[-1, 3], [2, 0]], [0, 0], [], 0, 0, 0]
    assert int(ours[-1][1]) == int(dali[-1][1]) == 8


@pytest.mark.parametrize(
    ("feature", "good", "bad", "message"),
    [
        (STRING, WORD, {"b": int64_feature([1])}, "it has no feature 'a'; it has 'b'"),
        (STRING, WORD, {}, "it has no feature 'a'; it has none"),
        (STRING, WORD, {"a": bytes_feature([])}, "it has no string in the feature 'a'"),
        (STRING, WORD, {"a": int64_feature([1])}, "it has no string in the feature 'a'"),
        (STRING, WORD, {"a": b""}, "it has no string in the feature 'a'"),
        (VarLenFeature(int64, 0), ONE, {"b": b""}, "no feature 'a', but other records have one"),
        (FixedLenFeature([1], int64, 0), ONE, {"b": b""}, "'a', but other records have one; it"),
        (NUMBER, ONE, {"a": int64_feature([1, 2])}, "'a' has 2 values, but its FixedLenFeature 1"),
        (VarLenFeature([1, 2], int64, 0), TWO, {"a": int64_feature([1])}, "1 values, not a mul"),
    ],
)
def test_a_record_without_what_is_wanted_is_named(feature, good, bad, message, write):
    path = write(example({"a": good}), example(bad))
    pipeline = build(path=path, features={"a": feature})
    with pytest.raises(RecordError, match=r"sample 1: \d+ bytes at \d+: .*" + message) as caught:
        pipeline.run()
    assert caught.value.filename == path


@pytest.mark.parametrize("has", [[1, 0], [0, 1]])
def test_a_feature_that_only_some_batches_have_is_refused(has, write):
    """DALI's reader delivers it, but a Python source must not change its number of dimensions."""
    path = write(*(example({"a": TWO} if it else {"b": TWO}) for it in has * 4))
    pipeline = build(1, path=path, features={"a": VarLenFeature(int64, 0)})
    message = r"it has .*'a', but other records (have one|do not)"
    with pytest.raises(RecordError, match=message) as error:
        take(pipeline, 8)
    assert error.value.filename == path


def test_a_number_that_only_some_batches_have_is_delivered(write):
    path = write(*(example({"n": ONE} if it else {"b": ONE}) for it in [1, 0] * 4))
    assert numbers(build(1, path=path), 8) == [[1], [0]] * 4


# --- records -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("position", "what"), [(9, "length"), (40, "data"), (-1, "data")])
def test_a_wrong_checksum_is_refused_only_if_verified(position, what, tmp_path):
    record = tf_record(example({"a": bytes_feature([bytes(50)])}))
    damaged = bytearray(record)
    damaged[position] ^= 1
    path = tmp_path / "x.tfrecord"
    path.write_bytes(record + damaged)
    arguments = {"path": str(path), "features": {"a": STRING}}
    assert len(take(build(**arguments), 1)[0][0]) == 2
    pipeline = build(verify=True, **arguments)
    with pytest.raises(RecordError, match=f"sample 1: .* checksum of its {what} is wrong") as error:
        pipeline.run()
    assert error.value.filename == str(path)


def test_a_record_is_verified_whenever_it_is_read():
    record = tf_record(FINE)
    fmt = TfRecord({"a": Feature(UINT8)}, google_crc32c.value)
    catalog = Catalog.from_names([b"x"], [0])
    for _ in range(2):
        (strings,) = fmt.decode(catalog, np.array([0]), views_of([record]))
        assert [bytes(each) for each in strings] == [b"finest"]
    with pytest.raises(RecordError, match="checksum of its data is wrong"):
        fmt.decode(catalog, np.array([0]), views_of([record.replace(b"finest", b"fimest")]))


def test_verifying_without_its_package_says_how_to_get_it(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(BackendUnavailable, match=r"google_crc32c .*pip install .*\[verify\]'"):
        build(path=write(FINE), verify=True)


def test_a_record_that_is_no_example_is_named(write):
    pipeline = build(path=write(FINE, FINE[:-1]))
    message = "sample 1: 46 bytes at 47: not a tf.train.Example: .* byte 2.*; write the file again"
    for _ in range(2):  # it does not go on to another batch
        with pytest.raises(RecordError, match=message):
            pipeline.run()


# --- indexes and files ---------------------------------------------------------------------------


FRAMED = tf_record(FINE)
NO_INDEX, BEYOND = "has no records: no index begins with two integers", "goes beyond the end of the"
WRONG = [  # a file, its index, and the words of the error
    (
        FRAMED,
        "0 47\n1 47\n",
        "line 2: 47 bytes at 1 of '.*', which has 47 bytes; rebuild the",
    ),
    (FRAMED, "-3 5\n", "line 1: 5 bytes at -3"),
    (FRAMED, "0 47\n3 -2\n", "line 2: -2 bytes at 3"),
    (FRAMED, "9223372036854775806 9\n", "line 1: 9 bytes at 9,223,372,036,854,775,806"),
    *((FRAMED, text, NO_INDEX) for text in ("", "12", "offset size\n0 47")),
    # of another file
    (FRAMED * 2, "0 15", "sample 0: 15 bytes at 0: a record has at least 16 bytes; rebuild the in"),
    (FRAMED * 2, "0 0", "sample 0: 0 bytes at 0: a record has at least 16 bytes"),
    (FRAMED * 2, "0 30", "its header says .* bytes of data"),
    (FRAMED * 2, "0 46", "its header says 31 bytes of data"),
    (FRAMED * 2, "3 40", "its header says .* bytes of data"),
    (FRAMED * 2, "8 40", "sample 0: 40 bytes at 8: "),
    # damaged
    (b"", None, "has no records: the files are empty"),
    (FRAMED + FRAMED[:-1], None, f"record 1 at 47 {BEYOND}"),
    (FRAMED + FRAMED[:11], None, f"record 1 at 47 {BEYOND}"),
    (FRAMED + b"\n", None, f"record 1 at 47 {BEYOND} file at 48"),
    (gzip.compress(FRAMED, mtime=0), None, "record 0 .* truncated, compressed or not a TFRecord"),
    (b"\xff" * 100, None, f"record 0 at 0 {BEYOND} file at 100"),
]


@pytest.mark.parametrize(("content", "index", "message"), WRONG)
def test_a_file_that_is_damaged_or_has_a_wrong_index_is_refused(content, index, message, tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(content)
    (tmp_path / "x.idx").write_text(index or "")
    given = {"path": path, "index_path": None if index is None else str(tmp_path / "x.idx")}
    with pytest.raises(ValueError, match=message):
        build(1, **given).run()


def some_text(random):
    """Words and rubbish; no number is too large for a file of 4 KiB."""
    words = ["0", "7", "+5", "007", "4095", "12"] * 6
    words += ["0.5", "x", "1,2", "5-3", "0x7", "99999999999999999999", "\0", "-", "+ 1", "\u0661"]
    spaces = [" ", "\n", "\t", "\r\n", "\v", "\f", "  \n", ""]
    return "".join(
        random.choice(words) + random.choice(spaces[: random.choice([7, 8])])
        for _ in range(random.randrange(14))
    )


def test_indexes_are_read_as_dali_reads_them(tmp_path):
    data, index = tmp_path / "data", tmp_path / "index"
    data.write_bytes(bytes(10_000))
    compared = 0
    for seed in range(by_tier(30, 80)):
        text = "0 4\n" + some_text(Random(seed))
        index.write_text(text)
        starts, sizes = tfrecord_index.read_index(b"index", io.BytesIO(text.encode()))
        arguments = {"path": str(data), "index_path": str(index)}
        dali = build(1, fn.readers.tfrecord, name="x", **arguments)
        assert len(starts) == len(sizes) == dali.reader_meta("x")["epoch_size"], repr(text)
        compared += len(starts) > 2
    assert compared > 7


@pytest.mark.parametrize("size", [0, 1, 300, 5000, 70_000])
def test_an_index_that_is_made_is_that_of_the_records(size, tmp_path):
    payloads = [bytes(random * size // 10) for random in (3, 10, 0, 9, 10, 1, 1, 1, 1, 10)] * 30
    payloads.insert(0, bytes(65512))  # the next header is across the end of what is read at once
    path = write_tfrecord(tmp_path / "x.tfrecord", payloads, tmp_path / "expected.idx")
    assert main([str(path)]) == 0
    assert (tmp_path / "x.idx").read_bytes() == (tmp_path / "expected.idx").read_bytes()


def test_a_file_that_becomes_shorter_while_it_is_scanned_is_refused(write, monkeypatch):
    path, pread = write(FINE, bytes(9000), FINE), os.pread
    monkeypatch.setattr(
        os, "pread", lambda fd, size, at: pread(fd, size, at)[: 50 if at == 0 else 0]
    )
    with pytest.raises(ValueError, match="record 1 at 47 goes beyond the end of the file"):
        build(path=path)


# --- order and memory ----------------------------------------------------------------------------


def test_an_index_takes_12_bytes_a_record(tmp_path):
    path, index = tmp_path / "data", tmp_path / "index"
    path.touch()
    os.truncate(path, 200 * 100_000)
    lines = (b"%d 200\n" % (200 * record) for record in range(100_000))
    index.write_bytes(b"".join(lines))
    catalog = tfrecord_index.find([os.fsencode(path)], [os.fsencode(index)])
    assert catalog.ranges is not None
    assert catalog.ranges.starts.base is None or catalog.ranges.starts.base.nbytes <= 800_000
    assert catalog.ranges.starts.nbytes + catalog.ranges.sizes.nbytes == 1_200_000


def decode(records, features, kind=np.ndarray):
    """The buffer of a batch, and the outputs."""
    views = views_of(records, kind)
    catalog = Catalog.from_names([b"x"] * len(records), range(len(records)))
    return views.buffer, [*TfRecord(features).decode(catalog, np.arange(len(records)), views)]


def test_strings_are_views_of_the_batch_and_numbers_of_one_shape_one_array():
    numbered = (
        {"a": bytes_feature([bytes([number]) * 5000]), "n": int64_feature([number])}
        | {"f": float_feature([number, 1.5]), "v": int64_feature(range(number))}
        for number in range(4)
    )
    features = {"a": Feature(UINT8), "n": Feature(INT64), "f": Feature(FLOAT32, fixed=False)}
    features["v"] = Feature(INT64, fixed=False)
    records = [tf_record(example(it)) for it in numbered]
    buffer, (strings, integers, floats, lists) = decode(records, features)
    assert all(isinstance(each, memoryview) for each in strings)
    assert all(np.shares_memory(np.asarray(each), buffer) for each in strings)
    assert integers.tolist() == [0, 1, 2, 3]
    assert floats.tolist() == [[0, 1.5], [1, 1.5], [2, 1.5], [3, 1.5]]
    assert [each.tolist() for each in lists] == [[], [0], [0, 1], [0, 1, 2]]


def test_a_record_is_parsed_once_unless_it_changes_or_has_no_fixed_size(monkeypatch):
    def record(n):
        given = {"a": bytes_feature([b"%d" % n * (5000 + n)]), "n": int64_feature([n, 7])}
        return tf_record(example(given))

    def records(first):
        return [record(first + row) for row in range(4)]

    def decoded(fmt, content, batch=(2, 0, 3, 0)):
        batch = np.array(batch)
        strings, integers = fmt.decode(catalog, batch, views_of([content[row] for row in batch]))
        return [bytes(each) for each in strings], [each.tolist() for each in integers]

    parsed = []
    find = example_module.find
    monkeypatch.setattr(example_module, "find", lambda *it: parsed.append(1) or find(*it))
    catalog = Catalog.from_names([b"x"] * 4, range(4))
    fixed = TfRecord({"a": Feature(UINT8), "n": Feature(INT64, (2,))})
    for first, count in (1, 4), (1, 4), (1, 4), (5, 8), (5, 12):
        expected = [first + row for row in (2, 0, 3, 0)]
        strings = [b"%d" % n * (5000 + n) for n in expected]
        assert decoded(fixed, records(first)) == (strings, [[n, 7] for n in expected])
        assert len(parsed) == count, "of what was written anew, nothing is remembered any more"
    some_known, content = TfRecord({"a": Feature(UINT8), "n": Feature(INT64, (2,))}), records(1)
    for batch in (0, 1), (1, 2), (3, 0):
        assert decoded(some_known, content, batch)[1] == [[1 + row, 7] for row in batch]
    variable = TfRecord({"a": Feature(UINT8), "n": Feature(INT64, fixed=False)})
    large = TfRecord({"a": Feature(UINT8), "n": Feature(INT64, (100,))})
    for fmt in (variable, large):
        parsed.clear()
        assert decoded(fmt, records(1)) == decoded(fmt, records(1))
        assert len(parsed) == 8


@pytest.mark.parametrize(
    ("storage", "verify"),
    [("files", True), *((it, False) for it in ("files", "direct", "objects", "cache"))],
)
def test_later_epochs_read_the_wanted_features_only(storage, verify, write, server, tmp_path):
    """As far as that saves more than a page a record, and nothing has to be verified or cached."""
    numbered = (
        {"a": bytes_feature([b"%d" % n * 900]), "b": bytes_feature([b"x" * (60_000 + n)])}
        | {"n": int64_feature([n]), "c": bytes_feature([b"%d" % n * (3 + n)])}
        for n in range(8)
    )
    path = write(*map(example, numbered))
    arguments = {"path": path, "index_path": path.replace("tfrecord", "idx")}
    arguments |= {"random_shuffle": True, "seed": 1}
    features = {"a": STRING, "n": NUMBER}
    expected = take(build(4, fn.readers.tfrecord, features=features, **arguments), 8)
    if storage in ("objects", "cache"):
        server.put("data/x.tfrecord", Path(path).read_bytes())
        arguments["path"] = "s3://data/x.tfrecord"
    options = {
        "files": {"io": "read"},
        "direct": {"direct": True},
        "objects": {},
        "cache": {"cache": tmp_path / "cache"},
    }[storage]
    arguments |= {"verify": verify, "backend_options": options, "name": "R"}
    pipeline = build(4, features=features, **arguments)
    assert take(pipeline, 8) == expected
    statistics = dali_storage.statistics(pipeline, "R")
    each = statistics.bytes / statistics.batches / 4
    assert (each > 60_000) == (verify or storage == "cache")


def test_strings_of_small_records_do_not_pass_for_memory_of_the_batch():
    """Their bytes were gathered from the buffer, which may be page-locked."""
    buffer, (strings,) = decode([tf_record(FINE)] * 3, {"a": Feature(UINT8)}, Lease)
    assert [bytes(each) for each in strings] == [b"finest"] * 3
    assert not any(np.shares_memory(each, buffer) for each in strings)
    assert not any(gpu_memory._is_leased(each) for each in strings)
