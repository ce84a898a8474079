"""`python -m dali_storage index`; the oracles are DALI's wds2idx and readers, and tarfile."""

import bz2
import gzip
import os
import re
import shutil
import subprocess
import sys
import tarfile
from contextlib import nullcontext

import pytest
from nvidia.dali import fn

from bmap_tools import console
from dali_storage import readers
from dali_storage.cli import index
from dali_storage.contract.errors import os_error
from dali_storage.formats.tar import archive
from tests.kit.containers import index_by_wds2idx, write_tar
from tests.kit.databases import write_lmdb
from tests.kit.parity import build, contents

MEMBERS = [("1.jpg", b"one"), ("1.cls", b"1"), ("d/2.left.png", b""), ("d/2.JPG", b"2" * 600)]


@pytest.fixture
def tar(tmp_path):
    return write_tar(tmp_path / "a.tar", MEMBERS)


def wds2idx_of(tar):
    return index_by_wds2idx(tar, tar.with_suffix(".dali")).read_text()


def batch(tar, ext, **arguments):
    return contents(build(fn.readers.webdataset, 4, {}, paths=str(tar), ext=ext, **arguments))


@pytest.mark.parametrize("flavour", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT])
def test_the_index_of_a_simple_tar_is_that_of_wds2idx(tmp_path, flavour):
    members = MEMBERS + ([("long/" * 30 + "3.jpg", b"3")] if flavour == tarfile.PAX_FORMAT else [])
    tar = write_tar(tmp_path / "a.b.tar", members, flavour)
    assert index.main([str(tar)]) == 0
    assert (tmp_path / "a.b.idx").read_text() == wds2idx_of(tar)


