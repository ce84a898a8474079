"""readers.mds and readers.litdata. What is expected was written by struct and numpy."""

import json
import os
import re
import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage import readers
from dali_storage.contract.errors import ContainerChangedError, RecordError
from dali_storage.contract.views import Views
from dali_storage.formats.shards import litdata, mds
from dali_storage.formats.shards.records import ShardColumns, find
from tests.kit.parity import BACKENDS, build, take, written
from tests.kit.shards import LEAF, dict_of, file_of, write_litdata, write_mds

RANDOM = np.random.default_rng(5)
SIZES = [0, 1, 7, 5000, 0, 90_000, 3]
NUMBERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
NUMBERS += ["float16", "float32", "float64"]
RAW = ["bytes", "str", "jpeg", "png", "json", "str_int", "str_float", "str_decimal", "jpeg:95"]
ARRAYS = {
    "float32:4": (4,),
    "float64:2,3": (2, 3),
    "uint8:90,70": (90, 70),
    "int16:1,2,1": (1, 2, 1),
}


def array_of(dtype, shape):
    dtype = np.dtype(dtype)
    content = np.frombuffer(RANDOM.bytes(int(np.prod(shape)) * dtype.itemsize), np.uint8)
    return (content & 1 if dtype.kind == "b" else content).view(dtype).reshape(shape)


def values_of(columns, count):
    """The values of some samples, by column: raw ones have all SIZES in turn."""
    return [
        {
            name: array_of(dtype, shape or SIZES[(number + place) % len(SIZES)])
            for place, (name, (dtype, shape)) in enumerate(columns.items())
        }
        for number in range(count)
    ]


def cut(items, *counts):
    items = iter(items)
    return [[next(items) for _ in range(count)] for count in counts]


def of_mds(root):
    """A data set with all encodings that are read, in shards of 5, 1 and 8 samples."""
    columns = {f"raw {it}": (it, "u1", None) for it in RAW}
    columns |= {f"a {it}": (it, it, (1,)) for it in NUMBERS} | {"int": ("int", "i8", (1,))}
    columns |= {
        f"z {it}": (f"ndarray:{it}", it.split(":")[0], shape) for it, shape in ARRAYS.items()
    }
    values = values_of({name: it[1:] for name, it in columns.items()}, 14)
    bytes_of = [{name: it.tobytes() for name, it in each.items()} for each in values]
    sizes = {name: it.nbytes if columns[name][2] else None for name, it in values[0].items()}
    encodings = {name: (it[0], sizes[name]) for name, it in columns.items()}
    encodings |= {"list": ("list[jpeg]", None), "pkl": ("pkl", None)}
    for each in bytes_of:
        each.update(list=b"abc", pkl=b"\x80\x04.")
    places = "train/shard.00000.mds", "train/a/shard.00000.mds", "train/a/shard.00001.mds"
    merged = {it[6:]: its for it, its in zip(places, cut(bytes_of, 5, 1, 8), strict=True)}
    write_mds(root / "train", encodings, merged)
    return "mds", {"path": root, "split": "train"}, values


LITDATA = {"jpeg": ("u1", None), "int": ("i8", (1,)), "float": ("f8", (1,)), "bool": ("?", (1,))}
LITDATA |= {"no_header_numpy:9": ("f4", None), "no_header_tensor:18": ("i8", None)}
LITDATA |= {"str": ("u1", None), "image:png": ("u1", None), "no_header_numpy:3": ("i8", None)}


def of_litdata(root, *, old=False):
    """A data set with leaves of a dict in a dict, and a tuple in it, in chunks of 5, 1 and 8."""
    names = ["image", "meta.id", "meta.x", "meta.2.0", "meta.2.1", "meta.2.2", "a", "b", "c"]
    columns = dict(zip(names, LITDATA.values(), strict=True))
    values = values_of(columns, 14)
    pair = {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF] * 3}
    meta = dict_of(id=LEAF, x=LEAF, **{"2": pair})
    spec = dict_of(image=LEAF, meta=meta, a=LEAF, b=LEAF, c=LEAF)
    chunks = cut([[it.tobytes() for it in each.values()] for each in values], 5, 1, 8)
    write_litdata(root, spec, [*LITDATA], chunks, old=old)
    return "litdata", {"path": root}, values


