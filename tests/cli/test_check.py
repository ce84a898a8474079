"""`python -m dali_storage check`, and what takes its list."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import xxhash
from PIL import Image

from dali_storage import readers
from dali_storage.cli import check, index
from dali_storage.contract.errors import SampleReplaced
from dali_storage.samples import index_file
from tests.bad_samples.test_structure import picture, sound
from tests.kit.parity import build
from tests.loaders.test_bad_images import jpeg

BAD = {
    "cut.jpg": "JPEG: cut short (no EOI)",
    "empty.png": "it is empty",
    "gone.jpg": "No such file or directory",
    "page.jpg": "it is HTML or XML",
}


@pytest.fixture
def root(tmp_path):
    """Two classes, the first with 70 whole images, the second with bad ones among whole ones."""
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "b").mkdir()
    for number in range(70):
        (tmp_path / "set" / "a" / f"{number:02}.jpg").write_bytes(jpeg(number))
    second = tmp_path / "set" / "b"
    (second / "cut.jpg").write_bytes(jpeg(1)[:-2])
    (second / "empty.png").touch()
    (second / "gone.jpg").symlink_to("/nowhere")
    (second / "page.jpg").write_text("<html>")
    (second / "spoiled.jpg").write_bytes(jpeg(1, spoiled=True))
    Image.new("RGB", (1, 1)).save(second / "tiny.png")
    (second / "silent.wav").write_bytes(sound(frames=0))
    (second / "whole.wav").write_bytes(sound())
    (second / "whole.tiff").write_bytes(picture("TIFF", big_tiff=True))
    (second / "long.wav").write_bytes(sound("RF64"))
    return tmp_path / "set"


def reasons(text, is_full=os.path.isabs):
    lines = [json.loads(line) for line in text.splitlines()]
    assert [*map(list, lines)] == [["index", "path", "reason"]] * len(lines)
    assert all(is_full(line["path"]) for line in lines)
    return {os.path.basename(line["path"]): line["reason"] for line in lines}


@pytest.mark.parametrize("jobs", ["1", "3"])
def test_bad_samples_are_listed_and_the_status_is_1(root, jobs, capfd):
    assert check.main([str(root), "--jobs", jobs, "-o", str(root / "bad")]) == 1
    assert reasons((root / "bad").read_text()) == BAD
    told = "2 samples were read, but not checked: they are not JPEG, PNG or WAV; --decode checks "
    assert capfd.readouterr().err == told + "other images and sound\n4 of 80 samples are bad\n"


def test_decoding_finds_more_and_tells_what_is_unusual(root, tmp_path, capfd):
    listed = tmp_path / "bad.jsonl"
    assert check.main([str(root), "--decode", "--jobs", "2", "-o", str(listed)]) == 1
    found = reasons(listed.read_text())
    assert found.pop("spoiled.jpg").startswith("fn.decoders.image fails: ")
    assert found == BAD
    told = capfd.readouterr().err
    assert "an image of 1x1: " + repr(str(root / "b" / "tiny.png")) in told
    assert "sound without samples: " + repr(str(root / "b" / "silent.wav")) in told
    assert (told.count("not bad, but"), told.count("not checked")) == (2, 0)

    made = tmp_path / "good.idx"
    assert index.main([str(root), "-o", str(made), "--exclude", str(listed)]) == 0
    assert len(index_file.CatalogFile(made).catalog()) == 80 - 5
    assert check.main([str(made), "--decode", "-o", str(listed)]) == 0
    assert listed.read_text() == ""

    for name in ("a.txt", "b.txt"):
        (root / "b" / name).write_text("404")
    assert check.main([str(root), "--decode", "--file-filters", "*.txt", "-o", str(listed)]) == 0
    told = "2 samples were read, but not checked: they are neither images nor sound\n"
    assert told in capfd.readouterr().err


def test_objects_that_are_gone_replaced_or_cut_are_listed_and_replaced(server, tmp_path, capfd):
    for number in range(12):
        data = jpeg(number)[:-2] if number == 4 else jpeg(number)
        server.put(f"bucket/train/c/{number:02}.jpg", data)
    made, listed = str(tmp_path / "x.idx"), tmp_path / "bad"
    options = ["--backend-option", "endpoint=" + server.url, "anonymous=true"]
    assert index.main(["s3://bucket/train", "-o", made, *options]) == 0
    server.put("bucket/train/c/03.jpg", jpeg(99))
    server.delete("bucket/train/c/05.jpg")
    for root, bad in ((made, ["03", "04", "05"]), ("s3://bucket/train", ["04"])):  # as it is now
        assert check.main([root, "-o", str(listed), *options]) == 1
        found = reasons(listed.read_text(), lambda path: path.startswith("s3://bucket/train/c/"))
        assert [*found] == [name + ".jpg" for name in bad]
        assert found["04.jpg"] == "JPEG: cut short (no EOI)"

    arguments = {"file_root": made, "on_error": "replace", "check": True}
    arguments["backend_options"] = {"endpoint": server.url, "anonymous": True}
    pipeline = build(readers.file, 12, {}, name="R", **arguments)
    with pytest.warns(SampleReplaced):
        pipeline.run()
    assert sorted(it for it, *_ in readers.replaced(pipeline, "R")) == [3, 4, 5]


def test_the_command_and_its_filters(root):
    command = [sys.executable, "-m", "dali_storage", "check", str(root), "--dir-filters", "a"]
    done = subprocess.run([*command, "-o", root / "bad"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, (root / "bad").read_text()) == (0, "", "")
    assert done.stderr == "0 of 70 samples are bad\n"  # no bar off a terminal


@pytest.mark.parametrize("given", ["nowhere", "bad.tar", "s3://user:word@bucket/x"])
def test_what_cannot_be_checked_is_an_error_and_no_list_is_written(given, tmp_path, capsys):
    (tmp_path / "bad.tar").write_bytes(bytes(1024))
    given = given if "://" in given else str(tmp_path / given)
    assert check.main([given, "-o", str(tmp_path / "list")]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "list").exists()


def test_no_jobs_are_refused(root):
    with pytest.raises(SystemExit):
        check.main([str(root), "-o", str(root / "bad"), "--jobs", "0"])


def shards_of(parent, directory, kind):
    """Shards with hashes in a list of MDS or of wids, the second of which is another one."""
    contents = {f"{number}.bin": bytes([number]) * 5000 for number in range(4)}
    rows = []
    for name, content in contents.items():
        (directory / name).write_bytes(content)
        hashes = {
            "sha1": hashlib.sha1(content).hexdigest(),
            "xxh64": xxhash.xxh64_hexdigest(content),
        }
        md5 = hashlib.md5(content).hexdigest()
        row = {"raw_data": {"basename": name, "hashes": hashes}}
        rows.append(row if kind == "index.json" else {"url": name, "md5sum": md5, "nsamples": 1})
    (directory / "1.bin").write_bytes(contents["2.bin"])
    (directory / "3.bin").unlink()
    key = "shards" if kind == "index.json" else "shardlist"
    more = {} if kind == "index.json" else {"wids_version": 1, "base": str(directory)}
    (parent / kind).write_text(json.dumps({key: rows} | more))


@pytest.mark.parametrize(("kind", "name"), [("index.json", "sha1"), ("shardindex.json", "md5")])
def test_shards_are_compared_with_their_hashes(kind, name, tmp_path, capfd):
    parent = tmp_path if kind == "index.json" else tmp_path / "list"  # which has a base
    parent.mkdir(exist_ok=True)
    shards_of(parent, tmp_path, kind)
    assert check.main([str(parent), "-o", str(tmp_path / "bad")]) == 1
    assert capfd.readouterr().err == "2 of 4 shards are bad\n"
    first, second = map(json.loads, (tmp_path / "bad").read_text().splitlines())
    assert first["path"] == str(tmp_path / "1.bin")
    assert first["reason"].startswith(
        f"its {name} is {hashlib.new(name, bytes([2]) * 5000).hexdigest()}, not "
    )
    assert second == {"path": str(tmp_path / "3.bin"), "reason": "No such file or directory"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"shards": [{"raw_data": {"basename": "a", "hashes": {}}}]}', "hashes=['sha1']"),
        ('{"shards": [{"raw_data": {"basename": "a", "hashes": {"sha0": ""}}}]}', "'sha0' is not"),
        ('{"shards": [{"raw_data": {"basename": "a", "hashes": {"xxh7": ""}}}]}', "'xxh7' is not"),
        (
            '{"shards": [{"raw_data": {"basename": "../a", "hashes": {}}}]}',
            "not the name of a file",
        ),
        ('{"shards": [{}]}', "lacks an entry (KeyError: 'raw_data')"),
        ('{"chunks": []}', "litData has no hashes"),
    ],
)
def test_shards_without_hashes_are_not_said_to_be_good(text, message, tmp_path, capfd):
    (tmp_path / "index.json").write_text(text)
    (tmp_path / "a").touch()
    assert check.main([str(tmp_path), "-o", str(tmp_path / "bad")]) == 2
    assert message in capfd.readouterr().err
    assert not (tmp_path / "bad").exists()
