"""readers.parquet: outputs, labels, indexes, and what is refused by name."""

import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dali_storage import readers
from dali_storage.cli import index as make_index
from dali_storage.contract.errors import ContainerChangedError
from dali_storage.readers.batches import batches
from tests.kit.parity import BACKENDS, build
from tests.kit.tables import write_table
from tests.kit.tiers import by_tier

IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
CATS = ["cat", "dog", "owl"]


def images(count, seed=0):
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 9000, count).tolist()
    return [{"bytes": random.bytes(size), "path": "x"} for size in sizes]


def features(names, column="label"):
    """What datasets writes into the schema."""
    about = {"info": {"features": {column: {"names": names, "_type": "ClassLabel"}}}}
    return {"huggingface": json.dumps(about)}


def table(cells, labels, metadata=None):
    made = pa.table({"image": pa.array(cells, IMAGE), "label": labels})
    return made.replace_schema_metadata(metadata)


def rows(*paths, **given):
    """All outputs of all rows, and the catalog."""
    given = {"paths": [*paths], "pad_last_batch": True, "backend": "memory"} | given
    with batches(readers.parquet, batch_size=1, **given) as found:
        outputs = [batch.outputs for batch in found]
        outputs = [it if isinstance(it, tuple) else (it,) for it in outputs]
        values = [[bytes(it[0]) for it in row] for row in outputs]
        return values, found.catalog


def labels(*paths, **given):
    values, catalog = rows(*paths, **given)
    return [int.from_bytes(row[-1], "little", signed=True) for row in values], catalog.classes


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(("backend", "options"), BACKENDS)
def test_rows_are_those_that_pyarrow_reads(backend, options, indexed, tmp_path):
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet", tmp_path / "c.parquet"]
    for number, (file, count) in enumerate(zip(files, (30, 0, 7), strict=True)):
        cells = images(count, number)
        made = table(cells, pa.array([n % 3 for n in range(count)], pa.int64()), features(CATS))
        made = made.append_column("mask", pa.array([b"m" * n for n in range(count)], pa.binary()))
        write_table(file, made, row_group_size=8, data_page_size=9000)
    given = {"backend": backend, "backend_options": options, "columns": ["image", "mask"]}
    if indexed:
        assert make_index.main([*map(str, files)]) == 0
        given["index_paths"] = [file.with_suffix(".idx") for file in files]
    values, catalog = rows(*files, **given)
    expected = [it for file in files for it in pq.read_table(file).to_pylist()]
    assert values == [
        [it["image"]["bytes"], it["mask"], struct.pack("<i", it["label"])] for it in expected
    ]
    assert catalog.classes == tuple(CATS)
    assert catalog.containers.tolist() == [30, 0, 7]


def test_a_pipeline_has_a_node_for_each_column_and_the_label(tmp_path):
    path = write_table(tmp_path / "x", table(images(4), [5, 6, 7, -(2**31)]))
    data, label = build(readers.parquet, 4, {}, paths=path).run()
    assert [bytes(np.asarray(it)) for it in data] == [it["bytes"] for it in images(4)]
    assert label.as_array().ravel().tolist() == [5, 6, 7, -(2**31)]
    (data,) = build(readers.parquet, 4, {}, paths=path, label=None).run()
    assert [bytes(np.asarray(it)) for it in data] == [it["bytes"] for it in images(4)]


LABELS = {
    "text": (["owl", "cat", "b\u00e9e", "cat"], [2, 1, 0, 1], ("b\u00e9e", "cat", "owl")),
    "large": (pa.array(["b", "a", "b", "c"], pa.large_string()), [1, 0, 1, 2], ("a", "b", "c")),
    "view": (pa.array(["b", "a", "b", "c"], pa.string_view()), [1, 0, 1, 2], ("a", "b", "c")),
    "category": (pa.array(["b", "a", "b", "c"]).dictionary_encode(), [1, 0, 1, 2], tuple("abc")),
    "uint8": (pa.array([9, 0, 255, 3], pa.uint8()), [9, 0, 255, 3], None),
    "bool": ([True, False, True, True], [1, 0, 1, 1], None),
}


