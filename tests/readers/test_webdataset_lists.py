"""`readers.webdataset` with the indexes of Megatron-Energon and the lists of wids.

The oracles are the bytes that were written, and tarfile, which finds the places of files.
"""

import json
import sqlite3
import tarfile
from contextlib import closing

import pytest

from dali_storage.cli.index import main as make_indexes
from tests.kit.containers import write_tar
from tests.kit.parity import contents
from tests.kit.process import open_files
from tests.kit.webdataset import build

TARS = {"b.tar": "12", "sub/a-09.tar": "354", "sub/a-10.tar": "6"}
SPLIT = """\
# by hand
split_parts:
  train:
  - sub/a-10.tar
  - b.tar
  'val':
    - "sub/a-{09..10}.tar"
  test: []
exclude: []
"""
TABLES = """
CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
    content_byte_offset INTEGER, content_byte_size INTEGER);
"""


def image(key):
    return key.encode() * 400 * (int(key) - 1)


def text(key):
    return b"text %b" % key.encode() if int(key) % 3 else b""


def expected(keys):
    return [[image(key) for key in keys], [text(key) for key in keys]]


@pytest.fixture
def root(tmp_path):
    """Three tars in two folders; the name of 4 is long, and 3 and 6 have no text."""
    (tmp_path / "data/sub").mkdir(parents=True)
    for name, keys in TARS.items():
        names = {key: f"d/{'long' * 40 if key == '4' else key}" for key in keys}
        parts = [(f"{names[key]}.jpg", image(key)) for key in keys]
        parts += [(f"{names[key]}.seg.txt", text(key)) for key in keys if text(key)]
        write_tar(tmp_path / "data" / name, sorted(parts), tarfile.GNU_FORMAT)
    return tmp_path / "data"


@pytest.fixture
def prepared(root):
    """With the files of energon 7; tars are prepared in the order of `TARS`."""
    meta = root / ".nv-meta"
    meta.mkdir()
    counts = {name: len(keys) for name, keys in TARS.items()}
    (meta / ".info.json").write_text(json.dumps({"shard_counts": counts}))
    (meta / "split.yaml").write_text(SPLIT)
    with closing(sqlite3.connect(meta / "index.sqlite")) as database, database:
        database.executescript(TABLES)
        for tar, name in enumerate(TARS):
            with tarfile.open(root / name) as opened:
                files = opened.getmembers()
                end = opened.offset
            starts = {}
            for it in files:
                starts.setdefault(it.name.partition(".")[0], it.offset)
            stops = [*starts.values(), end][1:]
            for number, (key, stop) in enumerate(zip(starts, stops, strict=True)):
                row = tar, key, number, starts[key], stop - starts[key]
                database.execute("INSERT INTO samples VALUES (?, ?, ?, ?, ?)", row)
            for it in files:
                key, _, part = it.name.partition(".")
                row = tar, [*starts].index(key), part, it.offset_data, it.size
                database.execute("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", row)
    return root


def energon(root, **given):
    given = {"paths": root, "index_paths": root / ".nv-meta/index.sqlite"} | given
    return build(**{"ext": ["jpg", "seg.txt"], "batch_size": 6} | given)


@pytest.mark.parametrize(
    ("split", "exclude", "keys"),
    [
        (None, "", "123546"),
        ("train", "", "612612"),  # the batch has two epochs
        ("val", "", "354635"),
        ("train", "\n- b.tar/d/2\n- sub/{a,c}-10.tar # a comment", "111111"),
        ("val", "\n  - sub/a-{10,x}.tar", "354354"),
    ],
)
def test_the_samples_of_energon_are_those_of_the_split(prepared, split, exclude, keys, server):
    if exclude:
        text = SPLIT.replace("exclude: []", f"exclude:{exclude}")
        (prepared / ".nv-meta/split.yaml").write_text(text)
    server.serve("data", prepared)
    for backend in ("memory", "python-file", "object-store"):
        paths = "s3://data" if backend == "object-store" else prepared
        found = energon(prepared, paths=paths, backend=backend, split=split)
        assert contents(found) == expected(keys)
    assert not [*prepared.glob(".nv-meta/index.sqlite-*")]
    assert not open_files(prepared)


def test_the_names_of_files_are_those_in_the_tars(prepared):
    data = energon(prepared, split="val", batch_size=3, source_info=True, ext="jpg").run()[0]
    tar = prepared / "sub/a-09.tar"
    with tarfile.open(tar) as opened:
        names = [f"{tar}:{it.offset_data}:{it.name}" for it in opened if it.name.endswith("jpg")]
    assert [data[it].source_info() for it in range(3)] == names


