"""The files that commands write: nothing but a file is replaced, and errors name the file."""

import os

import pytest

import benchmark
from bmap_tools import __main__ as bmap_tools
from dali_storage import readers
from dali_storage.cli import check, index
from tests.bmap_tools.test_atomic import files_of_at_most, identity, make_node
from tests.kit.coco import write_numbered
from tests.kit.containers import write_tar
from tests.kit.parity import build

COMMANDS = [  # the module, its arguments, and the file that it writes to the working directory
    (check, "ROOT -o bad.jsonl", "bad.jsonl"),
    (index, "ROOT -o x", "x"),
    (index, "../a.tar -o .", "a.idx"),
    (index, "--coco ../ann.json -o .", "boxes.dat"),
    (index, "--coco ../ann.json -o .", "masks_rles.dat"),  # which would be removed
    (bmap_tools, "create ROOT -o x", "x"),
    (benchmark, "--batchsize 1 dali --datadir ROOT --json x", "x"),
    (benchmark, "--batchsize 1 dali --datadir ROOT --plot x", "x"),
]


@pytest.fixture
def run(tree, tmp_path, monkeypatch, capsys):
    """Run a command that fails; what it tells last."""
    root = tree(9)
    (root / "class0" / "empty.jpg").touch()
    write_numbered(tmp_path, 3)
    write_tar(tmp_path / "a.tar", [("a.jpg", b"a")])
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")

    def run(module, words):
        try:
            status = module.main(words.replace("ROOT", str(root)).split())
        except SystemExit as end:
            status = end.code
        assert status in (1, 2)
        return capsys.readouterr().err.splitlines()[-1]

    return run


@pytest.mark.parametrize("kind", ["a character device", "a FIFO", "a socket"])
@pytest.mark.parametrize(("module", "words", "name"), COMMANDS)
def test_a_node_is_named_and_stays(module, words, name, kind, run):
    before = make_node(kind, name)
    told = run(module, words)
    assert f"{kind} is not replaced; name a regular file" in told
    assert name in told
    assert (os.listdir(), identity(name)) == ([name], before)


@pytest.mark.parametrize(("module", "words", "name"), COMMANDS[:3])
def test_a_full_disk_is_told_with_the_file_and_the_bytes(module, words, name, run):
    with open(name, "w") as file:
        file.write("old")
    with files_of_at_most(3):
        told = run(module, words)
    assert "File too large; the file needs at least " in told
    assert f"{name}'" in told
    assert os.path.getsize(name) == 3


@pytest.mark.parametrize("kind", ["a character device", "a FIFO", "this is a directory"])
def test_bad_samples_are_recorded_in_files_only(kind, run, tmp_path):
    make_node(kind, "record")
    record = {"on_error": "replace", "bad_samples": "record"}
    pipeline = build(readers.file, 2, {}, file_root=tmp_path / "root", **record)
    with pytest.raises(OSError) as caught:
        pipeline.run()
    assert caught.value.filename == os.path.abspath("record")


@pytest.mark.parametrize(
    ("module", "words", "named"),
    [
        (index, "/not/there -o x", "'/not/there'"),
        (index, "../a.tar /not/there.tar -o x", "'/not/there.tar'"),
        (index, "--coco /not/there -o x", "'/not/there'"),
        (check, "/not/there -o x", "'/not/there'"),
    ],
)
def test_the_missing_one_of_two_paths_is_named(module, words, named, run):
    assert run(module, words).count("'") == 2
    assert named in run(module, words)
    assert os.listdir() == []
