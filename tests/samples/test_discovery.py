"""The oracle is the real fn.readers.file: what it lists, labels and refuses."""

from __future__ import annotations

import errno
import os
import random
import re
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvidia.dali import fn, pipeline_def

from dali_storage.contract.catalog import Catalog
from dali_storage.samples import discovery
from dali_storage.samples.locations import locations
from tests.kit.tiers import by_tier

REFUSALS = ("No files found", "Incorrect format of the list file", "Wrong format of file_list")

Entries = list[tuple[bytes, int]]


@pipeline_def(num_threads=1, device_id=None, prefetch_queue_depth=1)
def dali_pipeline(arguments: dict[str, Any]) -> Any:
    # Without mmap, because an empty file cannot be mapped.
    files, labels = fn.readers.file(name="reader", dont_use_mmap=True, **arguments)
    return fn.get_property(files, key="source_info"), labels


def dali_epoch_size(**arguments: Any) -> int:
    pipeline = dali_pipeline(arguments, batch_size=1)
    pipeline.build()
    return int(pipeline.reader_meta("reader")["epoch_size"])


def dali_entries(**arguments: Any) -> Entries:
    samples = dali_epoch_size(**arguments)
    pipeline = dali_pipeline(arguments, batch_size=samples)
    pipeline.build()
    names, labels = pipeline.run()
    return [(np.asarray(names[i]).tobytes(), int(labels.at(i)[0])) for i in range(samples)]


def dali_entries_or_refusal(**arguments: Any) -> Entries | None:
    try:
        return dali_entries(**arguments)
    except (RuntimeError, UnicodeDecodeError) as error:
        # The message may quote a line that is not UTF-8.
        text = repr(error.object) if isinstance(error, UnicodeDecodeError) else str(error)
        if not any(refusal in text for refusal in REFUSALS):
            raise
        return None


def dali_error(**arguments: Any) -> str:
    with pytest.raises(RuntimeError) as caught:
        dali_entries(**arguments)
    return str(caught.value)


def entries(found: Catalog) -> Entries:
    return [(found.name(i), int(found.labels[i])) for i in range(len(found))]


def entries_or_refusal(**arguments: Any) -> Entries | None:
    try:
        return entries(discovery.discover(**arguments))
    except ValueError:
        return None


def write(*parts: bytes | str | Path, content: bytes = b"x") -> None:
    path = os.path.join(*map(os.fsencode, parts))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


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


def fill_class(rng: random.Random, root: Path, directory: bytes) -> None:
    path = os.path.join(os.fsencode(root), directory)
    os.makedirs(path)
    for name in {rng.choice(STEMS) + rng.choice(SUFFIXES) for _ in range(rng.randrange(8))}:
        kind = rng.choice(["file", "file", "file", "link", "fifo", "directory", "empty"])
        entry = os.path.join(path, name)
        if kind == "link":
            os.symlink(os.fsencode(root / "loose.jpg"), entry)
        elif kind == "fifo":
            os.mkfifo(entry)
        elif kind == "directory":
            write(entry, "deep.jpg")
        else:
            write(entry, content=b"" if kind == "empty" else b"x")


def make_tree(rng: random.Random, root: Path) -> None:
    write(root, "loose.jpg")
    os.symlink("loose.jpg", root / "0 link to a file.jpg")
    directories = rng.sample(STEMS, rng.randrange(1, 7))
    for directory in directories:
        fill_class(rng, root, directory)
    os.symlink(directories[0], os.path.join(os.fsencode(root), b"link"))


