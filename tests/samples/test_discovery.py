"""Directories and trees. The oracle is fn.readers.file: what it lists, labels and refuses."""

import errno
import os
import tempfile
import tracemalloc
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dali_storage.samples import discovery, finding
from tests.kit.bmap.files import as_nobody
from tests.kit.dali_files import (
    dali_entries_or_refusal,
    dali_epoch_size,
    dali_error,
    entries,
    entries_or_refusal,
    write,
)
from tests.kit.tiers import by_tier

# --- a directory ---

STEMS = [b"a", b"B", b"b", b".hidden", b"a b", b"[a]", b"a\\b", b"*", b"a\nb", b"I", b"i", b"-"]
STEMS += [b"10", b"9", b"_", b"\xff\xfe", b"\xc3", *map(str.encode, ("É", "é", "ß", "日本"))]
SUFFIXES = [b".jpg", b".JPG", b".Jpeg", b".png", b".TIF", b".tif", b".wav", b".txt", b"", b".jpg~"]
SUFFIXES += [b".jpg.gz", b".\xff", ".É".encode(), ".é".encode(), b".webp", b".pgm ", b"jpg"]
# Capitals beyond ASCII of letters within: the Kelvin sign, and I with a dot.
SUFFIXES += [".\u212a".encode(), ".t\u0130f".encode(), b".K"]
FILTERS: list[list[str]] = [
    ["*"], ["*.jpg"], ["*.JPG", "*.tif"], ["*.é"], ["*é*"], ["[!a-i]*"], ["[^[:alpha:]]*"], ["?.*"],
    ["a\\\\b*"], ["\\**"], ["*.jp?g"], ["[[]a]*"], ["*[.]wav"], ["I*", "*.png"], [".*"], ["*日*"],
    ["*\\.tif"], ["[é]*"], ["*jpg", "*"], ["*a*", "b*", "*.jpg", "*.wav"], ["*["], ["*.jpg\0no"],
    ["*.k"], ["*.\u212a"], ["*.tif", "*.jpeg"], ["*b"], ["*"] * 2,
]  # fmt: skip


@pytest.fixture(scope="module")
def all_names(tmp_path_factory):
    root = tmp_path_factory.mktemp("all")
    for stem in STEMS:
        for suffix in SUFFIXES:
            write(root, stem, stem + suffix)
    return str(root)


@pytest.mark.parametrize("filters", FILTERS, ids=repr)
@pytest.mark.parametrize("case_sensitive_filter", [False, True])
def test_every_filter_matches_as_in_dali(all_names, filters, case_sensitive_filter):
    chosen = {"file_filters": filters, "case_sensitive_filter": case_sensitive_filter}
    found = entries_or_refusal(file_root=all_names, **chosen)
    assert found == dali_entries_or_refusal(file_root=all_names, **chosen)


def test_links_to_directories_and_broken_links_are_samples(tmp_path):
    write(tmp_path, "class/a.jpg")
    for name, target in (("dangling.jpg", "nothing"), ("loop.jpg", "loop.jpg"), ("up.jpg", "..")):
        os.symlink(target, tmp_path / "class" / name)
    names = [name for name, _ in entries(discovery.from_directory(tmp_path))]
    assert names == [b"class/a.jpg", b"class/dangling.jpg", b"class/loop.jpg", b"class/up.jpg"]
    assert dali_epoch_size(file_root=str(tmp_path)) == len(names)


@pytest.mark.parametrize("convert", [str, os.fsencode, Path, lambda path: f"{path}//"])
def test_a_root_can_be_any_type_of_path(tmp_path, convert):
    write(tmp_path, "class/a.jpg")
    found = discovery.from_directory(convert(tmp_path), file_filters=b"*.jpg", dir_filters=("c*",))
    assert entries(found) == [(b"class/a.jpg", 0)]
    assert os.path.samefile(found.path(0), tmp_path / "class" / "a.jpg")


@pytest.mark.parametrize("root", ["missing", "file", ""])
def test_a_root_must_be_a_directory(tmp_path, root, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("./file")
    assert "Failed to open" in dali_error(file_root=root)
    expected = NotADirectoryError if root == "file" else FileNotFoundError
    with pytest.raises(expected) as caught:
        discovery.from_directory(root)
    assert caught.value.filename == root


@pytest.mark.parametrize(("target", "code"), [("nothing", errno.ENOENT), ("broken", errno.ELOOP)])
def test_a_broken_entry_of_the_root_is_named(tmp_path, target, code):
    write(tmp_path, "class/a.jpg")
    os.symlink(target, tmp_path / "broken")
    assert "Could not access" in dali_error(file_root=str(tmp_path), dir_filters="class")
    with pytest.raises(OSError, match="broken") as caught:
        discovery.from_directory(tmp_path, dir_filters="class")
    assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path / "broken"))


def test_an_unreadable_class_is_an_error_unless_it_is_filtered(tmp_path, monkeypatch):
    write(tmp_path, "tree/open/a.jpg")
    write(tmp_path, "tree/closed/a.jpg")
    tmp_path.chmod(0o755)
    (tmp_path / "tree/closed").chmod(0)
    monkeypatch.chdir(tmp_path)  # its parents are closed to other users
    with as_nobody():
        assert "Failed to open tree/closed" in dali_error(file_root="tree")
        with pytest.raises(PermissionError) as caught:
            discovery.from_directory("tree")
        filtered = entries(discovery.from_directory("tree", dir_filters="open"))
    assert caught.value.filename == "tree/closed"
    assert filtered == [(b"open/a.jpg", 0)]


