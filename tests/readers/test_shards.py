"""readers.mds and readers.litdata. What is expected was written by struct and numpy."""

import json
import os
import re
import struct
import tarfile
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
from tests.kit.layouts import make_map
from tests.kit.mapped import NEEDS_ROOT
from tests.kit.parity import BACKENDS, build, take, written
from tests.kit.shards import LEAF, dict_of, file_of, write_litdata, write_mds

SIZES = [0, 1, 7, 5000, 0, 90_000, 3]
RAW = ["bytes", "str", "jpeg", "png", "json", "str_int", "str_float", "str_decimal", "jpeg:95"]
MDS = dict.fromkeys(RAW, ("u1", None)) | {"int": ("i8", (1,))}
MDS |= {
    f"{kind}{bits}": (f"{kind}{bits}", (1,)) for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
MDS |= {f"float{bits}": (f"float{bits}", (1,)) for bits in (16, 32, 64)}
MDS |= {"ndarray:float64:2,3": ("f8", (2, 3)), "ndarray:uint8:90,70": ("u1", (90, 70))}
LITDATA = {"jpeg": ("u1", None), "int": ("i8", (1,)), "float": ("f8", (1,)), "bool": ("?", (1,))}
LITDATA |= {"no_header_numpy:9": ("f4", None), "no_header_tensor:18": ("i8", None)}
LITDATA |= {"str": ("u1", None), "image:png": ("u1", None), "no_header_numpy:3": ("i8", None)}


def values_of(encodings):
    """The values of 14 samples, by encoding; those of any length have all SIZES in turn."""
    random = np.random.default_rng(5)

    def value(number, dtype, shape):
        shape = shape or SIZES[number % len(SIZES)]
        return random.integers(0, 2 if dtype == "?" else 100, shape).astype(dtype)

    each = [*enumerate(encodings.items())]
    return [{name: value(number + it, *of) for it, (name, of) in each} for number in range(14)]


def cut(items):
    return [items[:5], items[5:6], items[6:]]


def of_mds(root):
    """Shards of 5, 1 and 8 samples, with columns of all encodings and one that is not read."""
    values = values_of(MDS)
    sizes = {name: it.nbytes if MDS[name][1] else None for name, it in values[0].items()}
    columns = {name: (name, size) for name, size in sizes.items()} | {"k": ("pkl", None)}
    samples = [{name: it.tobytes() for name, it in each.items()} | {"k": b"."} for each in values]
    names = "shard.00000.mds", "a/shard.00000.mds", "a/shard.00001.mds"
    write_mds(root / "train", columns, dict(zip(names, cut(samples), strict=True)))
    return "mds", {"path": root, "split": "train", "columns": [*MDS]}, values


def of_litdata(root, *, old=False):
    """Chunks of 5, 1 and 8 samples, which are dicts with a dict that has a tuple."""
    values = values_of(LITDATA)
    names = ["image", "meta.id", "meta.x", "meta.t.0", "meta.t.1", "meta.t.2", "a", "b", "c"]
    of_tuple = {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF] * 3}
    spec = dict_of(image=LEAF, meta=dict_of(id=LEAF, x=LEAF, t=of_tuple), a=LEAF, b=LEAF, c=LEAF)
    samples = [[it.tobytes() for it in each.values()] for each in values]
    write_litdata(root, spec, [*LITDATA], cut(samples), old=old)
    return "litdata", {"path": root, "columns": names}, values


