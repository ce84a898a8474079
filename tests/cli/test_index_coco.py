"""`python -m dali_storage index --coco`; what it writes is read in tests/readers/test_coco.py."""

import pytest

from dali_storage.cli import index
from dali_storage.formats.coco import dump, origin
from dali_storage.formats.coco.options import CocoOptions
from tests.kit.coco import write_numbered


@pytest.fixture
def words(tmp_path):
    """The arguments of the command, and the directory that it writes."""
    path = write_numbered(tmp_path, 3)["annotations_file"]
    return ["--coco", path, "-o", str(tmp_path / "made")]


def test_the_options_are_those_of_the_reader(words, tmp_path, capsys):
    more = ["--ltrb", "--no-include-iscrowd", "--size-threshold", "2", "--images", "2.bin", "0.bin"]
    assert index.main([*words, *more]) == 0
    content = dump.load(words[-1])
    assert dump.read("", content, CocoOptions())[0] == [b"2.bin", b"0.bin"]
    assert "2 images with 0 objects of" in capsys.readouterr().out
    given = {"ltrb": True, "include_iscrowd": False, "size_threshold": 2}
    same = CocoOptions.of({**given, "images": ("2.bin", "0.bin")})
    assert origin.require_same(words[-1], content, same, None) == same
    with pytest.raises(ValueError, match="ratio"):
        origin.require_same(words[-1], content, CocoOptions(ratio=True), None)


def test_wrong_annotations_are_named_and_leave_what_was_there(words, tmp_path, capsys):
    assert index.main(words) == 0
    (tmp_path / "ann.json").write_text("[]")
    assert index.main(words) == 1
    assert "error: annotations_file" in capsys.readouterr().err
    assert len(dump.read("", dump.load(words[-1]), CocoOptions())[0]) == 3


def test_annotations_that_are_missing_leave_no_directory(words, tmp_path, capsys):
    (tmp_path / "ann.json").unlink()
    assert index.main(words) == 1
    assert "ann.json" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("wrong", [["--polygons"], ["--size-threshold", "x"], ["other.json"]])
def test_wrong_arguments_are_refused(words, wrong, capsys):
    with pytest.raises(SystemExit):
        index.main([*words, *wrong])
    assert wrong[0] in capsys.readouterr().err