def changed(sql):
    def change(root):
        with closing(sqlite3.connect(root / ".nv-meta/index.sqlite")) as database, database:
            database.executescript(sql)

    return change


def replaced(name, old, new):
    def change(root):
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return change


def swapped(root):
    (root / "b.tar").rename(root / "c.tar")
    (root / "sub/a-10.tar").rename(root / "b.tar")
    (root / "c.tar").rename(root / "sub/a-10.tar")


def damaged(root):
    content = bytearray((root / ".nv-meta/index.sqlite").read_bytes())
    content[200:] = b"\xff" * (len(content) - 200)
    (root / ".nv-meta/index.sqlite").write_bytes(content)


INFO, SPLITS, EMPTY = ".nv-meta/.info.json", ".nv-meta/split.yaml", "exclude: []"
DATABASE = ".nv-meta/index.sqlite"
PARTS = "UPDATE sample_parts SET "
MOVED = f"{PARTS}content_byte_offset = content_byte_offset + 512; "
MOVED += "UPDATE samples SET byte_offset = byte_offset + 512"
WRONG = [  # what is changed, what the message says
    (changed("DROP TABLE sample_parts"), "no places of files .*sample_parts.* index, or with none"),
    (damaged, "sqlite': it has no places of files"),
    (changed("DELETE FROM samples WHERE sample_key = 'd/1'"), "sample 1: expected sample 0"),
    (changed("DELETE FROM samples WHERE sample_key = 'd/2'"), "1 samples of 'b.tar', but .* has 2"),
    (changed(f"{PARTS} part_name = NULL"), "'sub/a-10.tar', sample 0: expected sample 0, with its"),
    (changed(f"{PARTS} part_name = 'j pg'"), "'sub/a-10.tar', 'd/6': white space or no extension"),
    (
        changed(f"{PARTS} content_byte_size = 4000"),
        "files between its first and last byte; prepare",
    ),
    (changed(f"{PARTS} content_byte_size = content_byte_size / 2"), "1,000 bytes at 512, but"),
    (changed(MOVED), "a-10.tar', sample 0: .* at 1,024, but .* the checksum is wrong; rebuild the"),
    (swapped, "sub/a-10.tar', sample 0: 2,000 bytes at 512, but the file there has 0"),
    (lambda root: (root / "b.tar").unlink(), "No such file .*b.tar'"),
    (replaced(INFO, '-10.tar": 1', '-10.tar": 2'), "it has 1 samples of 'sub/a-10.tar', but"),
    (replaced(INFO, "b.tar", "../b.tar"), "info.json': '../b.tar' is not the name of a file below"),
    (replaced(INFO, "b.tar", "/b.tar"), "info.json': '/b.tar' is not the name of a file below"),
    (replaced(INFO, "}}", ""), "info.json': expected the shard_counts .* copy it again"),
    (replaced(INFO, "shard_counts", "counts"), "info.json': expected the number of samples"),
    (lambda it: (it / INFO).rename(it / ".nv-meta/.info.yaml"), "energon 6 wrote it, without"),
    (lambda it: (it / DATABASE).unlink(), "No such file .* index, or with none"),
    (lambda it: (it / DATABASE).write_text("x"), "sqlite': it is not a database of SQLite"),
    (lambda it: (it / f"{DATABASE}-wal").write_text("x"), "wal' shows .* not written to the end"),
    (lambda it: (it / f"{DATABASE}-journal").write_text("x"), "journal' shows that it was not wr"),
    (changed("INSERT INTO samples VALUES (3, 'd/7', 0, 0, 0)"), "samples of tar 3, but .* 3 tars"),
    (replaced(SPLITS, "train", "dev"), "there is no split 'train', only 'dev', 'val', 'test'"),
    (replaced(SPLITS, "- b.tar", "- c.tar"), "yaml': 'c.tar' of 'train' is not in .info.json"),
    (replaced(SPLITS, "- b.tar", "- b{1..x}.tar"), r"'b{1..x}.tar': expected {000..012} or {a,b}"),
    (replaced(SPLITS, "- b.tar", "- [b.tar]"), r"line 5 is not understood: '  - \[b.tar\]'; write"),
    (replaced(SPLITS, EMPTY, "exclude: [b.tar]"), "split.yaml': line 9 is not understood"),
    (replaced(SPLITS, EMPTY, "exclude:\n- '{b,sub/a-10}.tar'"), "'train' has no tars"),
    (replaced(SPLITS, EMPTY, "exclude:\n- b.tar/d/{1,2}"), "all samples of 'b.tar' are excluded"),
]


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_wrong_files_of_energon_are_refused_by_name(prepared, change, said):
    change(prepared)
    with pytest.raises((ValueError, OSError), match=said):
        energon(prepared, split="train")
    assert not open_files(prepared)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"index_paths": "s3://b/.nv-meta/index.sqlite"}, "SQLite reads only files; copy the"),
        ({"index_paths": None, "split": "train"}, "index_paths its .nv-meta/index.sqlite, for an"),
        ({"paths": ["a", "b"]}, "paths must be a directory, and index_paths its"),
        ({"ext": "img"}, "no sample has any component of 'img'; the tars have 'jpg', 'seg.txt'"),
    ],
)
def test_arguments_that_do_not_go_with_energon_are_refused(prepared, given, said):
    with pytest.raises(ValueError, match=said):
        energon(prepared, **given)