def delivered(reader, names, **arguments):
    """The samples of an epoch: the array of each column."""
    pipeline = build(getattr(readers, reader), 5, {}, columns=names, name="R", **arguments)
    size = pipeline.reader_meta("R")["epoch_size"]
    batches = take(pipeline, -(-size // 5))
    return [it for batch in batches for it in zip(*batch, strict=True)][:size]


def described(values):
    return [tuple((str(it.dtype), it.shape, it.tobytes()) for it in its) for its in values]


MAKERS = [of_mds, of_litdata, partial(of_litdata, old=True)]


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
@pytest.mark.parametrize("make", MAKERS)
def test_columns_are_those_that_were_written(make, backend, options, tmp_path):
    reader, arguments, values = make(tmp_path)
    storage = {"backend": backend, "backend_options": options}
    found = delivered(reader, [*values[0]], **arguments, **storage)
    assert found == described(it.values() for it in values)


@pytest.mark.parametrize("make", MAKERS[:2])
def test_columns_are_read_from_objects(make, tmp_path, server):
    reader, arguments, values = make(tmp_path)
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        server.put(f"data/c/{path.relative_to(tmp_path)}", path.read_bytes())
    names = [*values[0]][::3]
    found = delivered(reader, names, **arguments | {"path": "s3://data/c"})
    assert found == described([it[name] for name in names] for it in values)


def found_in(reader, root, columns):
    parse = {"mds": mds.parse, "litdata": litdata.parse}[reader]
    return find(os.fsencode(root), [columns], parse)


def edit(root, change):
    path = root / "index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps(change(index) or index))


def first(**changes):
    """A change of the first shard or chunk of an index."""
    return lambda index: index.get("shards", index.get("chunks"))[0].update(changes)


def configured(**changes):
    return lambda index: index["config"].update(changes)


BELOW = "which is not below the directory; merge the indexes"
CHANGES = [
    ("mds", first(version=1), "shard.00000.mds' is of format 'mds', version 1; only 'mds', 2"),
    ("mds", first(format="json"), "format 'json', version 2; only 'mds', 2 is read: write it by"),
    ("mds", first(column_encodings=["int64"]), "'shard.00001.mds' has other columns or encodings"),
    ("mds", first(samples=-1), "has a negative number of samples or bytes; it is truncated or"),
    ("mds", first(samples="1"), "index.json' lacks an entry .TypeError: .*; .*copy it again"),
    ("mds", lambda index: {"version": 2}, "lacks an entry .*'shards'.; it is truncated"),
    ("mds", lambda index: [1], "index.json' lacks an entry"),
    ("mds", lambda index: index.update(shards=[]), "/data' has no samples"),
    ("mds", lambda index: index.update(chunks=[]), "is a data set of litData: use readers.litdata"),
    *(("mds", first(raw_data={"basename": it, "bytes": 9}), BELOW) for it in ("../x", "/x", "")),
    *(("litdata", first(filename=it), BELOW) for it in ("a/../../x", "a\0", "a/")),
    ("litdata", configured(compression="zstd"), "compression='zstd', which is not read; write"),
    ("litdata", configured(encryption={"level": "chunk"}), "encryption={'level': 'chunk'}, which"),
    ("litdata", configured(item_loader="TokensLoader"), "item_loader=TokensLoader, which is not"),
    ("litdata", configured(data_format=["int"] * 2), "has 1 leaves, data_format 2.; it is trunc"),
    ("litdata", configured(data_spec="{"), "is not JSON .*; it is truncated or damaged: copy it"),
    ("litdata", lambda index: index.update(shards=[]), "is a data set of MDS: use readers.mds"),
]


@pytest.mark.parametrize(("reader", "change", "message"), CHANGES)
def test_an_index_that_cannot_be_used_is_refused(reader, change, message, tmp_path):
    given = written(reader, root := tmp_path / "data", [2, 1])
    edit(root, change)
    with pytest.raises(ValueError, match=message):
        found_in(reader, root, given["columns"])
    content = (root / "index.json").read_bytes()
    (root / "index.json").write_bytes(content[:-9])
    with pytest.raises(ValueError, match=r"index.json' is not JSON .* copy it again"):
        found_in(reader, root, given["columns"])


REFUSED = {
    "list[jpeg]": "write it as bytes",
    "ndarray:bool:3": "write it with dtype and shape",
    "ndarray:float32": "write it with dtype and shape, such as ndarray:float32:3,4; or read other",
    "pil": "write it as jpeg or png",
    "pkl": "pickles are never loaded",
    "uint8": "'uint8' .size None. has no plain values",
}
REFUSED_LEAVES = {
    "no_header_numpy:40": "has no plain values; give optimize.. bytes, text, numbers or 1-D arrays",
    "numpy": "flatten arrays",
    "pickle": "pickles are never loaded",
    "tensor": "flatten tensors",
}


def test_columns_that_dali_cannot_take_are_refused_by_name(tmp_path):
    columns = {it: (it, None) for it in REFUSED}
    write_mds(tmp_path, columns, {"x": [dict.fromkeys(REFUSED, b"")]})
    for name, remedy in REFUSED.items():
        with pytest.raises(ValueError, match=f"column {re.escape(repr(name))}: .*{remedy}"):
            found_in("mds", tmp_path, name)
    with pytest.raises(
        ValueError, match=r"no column 'x': it has 'list\[jpeg\]', 'ndarray:bool:3', "
    ):
        found_in("mds", tmp_path, "x")
    spec = dict_of(**dict.fromkeys(REFUSED_LEAVES, LEAF))
    write_litdata(tmp_path, spec, [*REFUSED_LEAVES], [[[b""] * len(REFUSED_LEAVES)]])
    for name, remedy in REFUSED_LEAVES.items():
        with pytest.raises(ValueError, match=f"column '{name}': .*{remedy}"):
            found_in("litdata", tmp_path, name)


def swapped(paths):
    one, two = (it.read_bytes() for it in paths)
    paths[0].write_bytes(two)
    paths[1].write_bytes(one)


def other(paths):
    """Another shard of the same length, with another number of samples."""
    content = paths[0].read_bytes()
    paths[0].write_bytes(file_of([b""], bytes(len(content) - 12)))


def poked(word, value):
    return lambda paths: put(paths[0], word, value)


def put(path, word, value):
    with path.open("r+b") as file:
        file.seek(4 * word)
        file.write(struct.pack("<I", value))


DAMAGES = {
    "cut": (lambda paths: os.truncate(paths[0], 50), "it has 50 bytes, not "),
    "swapped": (
        swapped,
        "it has .* bytes, not .* for 2 samples; it is truncated, damaged, or of an",
    ),
    "of the same length": (other, "its table of 1 offsets is not one of 2 samples in .* bytes"),
    "descending": (poked(2, 9), "its table of 2 offsets is not one of 2 samples"),
    "of another end": (poked(3, 9), "its table of 2 offsets"),
    "of an early start": (poked(1, 9), "its table of 2 offsets"),
}


@pytest.mark.parametrize("reader", ["mds", "litdata"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_shard_that_is_not_the_one_in_the_index_is_refused(reader, damage, tmp_path):
    columns = written(reader, tmp_path, [2, 9])["columns"]
    paths = sorted(tmp_path.glob("*[0-9].*"))
    damaged, message = DAMAGES[damage]
    damaged(paths)
    with pytest.raises(ContainerChangedError, match=message) as caught:
        found_in(reader, tmp_path, columns)
    assert caught.value.filename == str(paths[0])


def test_an_index_of_more_samples_than_a_shard_has_room_for_is_refused(tmp_path):
    columns = written("litdata", tmp_path, [2])["columns"]
    edit(tmp_path, first(chunk_size=2**62))
    with pytest.raises(ContainerChangedError, match=r"it has 40 bytes, not 40 or .* for 4,611,"):
        found_in("litdata", tmp_path, columns)


def test_chunks_of_arrow_tables_are_refused_by_the_way_to_write_others(tmp_path):
    columns = written("litdata", tmp_path, [2])["columns"]
    content = file_of([b"", b""]) + b"ARROW1" + struct.pack("<I", 6) + b"LDARW01\0"
    (tmp_path / "chunk-0-0.bin").write_bytes(content)
    edit(tmp_path, first(chunk_bytes=len(content)))
    with pytest.raises(ValueError, match=r"chunk-0-0.bin': its rows are Arrow .*optimize.. tuples"):
        found_in("litdata", tmp_path, columns)


def test_a_shard_that_exists_only_compressed_is_named_with_the_command(tmp_path):
    columns = written("mds", tmp_path, [2])["columns"]
    packed = {"basename": "a/shard.00000.mds.zstd", "bytes": 9, "hashes": {}}
    edit(tmp_path, first(compression="zstd:7", zip_data=packed))
    assert found_in("mds", tmp_path, columns).delivered == 2
    (tmp_path / "shard.00000.mds").unlink()
    message = f"compressed .*: zstd -d {tmp_path}/a/.*.zstd: '{tmp_path}/shard.00000.mds'"
    with pytest.raises(FileNotFoundError, match=message):
        found_in("mds", tmp_path, columns)


def test_a_shard_of_four_gigabytes_is_read(tmp_path):
    columns = written("mds", tmp_path, [3])["columns"]
    path, end = tmp_path / "shard.00000.mds", 2**32 - 1
    put(path, 3, end - 8)
    put(path, 4, end)
    os.truncate(path, end)
    edit(tmp_path, first(raw_data={"basename": path.name, "bytes": end}))
    ranges = found_in("mds", tmp_path, columns).ranges
    assert ranges.starts[1:].tolist() == [ranges.starts[0] + 8, end - 8]
    assert ranges.sizes.tolist() == [8, end - 16 - ranges.starts[0], 8]


WORDS = {"mds": 5 * 4 + 4, "litdata": 3 * 4 + 4}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """By reader: a directory, its shard's content, and the positions of its table and sizes."""
    columns = {"a": ("bytes", None), "b": ("str", None), "n": ("int", 8)}
    sizes = [(0, 3), (5, 0), (0, 0), (9, 4)]
    rows = [{"a": RANDOM.bytes(a), "b": RANDOM.bytes(b), "n": RANDOM.bytes(8)} for a, b in sizes]
    made = {}
    for reader in ("mds", "litdata"):
        root = tmp_path_factory.mktemp(reader)
        if reader == "mds":
            write_mds(root, columns, {"x": rows})
        else:
            leaves = [[*it.values()] for it in rows]
            write_litdata(root, dict_of(a=LEAF, b=LEAF, n=LEAF), ["bytes", "str", "int"], [leaves])
        (path,) = {*root.iterdir()} - {root / "index.json"}
        content = path.read_bytes()
        starts = struct.unpack_from("<4I", content, 4)
        stored = 2 if reader == "mds" else 3
        words = [*range(0, 24, 4), *(at + 4 * it for at in starts for it in range(stored))]
        made[reader] = path, content, words
    return made


def outputs_of(reader, path):
    catalog = found_in(reader, path.parent, "a")
    content, ranges = np.frombuffer(path.read_bytes(), np.uint8), catalog.ranges
    views = Views(content, ranges.starts, ranges.sizes.astype(np.int64))
    outputs = ShardColumns(reader, ["n", "b", "a"]).decode(catalog, np.arange(len(ranges)), views)
    return [[bytes(memoryview(it).cast("B")) for it in output] for output in outputs]


@given(reader=st.sampled_from(["mds", "litdata"]), data=st.data())
def test_a_changed_word_is_an_error_or_changes_no_byte(small, reader, data):
    path, content, words = small[reader]
    path.write_bytes(content)
    expected = outputs_of(reader, path)
    at = data.draw(st.sampled_from(words))
    (value,) = struct.unpack_from("<I", content, at)
    near = st.integers(max(value - 40, 0), value + 40)
    changed = struct.pack("<I", data.draw(near | st.integers(0, 2**32 - 1)))
    path.write_bytes(content[:at] + changed + content[at + 4 :])
    try:
        assert outputs_of(reader, path) == expected
    except (ContainerChangedError, RecordError) as error:
        assert str(path) in str(error)  # noqa: PT017


def test_a_wrong_size_in_a_record_is_an_error_of_its_sample(small):
    path, content, words = small["litdata"]
    path.write_bytes(content)
    put(path, words[-2] // 4, 5)
    with readers.batches(readers.litdata, batch_size=3, path=path.parent, columns="a") as batches:
        batches = iter(batches)
        next(batches)
        with pytest.raises(
            RecordError, match=r"sample 3: 33 bytes at \d+, but the sizes of its col"
        ):
            next(batches)


def test_data_sets_with_equal_columns_are_mixed(tmp_path):
    for name, count in (("a", 3), ("b", 5)):
        written("mds", tmp_path / name, [count])
    columns = {"n": ("int32", 4)}
    write_mds(tmp_path / "c", columns, {"x": [{"n": bytes(4)}]})

    def mixture(*names):
        sources = {it: {"path": tmp_path / it} for it in names}
        return readers.batches(
            readers.mix, sources, reader="mds", format_options={"columns": "n"}, batch_size=8
        )

    with mixture("a", "b") as batches:
        (batch,) = batches
        assert sorted(int(it[0]) for it in batch.outputs) == [0, 0, 1, 1, 2, 2, 3, 4]
    with pytest.raises(ValueError, match="'a' and 'c' have other columns"):
        mixture("a", "c")


def own_rows(count):
    return [
        {
            "a": RANDOM.bytes(SIZES[it % 7] // 9),
            "b": "é" * (it % 5),
            "n": it - 3,
            "x": RANDOM.random(3),
        }
        for it in range(count)
    ]


def columns_of(rows):
    """The arrays of the columns a, b, n and x."""
    return described(
        [
            np.frombuffer(it["a"], "u1"),
            np.frombuffer(it["b"].encode(), "u1"),
            np.array([it["n"]]),
            it["x"],
        ]
        for it in rows
    )


@pytest.mark.long
def test_the_package_mosaicml_streaming_reads_and_writes_the_same(tmp_path):
    why = "no mosaicml-streaming here: pip install mosaicml-streaming, in an environment of its own"
    streaming = pytest.importorskip("streaming", reason=why)
    columns = {"a": "bytes", "b": "str", "n": "int", "x": "ndarray:float64:3"}
    with streaming.MDSWriter(out=str(tmp_path), columns=columns, size_limit=20_000) as writer:
        for row in own_rows(60):
            writer.write(row)
    own = streaming.StreamingDataset(local=str(tmp_path), shuffle=False, batch_size=1)
    expected = columns_of(own[it] for it in range(60))
    assert len(own.shards) > 3
    assert delivered("mds", [*columns], path=tmp_path) == expected


@pytest.mark.long
def test_the_package_litdata_reads_and_writes_the_same(tmp_path):
    why = "no litdata here: pip install litdata, in an environment of its own"
    litdata = pytest.importorskip("litdata", reason=why)
    writer = pytest.importorskip("litdata.streaming.writer").BinaryWriter(
        str(tmp_path), chunk_bytes=20_000
    )
    for number, row in enumerate(own_rows(60)):
        writer[number] = row
    writer.done()
    writer.merge(1)
    own = litdata.StreamingDataset(str(tmp_path))
    assert len([*tmp_path.glob("*.bin")]) > 3
    assert delivered("litdata", [*"abnx"], path=tmp_path) == columns_of(own[it] for it in range(60))
