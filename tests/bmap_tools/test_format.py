"""Maps written and read, against plain json."""

import json
import os
import stat
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import bmap_tools
from bmap_tools import MapFormatError, bmap_json, load, save
from tests.kit.bmap.documents import (
    LAYOUTS,
    as_saved,
    contents,
    document,
    documents,
    expected,
    in_a_shared_directory,
    many,
    map_of,
    sealed,
    write,
)
from tests.kit.pages import snippets
from tests.kit.process import alone
from tests.kit.tiers import by_tier


@in_a_shared_directory
@given(documents())
def test_a_saved_map_is_what_plain_json_and_load_read(tmp_path, plain):
    """So the digest is the oracle's, of every column, and load() takes every right map."""
    path = tmp_path / "bmap.json"
    save(map_of(plain), path)
    assert json.loads(path.read_bytes()) == sealed(plain) | {"creator": "bmap_tools"}
    assert contents(load(path)) == expected(plain)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_map_of_any_formatting_is_read(tmp_path, monkeypatch, layout):
    monkeypatch.setattr(bmap_json, "GROUP_BYTES", 50)
    path = write(tmp_path, layout(document()))
    assert contents(load(path)) == expected(document())


def test_a_map_with_the_digest_of_another_is_refused(tmp_path):
    with pytest.raises(MapFormatError, match="digest does not match"):
        load(write(tmp_path, json.dumps(document() | {"root": "/data/test"})))


def test_members_of_later_releases_are_ignored(tmp_path):
    plain = document()
    for members in (plain, plain["device"], plain["file_system"]):
        members["later"] = {"a": [1.5, None]}
    assert contents(load(write(tmp_path, plain))) == expected(document())


def test_a_saved_map_has_one_file_per_line_in_ascii(tmp_path):
    save(map_of(document()), tmp_path / "bmap.json")
    lines = (tmp_path / "bmap.json").read_text(encoding="ascii").splitlines()
    rows = [json.loads(line.rstrip(",")) for line in lines if line.startswith('["')]
    assert rows == document()["files"]


@pytest.mark.parametrize("other", [('"version": 1', '"version": 2'), ('"bmap",', '"other",')])
@pytest.mark.parametrize("layout", ["one file per line", "one line"])
def test_another_version_is_named_before_anything_else_in_a_map(tmp_path, other, layout):
    save(map_of(document()), tmp_path / "bmap.json")
    text = (tmp_path / "bmap.json").read_text().replace(*other).replace('["a/one", ', "[")
    text = text.replace('"device": {', '"device": 1, "d": {')
    path = write(tmp_path, text if layout != "one line" else text.replace("\n", ""))
    with pytest.raises(MapFormatError, match=r"the only supported value, not (2|'other')"):
        load(path)


def test_a_map_that_was_cut_off_between_two_lines_is_refused(tmp_path):
    data = as_saved(document()).rstrip("\n")
    for size in (place for place, letter in enumerate(data) if letter in "\n]"):
        with pytest.raises(MapFormatError):
            load(write(tmp_path, data[:size]))


def test_a_map_has_the_mode_of_a_new_file(tmp_path):
    before = os.umask(0o026)
    try:
        save(map_of(document()), tmp_path / "bmap.json")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "bmap.json").stat().st_mode) == 0o666 & ~0o026


def test_a_map_that_load_would_refuse_is_not_saved(tmp_path):
    broken = many(20_000)
    broken.extents[19_000, 1] += 1
    with pytest.raises(MapFormatError, match=r"bmap\.json: 'a/00019000\.jpg': the extent"):
        save(broken, tmp_path / "bmap.json")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_load_and_save_take_every_kind_of_path(tmp_path, kind):
    name = tmp_path / ("é" * 120)  # as long as a name can be, almost
    save(map_of(document()), kind(name))
    assert len(load(kind(name))) == 6


def test_load_and_save_follow_links(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/bmap.json")
    save(map_of(document()), tmp_path / "link")
    assert (tmp_path / "link").readlink() == Path("there/bmap.json")
    assert len(load(tmp_path / "link")) == len(load(tmp_path / "there" / "bmap.json")) == 6


def test_a_map_that_cannot_be_opened_is_an_os_error(tmp_path):
    (tmp_path / "link").symlink_to("nowhere")
    for name, error in (("no", FileNotFoundError), ("link", FileNotFoundError)):
        with pytest.raises(error, match=name):
            load(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        save(map_of(document()), tmp_path / "directory")
    with pytest.raises(FileNotFoundError):
        save(map_of(document()), tmp_path / "no" / "bmap.json")
    assert sorted(os.listdir(tmp_path)) == ["directory", "link"]


@pytest.mark.long
@alone
def test_a_file_takes_at_most_120_bytes_and_its_row_is_not_kept(tmp_path):
    count = by_tier(20_000, 100_000)
    save(many(count), tmp_path / "bmap.json")
    tracemalloc.start()
    loaded = load(tmp_path / "bmap.json")
    kept, peak = tracemalloc.get_traced_memory()
    assert len(loaded) == count
    assert (kept - len(loaded.names)) / count <= 120
    assert peak / count <= 300  # the objects of one row alone take 500


def test_many_files_are_saved_and_loaded(tmp_path):
    saved = many(10_000)
    save(saved, tmp_path / "bmap.json")
    loaded = load(tmp_path / "bmap.json")
    assert loaded.names == saved.names
    for column in ("name_offsets", "sizes", "extent_offsets", "extents"):
        assert np.array_equal(getattr(loaded, column), getattr(saved, column))


def test_the_public_names_of_bmap_tools():
    names = ["Device", "ExtentMap", "FileSystem", "MapFormatError", "load", "save"]
    assert sorted(bmap_tools.__all__) == names
    assert issubclass(MapFormatError, ValueError)


def test_the_map_of_the_page_is_a_map(tmp_path):
    (text,) = snippets("docs/bmap.md", "json")
    plain = json.loads(text)
    assert contents(load(write(tmp_path, text))) == expected(plain)


def test_the_program_of_the_page_reads_a_file(tmp_path, monkeypatch):
    image = os.urandom(1 << 16)
    (tmp_path / "image").write_bytes(image)
    plain = document()
    plain["device"] |= {"path": str(tmp_path / "image"), "size": 1 << 16}
    extents = [[512, 4096, 512], [1024, None, 4096], [8192, 512, 4096]]
    plain["files"] = [["x", 9000, 1, 1, 1, extents]]
    assert len(load(write(tmp_path, plain))) == 1
    monkeypatch.chdir(tmp_path)
    names = {}
    (code,) = snippets("docs/bmap.md", "python")
    exec(code, names)
    zeros = bytes(9000)
    file = zeros[:512] + image[4096:4608] + zeros[1024:8192] + image[512:4608]
    assert names["data"] == file[:9000]
    assert len(code.splitlines()) <= 12