@pytest.mark.parametrize("seed", range(by_tier(15, 80)))
def test_a_directory_is_listed_as_dali_does(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    make_tree(rng, tmp_path)
    for arguments in (
        {},
        {"case_sensitive_filter": True},
        {"file_filters": rng.choice(FILTERS)},
        {"file_filters": rng.choice(FILTERS), "case_sensitive_filter": True},
        {"file_filters": "*", "dir_filters": rng.choice(FILTERS)},
        {"dir_filters": rng.choice(FILTERS)[0], "case_sensitive_filter": rng.random() < 0.5},
    ):
        expected = dali_entries_or_refusal(file_root=str(tmp_path), **arguments)
        assert entries_or_refusal(file_root=str(tmp_path), **arguments) == expected, arguments


@pytest.fixture(scope="module")
def all_names(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("all")
    for stem in STEMS:
        for suffix in SUFFIXES:
            write(root, stem, stem + suffix)
    return str(root)


@pytest.mark.parametrize("filters", FILTERS, ids=repr)
@pytest.mark.parametrize("case_sensitive_filter", [False, True])
def test_every_filter_matches_as_in_dali(
    all_names: str, filters: list[str], case_sensitive_filter: bool
) -> None:
    arguments = {
        "file_root": all_names,
        "file_filters": filters,
        "case_sensitive_filter": case_sensitive_filter,
    }
    assert entries_or_refusal(**arguments) == dali_entries_or_refusal(**arguments)


def test_links_to_directories_and_broken_links_are_samples(tmp_path: Path) -> None:
    write(tmp_path, "class/a.jpg")
    for name, target in (("dangling.jpg", "nothing"), ("loop.jpg", "loop.jpg"), ("up.jpg", "..")):
        os.symlink(target, tmp_path / "class" / name)
    names = [name for name, _ in entries(discovery.from_directory(tmp_path))]
    assert names == [b"class/a.jpg", b"class/dangling.jpg", b"class/loop.jpg", b"class/up.jpg"]
    assert dali_epoch_size(file_root=str(tmp_path)) == len(names)


def test_filters_that_are_none_mean_the_default(tmp_path: Path) -> None:
    for suffix in (b".jpg", b".webp", b".txt"):
        write(tmp_path, "class", b"a" + suffix)
    found = discovery.discover(file_root=tmp_path, file_filters=None)
    assert entries(found) == dali_entries(file_root=str(tmp_path))


@pytest.mark.parametrize("convert", [str, os.fsencode, Path, lambda path: f"{path}//"])
def test_a_root_can_be_any_type_of_path(tmp_path: Path, convert: Callable[[Path], Any]) -> None:
    write(tmp_path, "class/a.jpg")
    found = discovery.from_directory(convert(tmp_path), file_filters=b"*.jpg", dir_filters=("c*",))
    assert entries(found) == [(b"class/a.jpg", 0)]
    assert os.path.samefile(found.path(0), tmp_path / "class" / "a.jpg")


@pytest.mark.parametrize("root", ["missing", "file", ""])
def test_a_root_must_be_a_directory(tmp_path: Path, root: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write("./file")
    assert "Failed to open" in dali_error(file_root=root)
    expected = NotADirectoryError if root == "file" else FileNotFoundError
    with pytest.raises(expected) as caught:
        discovery.from_directory(root)
    assert caught.value.filename == root


@pytest.mark.parametrize(("target", "code"), [("nothing", errno.ENOENT), ("broken", errno.ELOOP)])
def test_a_broken_entry_of_the_root_is_named(tmp_path: Path, target: str, code: int) -> None:
    write(tmp_path, "class/a.jpg")
    os.symlink(target, tmp_path / "broken")
    assert "Could not access" in dali_error(file_root=str(tmp_path), dir_filters="class")
    with pytest.raises(OSError, match="broken") as caught:
        discovery.from_directory(tmp_path, dir_filters="class")
    assert (caught.value.errno, caught.value.filename) == (code, str(tmp_path / "broken"))


@contextmanager
def without_privileges() -> Iterator[None]:
    """As another user, because permissions are nothing to root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_class_is_an_error_unless_it_is_filtered(
    tmp_path: Path, monkeypatch: Any
) -> None:
    write(tmp_path, "tree/open/a.jpg")
    write(tmp_path, "tree/closed/a.jpg")
    tmp_path.chmod(0o755)
    (tmp_path / "tree/closed").chmod(0)
    monkeypatch.chdir(tmp_path)  # its parents are closed to other users
    with without_privileges():
        assert "Failed to open tree/closed" in dali_error(file_root="tree")
        with pytest.raises(PermissionError) as caught:
            discovery.from_directory("tree")
        filtered = entries(discovery.from_directory("tree", dir_filters="open"))
    assert caught.value.filename == "tree/closed"
    assert filtered == [(b"open/a.jpg", 0)]


def test_a_directory_without_samples_is_refused_with_its_filters(tmp_path: Path) -> None:
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

    def directories(self) -> list[bytes]:
        return list(self.classes)

    def files(self, directory: bytes) -> list[bytes]:
        return self.classes[directory]


file_names = st.one_of(
    st.builds(bytes.__add__, st.sampled_from(STEMS), st.sampled_from(SUFFIXES)),
    st.binary(min_size=1, max_size=6).filter(
        lambda name: not set(name) & set(b"/\0") and name not in (b".", b"..")
    ),
)
classes_of_files = st.dictionaries(file_names, st.lists(file_names, unique=True), max_size=5)
chosen = st.fixed_dictionaries(
    {},
    optional={
        "file_filters": st.sampled_from(FILTERS),
        "dir_filters": st.sampled_from(FILTERS),
        "case_sensitive_filter": st.booleans(),
    },
)


@given(classes=classes_of_files, arguments=chosen)
def test_a_tree_gives_what_dali_finds_in_its_directory(
    classes: dict[bytes, list[bytes]], arguments: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = os.fsencode(directory)
        for name, files in classes.items():
            os.mkdir(os.path.join(root, name))
            for file in files:
                os.mknod(os.path.join(root, name, file))
        expected = dali_entries_or_refusal(file_root=directory, **arguments)
        listed = entries_or_refusal(file_root=directory, **arguments)
    tree = MemoryTree(root, classes)
    assert listed == entries_or_refusal(known=lambda: tree, **arguments) == expected


def test_names_of_a_tree_belong_to_its_root() -> None:
    found = discovery.from_tree(MemoryTree(b"/data", {b"c": [b"a.jpg"]}))
    assert (found.root, found.path(0)) == (b"/data", b"/data/c/a.jpg")
    with pytest.raises(ValueError, match=r"no files found under '/data': 0 of its .*'x'"):
        discovery.from_tree(MemoryTree(b"/data", {b"c": [b"a.jpg"]}), dir_filters="x")


def not_asked() -> MemoryTree:
    raise AssertionError("the backend is asked for its samples")


def test_a_tree_is_used_only_if_the_user_names_nothing(tmp_path: Path) -> None:
    write(tmp_path, "class/on disk.jpg")
    write(tmp_path, "list.txt", content=b"class/listed.jpg 3")
    tree = MemoryTree(b"/nowhere", {b"c": [b"b.jpg", b"a.jpg", b"a.txt"], b"b": []})
    assert entries(discovery.discover(lambda: tree)) == [(b"c/a.jpg", 1), (b"c/b.jpg", 1)]
    for arguments, expected in (
        ({"file_root": tmp_path}, (b"class/on disk.jpg", 0)),
        ({"files": ["named"], "labels": 5}, (b"named", 5)),
        ({"file_list": tmp_path / "list.txt"}, (b"class/listed.jpg", 3)),
    ):
        assert entries(discovery.discover(not_asked, **arguments)) == [expected]
    with pytest.raises(ValueError, match=r"labels .* files"):
        discovery.discover(not_asked, labels=[1, 2])
    with pytest.raises(ValueError, match="file_filters"):
        discovery.discover(lambda: tree, file_filters=[])


# --- a list ---

LIST_NAMES = [
    b"a.jpg",
    b"a b.jpg",
    b"a\tb",
    b"7",
    b"a 7",
    b"\xff.jpg",
    "é".encode(),
    b"# no comment",
]
LEADS = [b"", b" ", b"\t "]
SPACES = [b" ", b"\t", b"  ", b" \v\f\r", b" " * 200]
LABELS = [b"0", b"7", b"007", b"2147483648", b"4294967299", b"9223372036854775807"]
LABELS += [b"9223372036854775808", b"9" * 30, b"0" * 30 + b"5", b"1" + b"0" * 6000]
ENDS = [b"", b" ", b"\r", b" \t\v\f", b"\0", b"\0 9 \t9", b" \0junk"]
BAD_LINES = [b"a.jpg", b"a.jpg -1", b"a.jpg +1", b"a.jpg 1.5", b"7", b"  7", b"a.jpg 7x"]
BAD_LINES += [b"a.jpg\0 7", b"\xa07", b"a.jpg\xa07", b"a.jpg \xd9\xa1", b"a.jpg\x1c7"]


def list_line(rng: random.Random) -> bytes:
    if rng.random() < 0.04:
        return rng.choice(BAD_LINES)
    if rng.random() < 0.2:
        return rng.choice([b"", b" ", b"\r", b" \t", b"\0", b" \0a.jpg"])
    name = rng.choice(LEADS) + rng.choice(LIST_NAMES)
    return name + rng.choice(SPACES) + rng.choice(LABELS) + rng.choice(ENDS)


@pytest.fixture(scope="module")
def list_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("list")
    for lead in LEADS:
        for name in LIST_NAMES:
            write(root, lead + name)
    return root


def compare_lists(root: Path, content: bytes) -> Entries | None:
    write(root, "list.txt", content=content)
    expected = dali_entries_or_refusal(file_list=str(root / "list.txt"))
    assert entries_or_refusal(file_list=root / "list.txt") == expected, content
    return expected


def test_random_lists_are_read_as_dali_does(list_root: Path) -> None:
    rng = random.Random(0)
    outcomes = [
        compare_lists(
            list_root,
            b"\n".join(list_line(rng) for _ in range(rng.randrange(9))) + rng.choice([b"", b"\n"]),
        )
        for _ in range(by_tier(120, 1000))
    ]
    assert (
        len(outcomes) // 12 < outcomes.count(None) < len(outcomes) * 4 // 5
    )  # some are refused, some are not


@pytest.mark.parametrize("line", BAD_LINES, ids=repr)
def test_a_bad_line_is_named(list_root: Path, line: bytes) -> None:
    assert compare_lists(list_root, b"a.jpg 1\n\n" + line) is None
    place = f"{re.escape(str(list_root))}/list.txt', line 3: .*{re.escape(repr(line))}"
    with pytest.raises(ValueError, match=place):
        discovery.from_file_list(list_root / "list.txt")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\na.jpg 2"])
@pytest.mark.parametrize("size", [16382, 16383, 16384, 40000])
def test_a_line_has_at_most_16383_bytes(list_root: Path, size: int, end: bytes) -> None:
    compare_lists(list_root, b"a.jpg" + b" " * (size - 6) + b"3" + end)
    compare_lists(list_root, b"a.jpg 3\0" + b"." * (size - 8) + end)


def test_a_list_without_samples_is_refused(list_root: Path) -> None:
    assert compare_lists(list_root, b" \n\r\n") is None
    with pytest.raises(ValueError, match=r"no files found in file_list .*list.txt"):
        discovery.from_file_list(list_root / "list.txt")


def test_names_are_relative_to_the_root_of_a_list(list_root: Path, monkeypatch: Any) -> None:
    write(list_root, "below/list.txt", content=b"7 1")
    monkeypatch.chdir(list_root)
    found = discovery.from_file_list("below/list.txt")
    assert found.path(0) == b"below/7"
    assert "below/7" in dali_error(file_list="below/list.txt")
    for root in ("", "."):
        found = discovery.from_file_list("below/list.txt", file_root=root)
        assert entries(found) == dali_entries(file_list="below/list.txt", file_root=root)
        assert os.path.samefile(found.path(0), list_root / "7")
    write(list_root, "list.txt", content=b"7 1")
    assert discovery.from_file_list("list.txt").path(0) == b"7"
    assert dali_entries(file_list="list.txt") == [(b"7", 1)]


def test_a_list_that_cannot_be_read_is_an_os_error(tmp_path: Path) -> None:
    assert "Cannot open" in dali_error(file_list=str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError, match="missing"):
        discovery.from_file_list(tmp_path / "missing")
    assert "Wrong format" in dali_error(file_list=str(tmp_path))
    with pytest.raises(IsADirectoryError):
        discovery.from_file_list(tmp_path)
    assert "cannot be empty" in dali_error(file_list="")
    with pytest.raises(FileNotFoundError):
        discovery.from_file_list("")


# --- files ---


@pytest.mark.parametrize(
    "arguments",
    [
        {"files": ["a.jpg"]},
        {"files": "a.jpg", "labels": 3},
        {"files": ["7", "a.jpg", "7"]},
        {"files": ("a.jpg", "7"), "labels": (-1, 2**31 - 1)},
        {"files": ["7"] * 6, "labels": [2**31, -(2**31) - 1, 2**32 + 3, 2**63 - 1, -(2**63), True]},
        {"files": ["a.jpg", "7"], "labels": [np.int64(5), np.uint8(6)]},
        {"files": ["é"], "labels": [0]},
    ],
)
def test_files_are_labelled_as_dali_does(list_root: Path, arguments: dict[str, Any]) -> None:
    expected = dali_entries(file_root=str(list_root), **arguments)
    assert entries(discovery.discover(file_root=list_root, **arguments)) == expected


def test_files_may_have_any_path_type_and_encoding() -> None:
    names = [Path("a"), b"\xff", os.fsdecode(b"\xfe")]
    found = discovery.from_files(names, np.array([1, -2, 2**33 + 3]))
    assert entries(found) == [(b"a", 1), (b"\xff", -2), (b"\xfe", 3)]


@pytest.mark.parametrize(
    ("arguments", "ours", "dalis"),
    [
        ({}, "file_root, files and file_list", "``file_root`` argument is required"),
        ({"files": []}, "files must not be empty", "``files`` specified an empty list"),
        ({"files": ["a"], "file_list": "b"}, "files and file_list", "but not both"),
        ({"file_root": "/", "labels": [1]}, "labels .* files", "is valid only when file paths"),
        ({"file_list": "b", "labels": [1]}, "labels .* files", "is valid only when file paths"),
        ({"files": ["a"], "labels": [1, 2]}, "labels must match .* 2 labels", "Provided 2 labels"),
        ({"files": ["a"], "labels": []}, "labels must match .* 0 labels", "Provided 0 labels"),
        ({"file_root": "/", "file_filters": []}, "file_filters", "``file_filters`` list cannot be"),
        ({"file_root": "/", "dir_filters": []}, "dir_filters", "``dir_filters`` list cannot be"),
        ({"files": ["a"], "file_filters": []}, "file_filters", "``file_filters`` list cannot be"),
        ({"file_list": "b", "dir_filters": []}, "dir_filters", "``dir_filters`` list cannot be"),
    ],
)  # fmt: skip
def test_arguments_that_dali_refuses_are_refused(
    arguments: dict[str, Any], ours: str, dalis: str
) -> None:
    assert dalis in dali_error(**arguments)
    with pytest.raises(ValueError, match=ours):
        discovery.discover(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"file_root": 3}, "file_root must be .* not 3"),
        ({"file_list": 3}, "file_list must be .* not 3"),
        ({"files": 3}, "files must be one value or a list, not 3"),
        ({"files": ["a", None]}, "files must be .* not None"),
        ({"files": ["a", "b"], "labels": [1, "1.5"]}, "labels must be an integer, not '1.5'"),
        ({"files": ["a", "b"], "labels": [1, None]}, "labels must be an integer, not None"),
        ({"files": ["a"], "labels": "x"}, "labels must be an integer, not 'x'"),
        ({"files": ["a"], "labels": np.ones((1, 2), np.int32)}, "labels must be an integer"),
        ({"files": ["a"], "file_root": 3}, "file_root must be"),
        ({"file_root": "/", "file_filters": 3}, "file_filters must be one value or a list, not 3"),
        ({"file_root": "/", "dir_filters": [3]}, "dir_filters must be .* not 3"),
        ({"files": {"a", "b"}}, "files must be one value or a list, not the set"),
        ({"files": ["a", "b"], "labels": frozenset((1, 2))}, "labels must be .* not the set"),
        ({"files": "\ud800"}, r"files must be .* not '\\ud800'"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        discovery.discover(**arguments)


UNKNOWN = {
    "S3://b/x": "write s3://",
    "ftp://host/x": "mount or copy the data, and give its local path",
    b"hdfs://h/x": "mount or copy the data, and give its local path",
    "file:///data": "leave out file://",
    "File:///data": "leave out file://",
}


@pytest.mark.parametrize(("url", "remedy"), UNKNOWN.items(), ids=repr)
def test_an_unknown_scheme_is_refused_by_the_name_of_the_argument(
    tmp_path: Path, url: str | bytes, remedy: str
) -> None:
    what = re.escape(repr(os.fsdecode(url)))
    reason = f"must be a local path or a URL of s3, gs, az, http, https, not {what}: {remedy}"
    given: list[dict[str, Any]] = [
        {"file_root": url},
        {"file_list": url},
        {"files": ["a.jpg", url]},
        {"files": url},
    ]
    for arguments in given:
        (argument,) = arguments
        with pytest.raises(ValueError, match=f"^{argument} {reason}$"):
            discovery.discover(**arguments)
    for arguments in ({"files": ["a.jpg"]}, {"file_list": tmp_path / "list.txt"}):
        write(tmp_path, "list.txt", content=b"a.jpg 1\n")
        with pytest.raises(ValueError, match=f"^file_root {reason}$"):
            discovery.discover(file_root=url, **arguments)
    write(tmp_path, "list.txt", content=b"a.jpg 1\n\n" + os.fsencode(url) + b" 2\n")
    with pytest.raises(ValueError, match=f"^line 3 of file_list {reason}$"):
        discovery.from_file_list(tmp_path / "list.txt")
    with pytest.raises(ValueError, match=f"^file_root {reason}$"):
        discovery.from_directory(url)


def test_the_path_of_a_list_must_be_local() -> None:
    refusal = "^file_list must be a local path, not 's3://b/list.txt': mount or copy the data"
    with pytest.raises(ValueError, match=refusal):
        discovery.from_file_list("s3://b/list.txt")


def found_paths(found: Catalog) -> list[bytes]:
    each = [found.path(sample) for sample in range(len(found))]
    assert each == found.paths(np.arange(len(found)))
    return each


ROOTS = {"s3://b": b"s3://b", "s3://b/": b"s3://b", "s3://b/train": b"s3://b/train"}


@pytest.mark.parametrize(("root", "base"), ROOTS.items())
def test_names_below_a_url_are_joined_as_dali_does(tmp_path: Path, root: str, base: bytes) -> None:
    """An absolute name is below the bucket. DALI: test_remote_parity.py."""
    names = [b"a/x.jpg", b"/k.jpg", b"y\xff.jpg"]
    write(tmp_path, "list.txt", content=b"".join(name + b" 7\n" for name in names))
    for found in (
        discovery.from_files(names, file_root=root),
        discovery.from_file_list(tmp_path / "list.txt", file_root=root),
    ):
        assert [found.name(i) for i in range(3)] == names
        assert found_paths(found) == [base + b"/a/x.jpg", b"s3://b/k.jpg", base + b"/y\xff.jpg"]
        assert found.sizes is None


def test_names_may_be_urls_of_several_stores(tmp_path: Path) -> None:
    names = [b"s3://b/k", b"gs://b/k", b"az://c/k", b"http://h/k%3Fx", b"https://h/k"]
    write(tmp_path, "list.txt", content=b"".join(name + b" 7\n" for name in names))
    assert found_paths(discovery.from_files(names)) == names
    assert found_paths(discovery.from_file_list(tmp_path / "list.txt")) == names


def test_paths_and_urls_are_not_mixed(tmp_path: Path) -> None:
    names = ["a", "s3://b/k", "/c", "http://h/k"]
    mixed = "2 of 4 names are URLs and the others are not; give local paths or URLs, not both$"
    with pytest.raises(ValueError, match=f"^files: {mixed}"):
        discovery.from_files(names)
    write(tmp_path, "list.txt", content="".join(f"{name} 1\n" for name in names).encode())
    with pytest.raises(ValueError, match=f"^file_list '.*/list.txt': {mixed}"):
        discovery.from_file_list(tmp_path / "list.txt")


@pytest.mark.parametrize("root", ["/data", "s3://b/train"])
def test_urls_are_not_below_a_root(tmp_path: Path, root: str) -> None:
    write(tmp_path, "list.txt", content=b"s3://b/k 1\n")
    refusal = f"are URLs, and file_root is '{root}'; leave out file_root, or give names below it$"
    with pytest.raises(ValueError, match=f"^the names in files {refusal}"):
        discovery.from_files("s3://b/k", file_root=root)
    with pytest.raises(ValueError, match=f"^the names in file_list '.*/list.txt' {refusal}"):
        discovery.from_file_list(tmp_path / "list.txt", file_root=root)


def test_the_locations_of_samples_are_the_first_of_each_argument(tmp_path: Path) -> None:
    """Of each argument the first; the others are checked when the samples are found."""
    write(tmp_path, "list.txt", content=b"\n \ns3://b/k 1\nx 2\n")
    found = locations("s3://b/t", [b"a", b"b"], tmp_path / "list.txt")
    assert found == [b"s3://b/t", b"a", b"s3://b/k 1\n"]
    assert locations(None, None, tmp_path / "missing.txt") == []


def test_a_local_path_may_look_a_little_like_a_url(tmp_path: Path) -> None:
    found = discovery.from_files(["a/b://c", "://x", "s3:/x"], file_root=tmp_path)
    assert [found.name(i) for i in range(3)] == [b"a/b://c", b"://x", b"s3:/x"]


@pytest.mark.parametrize("name", ["", "a\0b", b"\0"])
def test_an_impossible_name_of_a_file_is_refused(name: str | bytes) -> None:
    with pytest.raises(ValueError, match="files must be names of files, not "):
        discovery.from_files(["a", name])


@pytest.mark.parametrize("arguments", [{"file_root": "/data\0"}, {"file_list": b"/list\0"}])
def test_a_path_with_nul_is_refused_by_name(arguments: dict[str, Any]) -> None:
    (argument,) = arguments
    with pytest.raises(ValueError, match=f"{argument} must be a path without NUL, not b'/"):
        discovery.discover(**arguments)


def test_labels_beyond_64_bits_are_refused_where_dali_drops_all(list_root: Path) -> None:
    arguments: dict[str, Any] = {"files": ["7", "7"], "labels": [5, 2**63]}
    assert dali_entries(file_root=str(list_root), **arguments) == [(b"7", 0), (b"7", 1)]
    with pytest.raises(ValueError, match="labels must fit in 64 bits, not 9223372036854775808"):
        discovery.from_files(**arguments)


# --- memory ---


def bytes_a_sample(build: Callable[[], Catalog]) -> tuple[float, float]:
    """The memory of a catalog and the peak of building it: bytes per sample, without names."""
    tracemalloc.start()
    try:
        found = build()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (kept - len(found.names)) / len(found), (peak - len(found.names)) / len(found)


def test_a_catalog_of_many_samples_takes_little_memory(tmp_path: Path) -> None:
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