@pytest.mark.parametrize("compression", ["none", "snappy"])
@pytest.mark.parametrize(("given", "numbers", "names"), LABELS.values(), ids=LABELS)
def test_labels_of_all_kinds(given, numbers, names, compression, tmp_path):
    options = {"compression": {"label": compression, "image.bytes": "none", "image.path": "gzip"}}
    options |= {"use_dictionary": ["label"], "row_group_size": 3}
    path = write_table(tmp_path / "x", table(images(4), given), **options)
    assert labels(path) == (numbers, names)


def test_text_is_numbered_over_all_files_or_by_the_given_classes(tmp_path):
    one = write_table(tmp_path / "1", table(images(2), ["dog", "owl"]))
    two = write_table(tmp_path / "2", table(images(1), ["cat"]))
    assert labels(one, two) == ([1, 2, 0], tuple(CATS))
    assert labels(one, classes=["owl", "fox", "dog"]) == ([2, 0], ("owl", "fox", "dog"))
    with pytest.raises(ValueError, match=r"2': row 0 has the label 'cat', which is not in classes"):
        labels(one, two, classes=["owl", "dog"])


def test_classes_number_those_of_the_schema_and_none_stays_none(tmp_path):
    path = write_table(tmp_path / "x", table(images(4), [0, 2, -1, 1], features(CATS)))
    assert labels(path, classes=["owl", "cat", "dog"])[0] == [1, 0, -1, 2]
    with pytest.raises(ValueError, match="the label 'dog', which is not in classes"):
        labels(path, classes=["owl", "cat"])


def test_rows_without_values_are_refused_left_out_or_empty(tmp_path):
    cells = [{"bytes": b"a"}, None, {"bytes": None}, {"bytes": b""}, {"bytes": b"b"}]
    path = write_table(tmp_path / "x", table(cells, range(5)))
    with pytest.raises(ValueError, match=r"x': row 1 has no value in 'image' \(2 rows lack one\)"):
        rows(path)
    assert labels(path, missing="skip")[0] == [0, 3, 4]
    assert [it for it, _ in rows(path, missing="skip")[0]] == [b"a", b"", b"b"]
    assert [it for it, _ in rows(path, missing="empty")[0]] == [b"a", b"", b"", b"", b"b"]


def test_tables_are_mixed(tmp_path):
    files = [tmp_path / "1", tmp_path / "2"]
    for number, file in enumerate(files):
        write_table(file, table(images(3 * number + 2, number), [number] * (3 * number + 2)))
    sources = {file.name: {"paths": file} for file in files}
    given = {"sources": sources, "reader": "parquet", "labels": "own", "shuffle": False}
    with batches(readers.mix, batch_size=7, pad_last_batch=True, **given) as found:
        ((data, label),) = [batch.outputs for batch in found]
    for number, count in ((0, 2), (1, 5)):
        its = [bytes(it) for it, which in zip(data, label, strict=True) if which == number]
        assert its == [it["bytes"] for it in images(count, number)]


def test_a_shuffled_epoch_goes_on_with_other_ranks(tmp_path):
    files = [tmp_path / "1", tmp_path / "2"]
    for number, file in enumerate(files):
        write_table(file, table(images(16, number), range(16 * number, 16 * number + 16)))

    def rank(batch_size, **more):
        order = {"shuffle_after_epoch": True, "seed": 3, "pad_last_batch": True}
        return build(readers.parquet, batch_size, {}, paths=files, name="R", **order, **more)

    def take(pipeline, count):
        outputs = [pipeline.run() for _ in range(count)]
        return [
            (int(np.asarray(label[n])[0]), bytes(np.asarray(data[n])))
            for data, label in outputs
            for n in range(len(data))
        ]

    first = rank(4)
    seen = take(first, 3)
    state = json.loads(json.dumps(readers.state(first, "R")))
    for shard in range(2):
        seen += take(rank(5, shard_id=shard, num_shards=2, resume=state), 2)
    whole = dict(enumerate(it["bytes"] for number in range(2) for it in images(16, number)))
    assert [label for label, _ in seen] != [*range(32)]
    assert sorted(seen) == sorted(whole.items())


# --- what is refused ----------------------------------------------------------------------------

