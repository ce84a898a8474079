"""The files that commands write: nothing but a file is replaced, and errors name the file."""

import os
import tempfile

import pytest

import benchmark
from bmap_tools import __main__ as bmap_tools
from dali_storage import readers
from dali_storage.cli import check, index
from tests.bmap_tools.test_atomic import NODES, files_of_at_most, state
from tests.kit.coco import write_numbered
from tests.kit.containers import write_tar
from tests.kit.parity import build

COMMANDS = {  # the file, the function and its arguments; OUT is the directory of the file
    "check": ("bad.jsonl", check, "ROOT -o OUT/bad.jsonl"),
    "index of a root": ("x", index, "ROOT -o OUT/x"),
    "index of a tar": ("a.idx", index, "OUT/../a.tar -o OUT"),
    "annotations": ("boxes.dat", index, "--coco OUT/../ann.json -o OUT"),
    "annotations, without masks": ("masks_rles.dat", index, "--coco OUT/../ann.json -o OUT"),
    "map": ("x", bmap_tools, "create ROOT -o OUT/x"),
    "figures": ("x", benchmark, "--batchsize 1 dali --datadir ROOT --json OUT/x"),
    "plot": ("x", benchmark, "--batchsize 1 dali --datadir ROOT --plot OUT/x"),
}


@pytest.fixture
def root(tree, tmp_path):
    write_numbered(tmp_path, 3)
    write_tar(tmp_path / "a.tar", [("a.jpg", b"a")])
    (tmp_path / "out").mkdir()
    return tree(9)


def status(module, words, root, tmp_path):
    words = words.replace("ROOT", str(root)).replace("OUT", str(tmp_path / "out")).split()
    try:
        return module.main(words)
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("kind", ["a character device", "a FIFO", "a socket"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_node_is_named_and_stays(command, kind, root, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path / "out")
    name, *run = COMMANDS[command]
    try:
        NODES[kind](name)
    except PermissionError:
        pytest.skip("device nodes need root: run the tests as root")
    before = state(name)
    assert status(*run, root, tmp_path) in (1, 2)
    told = capsys.readouterr().err
    assert f"{kind} is not replaced; name a regular file" in told
    assert name in told
    assert (os.listdir(), state(name)) == ([name], before)


@pytest.mark.parametrize("command", ["check", "index of a root", "index of a tar", "annotations"])
def test_a_full_disk_is_told_with_the_file_and_the_bytes(command, root, tmp_path, capsys):
    name, *run = COMMANDS[command]
    next(root.rglob("*.*")).write_bytes(b"")
    (tmp_path / "out" / name).write_bytes(b"old")
    with files_of_at_most(3):
        assert status(*run, root, tmp_path) in (1, 2)
    told = capsys.readouterr().err
    assert "File too large; " in told
    assert " bytes" in told
    assert (f"{name}'" if command != "annotations" else "TMPDIR") in told
    assert (tmp_path / "out" / name).read_bytes() == b"old"


@pytest.mark.parametrize("kind", ["a character device", "a FIFO", "this is a directory"])
def test_bad_samples_are_recorded_in_files_only(kind, root, tmp_path):
    NODES[kind](record := tmp_path / "record")
    pipeline = build(
        *(readers.file, 2, {}),
        name="R", file_root=root, on_error="replace", bad_samples=str(record),
    )  # fmt: skip
    with pytest.raises(OSError) as caught:
        pipeline.run()
    assert caught.value.filename == str(record)


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ("index /not/there -o OUT/x", "/not/there"),
        ("index OUT/../a.tar /not/there.tar -o OUT/x", "/not/there.tar"),
        ("index --coco /not/there -o OUT/x", "/not/there"),
        ("check /not/there -o OUT/x", "/not/there"),
        ("index OUT/../a.tar -o OUT/x", "OUT/x"),
    ],
)
def test_the_missing_one_of_two_paths_is_named(words, missing, root, tmp_path, capsys):
    command, _, words = words.partition(" ")
    assert status({"index": index, "check": check}[command], words, root, tmp_path) in (1, 2)
    told = capsys.readouterr().err.splitlines()[-1]
    assert repr(missing.replace("OUT", str(tmp_path / "out"))) in told
    assert told.count(str(tmp_path)) == ("OUT" in missing)
    assert os.listdir(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("directory", "room", "words"),
    [
        ("out", 3, "File too large"),
        ("out", 15, "File too large"),
        ("none", 1 << 20, "No such file or directory"),
        ("a.tar", 1 << 20, "Not a directory"),
    ],
)
def test_annotations_need_a_temporary_directory(
    directory, room, words, root, tmp_path,
    monkeypatch
):  # fmt: skip
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / directory))
    given = {"file_root": root, "annotations_file": tmp_path / "ann.json"}
    with (
        files_of_at_most(room),
        pytest.raises(OSError, match=f"{words}; .*bytes here: set TMPDIR") as caught,
    ):
        readers.coco(**given)
    assert caught.value.filename == str(tmp_path / directory)
    assert os.listdir(tmp_path / "out") == []