# --- wids ----------------------------------------------------------------------------------------


@pytest.fixture
def listed(root):
    """A list of the tars, as widsindex writes it, in another order than that of the names."""
    rows = [
        {"url": it, "md5sum": "", "nsamples": len(TARS[it]), "filesize": (root / it).stat().st_size}
        for it in reversed(TARS)
    ]
    about = {"wids_version": 1, "name": "x", "base": None, "shardlist": rows}
    (root / "shardindex.json").write_text(json.dumps(about))
    return root / "shardindex.json"


def of_list(paths, **given):
    return build(**{"paths": paths, "ext": ["jpg", "seg.txt"], "batch_size": 6} | given)


def test_the_samples_of_wids_are_in_the_order_of_its_list(listed, tmp_path):
    for backend in ("memory", "python-file"):
        assert contents(of_list(listed, backend=backend)) == expected("635412")
    replaced("data/shardindex.json", '"base": null', f'"base": "{tmp_path}/data"')(tmp_path)
    moved = listed.rename(tmp_path / "list.json")
    assert contents(of_list(moved)) == expected("635412")
    given = {"missing_component_behavior": "skip", "batch_size": 4}
    assert contents(of_list(moved, **given)) == expected("5412")


@pytest.mark.parametrize("of_url", [False, True])
def test_a_list_of_wids_may_name_objects_or_be_one(listed, server, of_url):
    """Then the tars need indexes, in the order of the list."""
    root = listed.parent
    server.serve("data", root)
    if not of_url:
        replaced("shardindex.json", '"base": null', '"base": "s3://data"')(root)
    given = {"paths": "s3://data/shardindex.json" if of_url else listed, "backend": "object-store"}
    with pytest.raises(ValueError, match=r"index_paths must be given for 's3://data/sub/a-10.tar'"):
        of_list(**given)
    assert make_indexes([str(root / it) for it in TARS]) == 0
    indexes = [(root / it).with_suffix(".idx") for it in reversed(TARS)]
    indexes = [f"s3://data/{it.relative_to(root)}" for it in indexes] if of_url else indexes
    with pytest.raises(ValueError, match=r"one index for each file, not 2 for 3 files"):
        of_list(**given, index_paths=indexes[:2])
    assert contents(of_list(**given, index_paths=indexes)) == expected("635412")


LIST = "shardindex.json"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (replaced(LIST, '"nsamples": 3', '"nsamples": 4'), "3 samples, but 20,480 and 4 in the"),
        (replaced(LIST, '": 10240', '": 9728'), "10,240 bytes and 1 samples, but 9,728 and 1 in"),
        (replaced(LIST, '"b.tar"', '"../b.tar"'), "'../b.tar' is not the name of a file below"),
        (replaced(LIST, '"b.tar"', '"c.tar"'), "No such file .*c.tar"),
        (replaced(LIST, '"b.tar"', "5"), "expected wids_version 1, and url and nsamples"),
        (replaced(LIST, 'version": 1', 'version": 2'), "json': expected wids_version 1"),
        (replaced(LIST, "shardlist", "datasets"), "several data sets; give each a list .* mix"),
        (replaced(LIST, "}]}", ""), "expected a shardlist of wids in JSON.* copy it again"),
        (lambda it: (it / LIST).write_text("[" * 99_999), "wids in JSON: maximum recursion.*again"),
        (replaced(LIST, '"base": null', '"base": 5'), "json': 5 is no path .*; make the list"),
        (replaced(LIST, '"b.tar"', r'"\ud800"'), r"json': '\\ud800' is no path .*; make the"),
    ],
)
def test_a_wrong_list_of_wids_is_refused_by_name(listed, change, said):
    change(listed.parent)
    with pytest.raises((ValueError, OSError), match=said):
        of_list(listed)