@pytest.mark.parametrize("flavour", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_have_the_place_of_their_data(tmp_path, flavour):
    members = [("long/" * 30 + name, data) for name, data in MEMBERS]
    tar = write_tar(tmp_path / "a.tar", members, flavour)
    assert index.main([str(tar)]) == 0
    found = batch(tar, ["jpg", "JPG"], index_paths=str(tmp_path / "a.idx"))
    assert found[0][:2] == [b"one", b""]
    assert found[1][:2] == [b"", b"2" * 600]


def test_the_samples_of_an_index_are_those_that_dali_finds_without_an_index(tmp_path):
    members = [
        *(("dir/.hidden", b"h"), ("nodot", b"n"), (".hidden", b"."), ("a.n", b"1"), ("/a.n", b"2")),
        *(("../up/b.n", b"3"), ("dir/b.n", b"4")),
    ]
    tar = write_tar(tmp_path / "a.tar", members)
    assert index.main([str(tar)]) == 0
    ext = ["n", "hidden", "nodot"]
    assert batch(tar, ext, index_paths=str(tmp_path / "a.idx")) == batch(tar, ext)


def test_index_writes_to_a_directory(tar, tmp_path):
    other = write_tar(tmp_path / "without_extension", MEMBERS[:1])
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-m", "dali_storage", "index", str(tar), str(other), "-o"]
    done = subprocess.run([*command, str(tmp_path / "out")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")  # no bar off a terminal
    made = [f"{tmp_path}/out/{name}.idx" for name in ("a", "without_extension")]
    said = zip(made, (tar, other), strict=True)
    assert done.stdout == "".join(f"'{index}': the index of '{file}'\n" for index, file in said)
    assert sorted(os.listdir(tmp_path / "out")) == ["a.idx", "without_extension.idx"]
    assert (tmp_path / "out" / "a.idx").read_text() == wds2idx_of(tar)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a tar, LMDB, Parquet or TFRecord file; it is empty"),
        (b"some text\n", "is not a tar"),
        (gzip.compress(b"a" * 9999, mtime=0), "is not a tar.*; it is compressed with gzip"),
        (b"PK\x03\x04\x14" + bytes(99), "is not a tar.*; give a container"),
        (bz2.compress(b"a" * 9999), "is not a tar.*; it is compressed with bzip2; decompress it"),
        (bytes(10240), "the tar has no samples"),
        ("a b.jpg", "'a b.jpg': white space or no extension"),
        ("1.left eye.jpg", "bad.tar', '1.left eye.jpg': white space"),
        ("a.", "'a.': white space or no extension"),
    ],
)
def test_what_has_no_index_is_named_and_the_others_are_indexed(
    tar, tmp_path, capsys,
    content, message
):  # fmt: skip
    bad, missing = tmp_path / "bad.tar", tmp_path / "missing.tar"
    if isinstance(content, bytes):
        bad.write_bytes(content)
    else:  # a name that an index cannot have
        write_tar(bad, [("1.jpg", b"1"), (content, b"2")])
    bad.with_suffix(".idx").write_text("before")
    assert index.main([str(bad), str(missing), str(tar)]) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert str(bad) in errors[0]
    assert re.search(message, errors[0])
    assert errors[1] == f"error: {os_error(2, os.fsencode(missing))}"
    assert sorted(os.listdir(tmp_path)) == ["a.idx", "a.tar", "bad.idx", "bad.tar"]
    assert bad.with_suffix(".idx").read_text() == "before"


@pytest.mark.parametrize("there", ["a directory", "a link to nowhere", "a DIR that is missing"])
def test_an_index_that_cannot_be_written_is_named_before_the_container_is_read(
    tar, tmp_path, there,
    capsys, monkeypatch
):  # fmt: skip
    target, words = tmp_path / "a.idx", [str(tar)]
    if there == "a directory":
        target.mkdir()
    else:
        missing = tmp_path / "missing"
        if there == "a link to nowhere":
            target.symlink_to(missing / "a.idx")
        else:
            words += ["-o", str(missing)]
        target = missing / "a.idx"
        read = index.Kind(
            "tar", (".tar",), lambda: (archive.matches, lambda *_: pytest.fail("read"))
        )
        monkeypatch.setattr(index, "KINDS", [read])
    before = os.listdir(tmp_path)
    assert index.main(words) == 1
    assert str(target) in capsys.readouterr().err
    assert os.listdir(tmp_path) == before


# DIR has a.tar, and a link to itself; d/ in it has another.
@pytest.mark.parametrize("other", ["DIR/d/a.tar -o DIR", "DIR/d/../a.tfrecord", "DIR/link/a.tar"])
def test_containers_that_share_an_index_are_refused(tar, tmp_path, capsys, other):
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to(".")
    for name in ("d/a.tar", "a.tfrecord"):
        write_tar(tmp_path / name, MEMBERS)
    with pytest.raises(SystemExit) as caught:
        index.main(f"DIR/a.tar {other}".replace("DIR", str(tmp_path)).split())
    assert caught.value.code == 2
    error = f"'DIR/a.tar' and '{other.split()[0]}' share the index 'DIR/a.idx"
    assert error.replace("DIR", str(tmp_path)) in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a.idx").exists()


@pytest.mark.parametrize("name", ["A.TAR", "x.TFRecord", "dir.tar/x.tfrecords"])
def test_idx_replaces_the_usual_extensions(tmp_path, name):
    (tmp_path / "dir.tar").mkdir()
    write_tar(tmp_path / name, MEMBERS)
    assert index.main([str(tmp_path / name)]) == 0
    assert (tmp_path / name).with_suffix(".idx").exists()


def test_the_directory_of_an_lmdb_is_a_container(tmp_path):
    values = [bytes(number) for number in (0, 5000, 7)]
    place = write_lmdb(tmp_path / "train_lmdb", values)
    assert index.main([str(place)]) == 0
    arguments = {"path": str(place), "index_path": str(place / "data.idx")}
    assert contents(build(readers.lmdb, 3, {}, **arguments))[0] == values


def test_index_takes_a_file_that_is_named_twice(tar, tmp_path):
    assert index.main([str(tar), str(tar)]) == 0
    assert (tmp_path / "a.idx").read_text() == wds2idx_of(tar)


def test_the_progress_of_index_is_in_bytes_of_all_files(tar, tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(console, "bar", lambda *_, of_bytes: nullcontext(shown.append))
    other = shutil.copy(tar, tmp_path / "other.tar")
    assert index.main([str(tar), str(other)]) == 0
    size, each = tar.stat().st_size, len(shown) // 2
    assert each >= len(MEMBERS)
    assert shown[0] == 0 < shown[each - 1] < size
    assert shown == sorted(shown[:each]) + [size + position for position in shown[:each]]