PATHS = "'id', 'image.bytes', 'image.path', 'label', 'pair.left', 'tags.list.element', 'text'"
ARGUMENTS = {
    "misspelt": ({"columns": "imge"}, f"there is no column 'imge' of bytes; there are {PATHS}"),
    "text": ({"columns": "text"}, "the column 'text' has values of type STRING, not bytes; there "),
    "numbers": (
        {"columns": "id"},
        "the column 'id' has values of type INT64, not bytes; there are",
    ),
    "lists": ({"columns": "tags"}, "the column 'tags' has lists; a sample must be one value"),
    "leaf of lists": ({"columns": "tags.list.element"}, "has lists; a sample must be one value"),
    "a struct": ({"columns": "pair"}, f"there is no column 'pair' of bytes; there are {PATHS}"),
    "label": ({"label": "lable"}, rf"no column 'lable' for labels; there are {PATHS}: give one of"),
    "label of lists": ({"label": "tags"}, "there is no column 'tags' for labels"),
    "label of bytes": ({"label": "pair.left"}, "pyarrow cannot read the labels in 'pair.left'"),
    "label of floats": ({"label": "ratio"}, "the labels in 'ratio' are double, not integers or t"),
    "label of nulls": ({"label": "gaps"}, "row 1 has no label in 'gaps'; write one, or give label"),
    "large label": ({"label": "large"}, "row 0 has the label 2147483648 in 'large', which must be"),
    "classes of numbers": ({"classes": ["a"]}, "classes is for labels with names, but the labels"),
}