def delivered(reader, **arguments):
    """The samples of an epoch: the type, shape and bytes of each column."""
    pipeline = build(getattr(readers, reader), 5, {}, name="R", **arguments)
    size = pipeline.reader_meta("R")["epoch_size"]
    batches = take(pipeline, -(-size // 5))
    return [it for batch in batches for it in zip(*batch, strict=True)][:size]


def described(samples):
    return [tuple((str(it.dtype), it.shape, it.tobytes()) for it in its) for its in samples]


MAKERS = [of_mds, of_litdata, partial(of_litdata, old=True)]


@pytest.mark.parametrize(("backend", "options"), BACKENDS)
@pytest.mark.parametrize("make", MAKERS)
def test_columns_are_those_that_were_written(make, backend, options, tmp_path):
    reader, arguments, values = make(tmp_path)
    found = delivered(reader, **arguments, backend=backend, backend_options=options)
    assert found == described(it.values() for it in values)


@pytest.mark.parametrize("make", MAKERS[:2])
def test_columns_are_read_from_objects(make, tmp_path, server):
    reader, arguments, values = make(tmp_path)
    for path in filter(Path.is_file, tmp_path.rglob("*")):
        server.put(f"data/c/{path.relative_to(tmp_path)}", path.read_bytes())
    found = delivered(reader, **arguments | {"path": "s3://data/c"})
    assert found == described(it.values() for it in values)


@NEEDS_ROOT
def test_columns_are_read_by_a_map_of_extents(root, tmp_path):
    reader, arguments, values = of_mds(root)
    storage = {"bmap": make_map(root, tmp_path / "bmap.json")}
    found = delivered(reader, **arguments, backend="block", backend_options=storage)
    assert found == described(it.values() for it in values)


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


def named(*names):
    """A change of the columns of all shards."""
    columns = {"column_names": names, "column_encodings": ["int"] * 2, "column_sizes": [8] * 2}
    return lambda index: [it.update(columns) for it in index["shards"]] and None


BELOW = "is not the name of a file below the data set; correct the list, or make it again"
CHANGES = [
    ("mds", first(version=1), "shard.00000.mds' is of format 'mds', version 1; only 'mds', 2"),
    ("mds", first(format="json"), "format 'json', version 2; only 'mds', 2 is read: write it by"),
    ("mds", first(column_encodings=["int64"]), "'shard.00001.mds' has other columns or encodings"),
    ("mds", first(samples=-1), "has a negative number of samples or bytes; it is truncated or"),
    ("mds", first(samples="1"), "index.json' lacks an entry .TypeError: .*; .*copy it again"),
    ("mds", lambda index: {"version": 2}, "lacks an entry .*'shards'.; it is truncated"),
    ("mds", lambda index: [1], "index.json': expected the shards of a data set in JSON; the file"),
    ("mds", first(raw_data={"basename": "\ud800", "bytes": 9}), r"json': '\\ud800' is no path"),
    ("mds", named("n", "n"), "not one name, encoding and size each"),
    ("mds", named("n"), "lacks an entry .*not one name, encoding and size each.; it is trunc"),
    ("mds", lambda index: index.update(shards=[]), "/data' has no samples"),
    ("mds", lambda index: index.update(chunks=[]), "is a data set of litData: use readers.litdata"),
    *(("mds", first(raw_data={"basename": it, "bytes": 9}), BELOW) for it in ("../x", "/x", "")),
    *(("litdata", first(filename=it), BELOW) for it in ("a/../../x", "a\0", "a/")),
    ("litdata", configured(compression="zstd"), "compression='zstd', which is not read; write"),
    ("litdata", configured(encryption={"level": "chunk"}), "encryption={'level': 'chunk'}, which"),
    ("litdata", configured(item_loader="TokensLoader"), "item_loader=TokensLoader, which is not"),
    ("litdata", configured(data_format=["int"] * 2), "has 1 leaves, data_format 2.; it is trunc"),
    ("litdata", configured(data_spec="{"), "lacks an entry .JSONDecodeError.*: copy it again"),
    ("litdata", lambda index: index.update(shards=[]), "is a data set of MDS: use readers.mds"),
]


@pytest.mark.parametrize(("reader", "change", "message"), CHANGES)
def test_an_index_that_cannot_be_used_is_refused(reader, change, message, tmp_path):
    given = written(reader, root := tmp_path / "data", [2, 1])
    edit(root, change)
    with pytest.raises(ValueError, match=message):
        found_in(reader, root, given["columns"])


def test_a_truncated_index_is_to_be_copied_again(tmp_path):
    columns = written("mds", tmp_path, [2])["columns"]
    os.truncate(tmp_path / "index.json", 99)
    with pytest.raises(ValueError, match=r"index.json': .* in JSON: .* be cut: copy it again"):
        found_in("mds", tmp_path, columns)


def test_a_split_that_is_no_path_is_refused_by_name():
    with pytest.raises(ValueError, match="split must be a path without NUL"):
        readers.batches(readers.mds, batch_size=1, path="/x", split="\0", columns="n")


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
    with pytest.raises(ValueError, match=r"no column 'x': it has \['list\[jpeg\]', 'nd"):
        found_in("mds", tmp_path, "x")
    spec = {"a.b": LEAF, "a": dict_of(b=LEAF), "c": LEAF}
    write_litdata(tmp_path, dict_of(**spec), ["bytes"] * 3, [[[b""] * 3]])
    with pytest.raises(ValueError, match=r"column 'a.b': several leaves have this name; rename"):
        found_in("litdata", tmp_path, "a.b")
    assert found_in("litdata", tmp_path, "c").delivered == 1
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
    "swapped": (swapped, "it has .* bytes, not .* for 2 samples; it is truncated, damaged, or"),
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
    message = f"compressed, .* in '{tmp_path}/a': zstd -d .*.zstd: '{tmp_path}/shard.00000.mds'"
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


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """By reader: a shard, its content, and where its table and the sizes of its values are."""
    made, sizes = {}, [(0, 3), (5, 0), (0, 0), (9, 4)]
    rows = [{"a": b"a" * a, "b": b"b" * b, "n": b"12345678"} for a, b in sizes]
    for reader, stored in (("mds", 2), ("litdata", 3)):
        root = tmp_path_factory.mktemp(reader)
        if reader == "mds":
            columns = {"a": ("bytes", None), "b": ("str", None), "n": ("int", 8)}
            write_mds(root, columns, {"x": rows})
        else:
            spec, leaves = dict_of(a=LEAF, b=LEAF, n=LEAF), [[*it.values()] for it in rows]
            write_litdata(root, spec, ["bytes", "str", "int"], [leaves])
        path = root / ("x" if reader == "mds" else "chunk-0-0.bin")
        starts = struct.unpack_from("<4I", content := path.read_bytes(), 4)
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
        with pytest.raises(RecordError, match=r"sample 3: 33 bytes at \d+, but the sizes of it"):
            next(batches)


def test_data_sets_with_equal_columns_are_mixed(tmp_path):
    for name, count in (("a", 3), ("b", 5)):
        written("mds", tmp_path / name, [count])
    write_mds(tmp_path / "c", {"n": ("int32", 4)}, {"x": [{"n": bytes(4)}]})

    def mixture(*names):
        sources = {it: {"path": tmp_path / it} for it in names}
        given = {"reader": "mds", "format_options": {"columns": "n"}}
        return readers.batches(readers.mix, sources=sources, batch_size=8, **given)

    with mixture("a", "b") as batches:
        assert sorted(int(it[0]) for it in next(iter(batches)).outputs) == [0, 0, 1, 1, 2, 2, 3, 4]
    with pytest.raises(ValueError, match="'a' and 'c' have other columns"):
        mixture("a", "c")


def test_receipts_of_content_are_those_of_files(tmp_path):
    contents = [bytes([it]) * size for it, size in enumerate(SIZES)]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.jpg").write_bytes(content)
    write_mds(tmp_path / "s", {"jpg": ("jpeg", None)}, {"x": [{"jpg": it} for it in contents]})

    def summed(reader, **given):
        given |= {"receipt": "content", "pad_last_batch": True, "random_shuffle": True}
        with readers.batches(reader, batch_size=3, **given) as batches:
            assert len([*batches]) == 3
            return batches.receipt()["sum"]

    of_files = summed(readers.file, files=[tmp_path / f"{it}.jpg" for it in range(len(SIZES))])
    assert summed(readers.mds, path=tmp_path / "s", columns="jpg") == of_files


def own_rows():
    random = np.random.default_rng(1)
    return [
        {"a": random.bytes(9 * it % 700), "b": "é" * (it % 5), "n": it - 3, "x": random.random(3)}
        for it in range(60)
    ]


def of_rows(rows):
    """The columns a, b, n and x of the rows of a package, as they are to be delivered."""
    texts = ((it["a"], it["b"].encode()) for it in rows)
    numbers = ((np.array([it["n"]]), it["x"]) for it in rows)
    both = zip(texts, numbers, strict=True)
    return described((*(np.frombuffer(it, np.uint8) for it in its), *more) for its, more in both)


@pytest.fixture(scope="module")
def written_by_packages(tmp_path_factory):
    """own_rows(), written by versions of the packages; of energon and wids `a` and `b` in tars."""
    directory = tmp_path_factory.mktemp("packages")
    with tarfile.open(Path(__file__).with_name("written_by_packages.tar.xz")) as archive:
        archive.extractall(directory, filter="data")
    return directory


@pytest.mark.parametrize("name", ["mds-0.5.2", "mds-0.13.0", "litdata-0.2.30", "litdata-0.2.76"])
def test_shards_of_two_versions_of_each_package_are_read(written_by_packages, name):
    found = delivered(name.split("-")[0], path=written_by_packages / name, columns=[*"abnx"])
    assert found == of_rows(own_rows())


ENERGON = {"paths": "energon-7.4.1", "index_paths": "energon-7.4.1/.nv-meta/index.sqlite"}
LISTED = [
    (ENERGON, "abc"),
    (ENERGON | {"split": "train"}, "ba"),
    ({"paths": "wids-0.1.11/shardindex.json"}, "abc"),
]


@pytest.mark.parametrize(("arguments", "tars"), LISTED)
def test_tars_as_energon_and_wids_list_them_are_read(
    written_by_packages, arguments, tars, monkeypatch
):
    """Each has 20 rows: b.tar the first, then c.tar, then a.tar."""
    monkeypatch.chdir(written_by_packages)
    found = delivered("webdataset", ext=["bin", "txt"], **arguments)
    rows = [its[:2] for its in of_rows(own_rows())]
    assert found == [it for tar in tars for it in rows[20 * "bca".index(tar) :][:20]]


def package(name, pip):
    return pytest.importorskip(name, reason=f"no {name}: pip install {pip} in another environment")


@pytest.mark.long
def test_the_package_mosaicml_streaming_has_the_same_samples(tmp_path):
    streaming = package("streaming", "mosaicml-streaming")
    columns = {"a": "bytes", "b": "str", "n": "int", "x": "ndarray:float64:3"}
    with streaming.MDSWriter(out=str(tmp_path), columns=columns, size_limit=8_000) as writer:
        for row in own_rows():
            writer.write(row)
    own = streaming.StreamingDataset(local=str(tmp_path), shuffle=False, batch_size=1)
    assert len(own.shards) > 2
    expected = of_rows([own[it] for it in range(60)])
    assert delivered("mds", path=tmp_path, columns=[*"abnx"]) == expected


@pytest.mark.long
def test_the_package_litdata_has_the_same_samples(tmp_path):
    litdata, writers = package("litdata", "litdata"), package("litdata.streaming.writer", "litdata")
    writer = writers.BinaryWriter(str(tmp_path), chunk_bytes=8_000)
    for number, row in enumerate(own_rows()):
        writer[number] = row
    writer.done()
    writer.merge(1)
    own = litdata.StreamingDataset(str(tmp_path))
    assert len([*tmp_path.glob("*.bin")]) > 2
    expected = of_rows([own[it] for it in range(60)])
    assert delivered("litdata", path=tmp_path, columns=[*"abnx"]) == expected