def test_a_directory_without_samples_is_refused_with_its_filters(tmp_path):
    write(tmp_path, "class/a.txt")
    assert "No files found" in dali_error(file_root=str(tmp_path), file_filters=["*.jpg"])
    message = f"no files found under '{tmp_path}'.* 1 .*dir_filters=None.*file_filters=.*jpg"
    with pytest.raises(ValueError, match=message):
        discovery.from_directory(tmp_path, file_filters=["*.jpg"])


# --- a tree ---


@dataclass(frozen=True)
class MemoryTree:
    root: bytes
    classes: dict[bytes, list[bytes]]

    def directories(self):
        return list(self.classes)

    def files(self, directory):
        return self.classes[directory]


any_bytes = st.binary(min_size=1, max_size=6)
any_name = any_bytes.filter(lambda it: not {*it} & {*b"/\0"} and it not in (b".", b".."))
file_names = st.builds(bytes.__add__, st.sampled_from(STEMS), st.sampled_from(SUFFIXES)) | any_name
MAKE = {
    "file": write,
    "empty": partial(write, content=b""),
    "link": lambda path: os.symlink(b"../loose.jpg", path),
    "fifo": os.mkfifo,
    "directory": lambda path: write(path, "deep.jpg"),
}
files_of_a_class = st.dictionaries(file_names, st.sampled_from([*MAKE]), max_size=8)
OPTIONS = dict.fromkeys(("file_filters", "dir_filters"), st.sampled_from(FILTERS))
chosen = st.fixed_dictionaries({}, optional=OPTIONS | {"case_sensitive_filter": st.booleans()})


@given(
    classes=st.dictionaries(file_names, files_of_a_class, max_size=5),
    plain=st.booleans(),
    arguments=chosen,
)
@settings(max_examples=by_tier(40, 400))
def test_a_directory_and_its_tree_give_what_dali_finds(classes, plain, arguments):
    with tempfile.TemporaryDirectory() as directory:
        root = os.fsencode(directory)
        write(root, "loose.jpg")
        os.symlink("loose.jpg", root + b"/0 link to a file.jpg")
        for name, files in classes.items():
            os.mkdir(os.path.join(root, name))
            for file, kind in files.items():
                MAKE["file" if plain else kind](os.path.join(root, name, file))
        if classes and not plain:
            os.symlink(next(iter(classes)), root + b"/link to a class")
        expected = dali_entries_or_refusal(file_root=directory, **arguments)
        assert entries_or_refusal(file_root=directory, **arguments) == expected
    if plain:
        tree = MemoryTree(root, {name: [*files] for name, files in classes.items()})
        assert entries_or_refusal(known=lambda: tree, **arguments) == expected


def test_names_of_a_tree_belong_to_its_root():
    found = discovery.from_tree(MemoryTree(b"/data", {b"c": [b"a.jpg"]}))
    assert (found.root, found.path(0)) == (b"/data", b"/data/c/a.jpg")
    with pytest.raises(ValueError, match=r"found under '/data' as CLASS/FILE: 0 directories .*'x'"):
        discovery.from_tree(MemoryTree(b"/data", {b"c": [b"a.jpg"]}), dir_filters="x")


def not_asked():
    raise AssertionError("the backend is asked for its samples")


def test_a_tree_is_used_only_if_the_user_names_nothing(tmp_path):
    write(tmp_path, "class/on disk.jpg")
    write(tmp_path, "list.txt", content=b"class/listed.jpg 3")
    tree = MemoryTree(b"/nowhere", {b"c": [b"b.jpg", b"a.jpg", b"a.txt"], b"b": []})
    assert entries(finding.find(lambda: tree)) == [(b"c/a.jpg", 1), (b"c/b.jpg", 1)]
    for arguments, expected in (
        ({"file_root": tmp_path}, (b"class/on disk.jpg", 0)),
        ({"files": ["named"], "labels": 5}, (b"named", 5)),
        ({"file_list": tmp_path / "list.txt"}, (b"class/listed.jpg", 3)),
    ):
        assert entries(finding.find(not_asked, **arguments)) == [expected]
    with pytest.raises(ValueError, match=r"labels .* files"):
        finding.find(not_asked, labels=[1, 2])
    with pytest.raises(ValueError, match="file_filters"):
        finding.find(lambda: tree, file_filters=[])


def bytes_a_sample(build):
    """The memory of a catalog and the peak of building it: bytes per sample, without names."""
    tracemalloc.start()
    try:
        found = build()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (kept - len(found.names)) / len(found), (peak - len(found.names)) / len(found)


@pytest.mark.long
def test_a_catalog_of_many_samples_takes_little_memory(tmp_path):
    count, folders = by_tier(20_000, 50_000), (b"0", b"1")
    names = [b"%b/%08d.jpg" % (folder, i) for folder in folders for i in range(count // 2)]
    for folder in folders:
        os.mkdir(os.path.join(os.fsencode(tmp_path), folder))
    for name in names:
        os.mknod(os.path.join(os.fsencode(tmp_path), name))
    labels = [int(name[:1]) for name in names]
    write(tmp_path, "list.txt", content=b"".join(name + b" %b\n" % name[:1] for name in names))
    for build in (
        lambda: discovery.from_directory(tmp_path),
        lambda: discovery.from_file_list(tmp_path / "list.txt"),
        lambda: discovery.from_files(names, labels),
    ):
        kept, peak = bytes_a_sample(build)
        assert kept < 14
        assert peak < 120
        assert entries(build()) == [*zip(names, labels, strict=True)]