@pytest.mark.parametrize(("given", "message"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_a_wrong_column_is_refused_with_those_that_are_there(given, message, tmp_path):
    made = pa.table({
        "id": range(2),
        "image": pa.array(images(2), IMAGE),
        "label": range(2),
        "pair": [{"left": b"a"}] * 2,
        "tags": [[b"a"], []],
        "text": ["a", "b"],
    })  # fmt: skip
    more = {"ratio": [0.5, 1.0], "gaps": [1, None], "large": [2**31, 0]}
    if (name := given.get("label")) in more:
        made = made.append_column(name, [more[name]])
    path = write_table(tmp_path / "x.parquet", made)
    with pytest.raises(ValueError, match=message) as error:
        rows(path, **given)
    assert path in str(error.value) or "classes" in given


STORED = {
    "snappy": ({"compression": "snappy"}, "SNAPPY"),
    "zstd": ({"compression": "zstd", "use_dictionary": True}, "ZSTD"),
    "delta lengths": (
        {"column_encoding": {"image.bytes": "DELTA_LENGTH_BYTE_ARRAY"}},
        "DELTA_LENG",
    ),
    "delta": ({"column_encoding": {"image.bytes": "DELTA_BYTE_ARRAY"}}, "DELTA_BYTE_ARRAY"),
}


@pytest.mark.parametrize(("options", "how"), STORED.values(), ids=STORED)
def test_values_that_are_not_stored_plainly_are_refused_with_the_remedy(options, how, tmp_path):
    path = write_table(tmp_path / "x.parquet", table(images(3), range(3)), **options)
    message = rf"x.parquet': the values of the column 'image.bytes' are not .* \({how}.*unpack FILE"
    with pytest.raises(ValueError, match=message):
        rows(path)


@pytest.fixture
def good(tmp_path):
    cells = [{"bytes": bytes([65 + n]) * 1000, "path": None} for n in range(20)]
    return Path(write_table(tmp_path / "good.parquet", table(cells, range(20))))


def cut(content, at, end):
    return content[:at] + content[end:]


def put(content, at, value):
    return content[:at] + value + content[at + len(value) :]


FIRST = struct.pack("<I", 1000) + b"A" * 9  # the first length and value
DAMAGED = {
    "empty": (lambda it: b"", "the file is empty"),
    "of another format": (lambda it: b"PK\3\4" + bytes(500), "not Parquet, or is truncated"),
    "seven bytes": (lambda it: b"PAR1\0\0\0", "not Parquet, or is truncated"),
    "a pointer": (lambda it: b"version https://git-lfs.github.com/spec/v1\n", "run git lfs pull"),
    "cut in the footer": (lambda it: it[:-50], "not Parquet, or is truncated"),
    "cut in the data": (lambda it: cut(it, 5000, 9000), "fewer than its footer says"),
    "long footer": (lambda it: put(it, len(it) - 8, b"\xff\xff\xff"), "not Parquet, or is trunc"),
    "wrong footer": (lambda it: put(it, len(it) - 60, b"\xff" * 30), "its footer is damaged"),
    "encrypted": (lambda it: it[:-4] + b"PARE", "the file is encrypted"),
    "no header": (lambda it: put(it, 4, bytes(20)), "the page header at 4 is wrong"),
    "length too long": (
        lambda it: put(it, it.index(FIRST), struct.pack("<I", 1001)),
        "the page at 4",
    ),
    "length too short": (
        lambda it: put(it, it.index(FIRST), struct.pack("<I", 999)),
        "the page at 4",
    ),
    "length beyond": (
        lambda it: put(it, it.index(FIRST), struct.pack("<I", 2**31)),
        "do not add up",
    ),
}


@pytest.mark.parametrize(("change", "message"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_by_name(change, message, good):
    good.write_bytes(change(good.read_bytes()))
    with pytest.raises(ValueError, match=rf"good.parquet': .*{message}"):
        rows(good)


def test_a_page_beyond_its_column_is_refused(tmp_path):
    path = Path(tmp_path / "x.parquet")
    write_table(path, {"image": pa.array([b"a", b"b"])}, write_statistics=False)
    content = path.read_bytes()
    size = b"\x15\x20\x15\x20"  # zigzag: the sizes of a page with 16 bytes
    assert content[4:].startswith(b"\x15\x00" + size)
    path.write_bytes(content.replace(size, b"\x15\x7e\x15\x7e"))
    with pytest.raises(ValueError, match=r"page header at 4 is wrong: its 63 bytes do not fit"):
        rows(path, label=None)


def test_encrypted_columns_are_refused_before_pyarrow_ends_the_process(tmp_path):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Kms(encryption.KmsClient):
        def __init__(self, config):
            super().__init__()

        def wrap_key(self, key, master):
            return key

        def unwrap_key(self, key, master):
            return key

    factory, config = encryption.CryptoFactory(Kms), encryption.KmsConnectionConfig()
    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["image"]}, plaintext_footer=True
    )
    made = pa.table({"image": [b"a"], "label": [1]})
    given = {"encryption_properties": factory.file_encryption_properties(config, how)}
    path = write_table(tmp_path / "x.parquet", made, **given)
    for label in ("label", None):
        with pytest.raises(ValueError, match=r"x.parquet': the file has encrypted columns"):
            rows(path, label=label)


def test_files_of_different_data_sets_are_refused(tmp_path):
    one = write_table(tmp_path / "1", table(images(2), [0, 1], features(CATS)))
    for names, message in (
        (features(["cat", "dog"]), "2' has other classes than '.*1'"),
        (None, "2' has other classes than '.*1': numbers and"),
    ):
        two = write_table(tmp_path / "2", table(images(2), [0, 1], names))
        with pytest.raises(ValueError, match=message):
            rows(one, two)
    two = write_table(tmp_path / "2", pa.table({"image": [b"a"], "class": [1]}))
    with pytest.raises(ValueError, match=r"2': there is no column 'label' for labels"):
        rows(one, two)
    bad = write_table(tmp_path / "3", table(images(1), [3], features(CATS)))
    with pytest.raises(
        ValueError, match=r"3': row 0 has the label 3 in 'label', which must be from -1 to 2"
    ):
        rows(bad)


def test_files_without_rows_are_refused_only_if_all_are(tmp_path):
    none = write_table(tmp_path / "none", table([], pa.array([], pa.int64())))
    with pytest.raises(ValueError, match=r"path '.*none', ... has no rows"):
        rows(none, none)
    one = write_table(tmp_path / "one", table(images(1), pa.array([4], pa.int64())))
    assert labels(none, one) == ([4], None)


# --- indexes ------------------------------------------------------------------------------------


def indexed(path):
    assert make_index.main([str(path)]) == 0
    return path.with_suffix(".idx")


def test_an_index_of_another_state_of_the_file_is_refused_by_name(good):
    index = indexed(good)
    content, times = good.read_bytes(), good.stat()
    changed = content.replace(b"parquet-cpp-arrow", b"parquet-cpp-Arrow")  # in the footer
    for written, at_ns in ((content, 1), (content[:4] + b"x" + content[4:], 0), (changed, 0)):
        good.write_bytes(written)
        os.utime(good, ns=(1, at_ns or times.st_mtime_ns))
        with pytest.raises(ContainerChangedError, match="of another file, or the file wa") as error:
            rows(good, index_paths=index)
        assert error.value.filename == str(good)
    good.write_bytes(content)
    os.utime(good, ns=(1, times.st_mtime_ns))
    assert len(rows(good, index_paths=index)[0]) == 20


def test_a_damaged_index_and_one_that_lacks_the_column_are_refused_by_name(good, tmp_path):
    index = indexed(good)
    content = index.read_bytes()
    step = by_tier(37, 1)
    for at in range(0, len(content), step):
        index.write_bytes(put(content, at, bytes([content[at] ^ 4])))
        with pytest.raises(ValueError, match=r"index_paths '.*good.idx' (is|has)"):
            rows(good, index_paths=index)
    index.write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"good.idx' is damaged"):
        rows(good, index_paths=index)
    lists = write_table(tmp_path / "lists.parquet", {"image": [[b"a"]]})
    with pytest.raises(
        ValueError, match=r"lists.parquet': no column has bytes; there are 'image.l"
    ):
        make_index.write(lists, str(tmp_path / "lists.idx"), lambda done: None)


def test_a_file_that_cannot_be_indexed_is_named_with_the_reason(tmp_path, capsys):
    path = write_table(tmp_path / "x.parquet", table(images(1), [1]), compression="gzip")
    assert make_index.main([path]) == 1
    assert f"error: {path!r}: the values of the column 'image.bytes'" in capsys.readouterr().err


def test_a_file_that_is_replaced_while_it_is_read_is_refused(good):
    with batches(readers.parquet, batch_size=1, paths=good, pad_last_batch=True) as found:
        os.replace(shutil.copy(good, f"{good}.twin"), good)
        with pytest.raises(ContainerChangedError) as error:
            list(found)
    assert error.value.filename == str(good)


# --- objects ------------------------------------------------------------------------------------


def put_there(server, files):
    """Put files where URLs name them, which are returned."""
    for file in files:
        server.put(f"data/c/{file.name}", file.read_bytes())
    return [f"s3://data/c/{file.name}" for file in files]


@pytest.fixture
def tables(tmp_path):
    """Files with values of 20 to 200 kB and of a few bytes, nulls and a dictionary; text labels."""
    random = np.random.default_rng(3)
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    for file, (count, high) in zip(files, ((40, 200_000), (900, 90), (60, 50_000)), strict=True):
        sizes = random.integers(high // 10, high, count).tolist()
        cells = [{"bytes": random.bytes(size)} if n % 7 else None for n, size in enumerate(sizes)]
        names = [CATS[n % 3] for n in range(count)]
        options = {"use_dictionary": count == 60, "row_group_size": count // 3}
        write_table(file, table(cells, names), data_page_size=1 << 18, **options)
    return files


@pytest.mark.parametrize(("by_index", "web"), [(False, False), (True, False), (False, True)])
def test_objects_are_read_as_files_are_and_values_are_not_read_to_find_them(
    by_index, web, server, tables
):
    given = {"backend": None, "missing": "skip"}
    expected, there = rows(*tables, **given), put_there(server, tables)
    there = [it.replace("s3:/", server.url) for it in there] if web else there
    if by_index:
        given["index_paths"] = [*map(indexed, tables)]
    server.log(clear=True)
    with batches(readers.parquet, paths=there, batch_size=1, pad_last_batch=True, **given):
        ranges = [it.headers["range"] for it in server.log(clear=True) if it.kind == "GET"]
        places = [[*map(int, it.removeprefix("bytes=").split("-"))] for it in ranges if it]
        asked = sum(end - start + 1 for start, end in places)
    assert asked < sum(map(os.path.getsize, tables)) / 8
    assert len(ranges) < (16 if by_index else 200)
    values, catalog = rows(*there, **given)
    assert values == expected[0]
    assert catalog.classes == expected[1].classes


@pytest.mark.parametrize("of_url", [False, True])
def test_an_index_of_another_object_is_refused_by_name(of_url, server, tables, tmp_path):
    index = indexed(tables[0])
    (url,) = put_there(server, [tables[0]])
    content = tables[1].read_bytes()
    if of_url:  # it has the version, so a new value in place of an old one is noticed
        (tmp_path / "out").mkdir()
        assert make_index.main([url, "-o", str(tmp_path / "out")]) == 0
        index = tmp_path / "out/0.idx"
        assert len(rows(url, index_paths=index, backend=None, missing="skip")[0]) == 34
        content = put(tables[0].read_bytes(), 5000, b"other")
    server.put("data/c/0.parquet", content)
    with pytest.raises(ContainerChangedError, match="is of another file, or the file was") as error:
        rows(url, index_paths=index, backend=None, missing="skip")
    assert error.value.filename == url
