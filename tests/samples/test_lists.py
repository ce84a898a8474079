"""Lists, names and URLs. The oracle is fn.readers.file: what it reads, labels and refuses."""

import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

from dali_storage.samples import discovery, finding
from dali_storage.samples.finding import locations
from tests.kit.dali_files import (
    dali_entries,
    dali_entries_or_refusal,
    dali_error,
    entries,
    entries_or_refusal,
    write,
)
from tests.kit.tiers import by_tier

# --- a list ---


def test_a_list_that_is_a_pipe_is_read_once():
    reader, writer = os.pipe()
    os.write(writer, b"a.jpg 0\nb.jpg 1\n")
    os.close(writer)
    given = {"file_root": "/root", "file_list": f"/dev/fd/{reader}"}
    assert locations(given["file_root"], None, given["file_list"]) == [b"/root"]
    assert len(finding.find(**given)) == 2
    os.close(reader)


LIST_NAMES = [b"a.jpg", b"a b.jpg", b"a\tb", b"7", b"a 7", b"\xff.jpg", "é".encode(), b"# no c"]
LEADS = [b"", b" ", b"\t "]
SPACES = [b" ", b"\t", b"  ", b" \v\f\r", b" " * 200]
LABELS = [b"0", b"7", b"007", b"2147483648", b"4294967299", b"9223372036854775807"]
LABELS += [b"9223372036854775808", b"9" * 30, b"0" * 30 + b"5", b"1" + b"0" * 6000]
ENDS = [b"", b" ", b"\r", b" \t\v\f", b"\0", b"\0 9 \t9", b" \0junk"]
BAD_LINES = [b"a.jpg", b"a.jpg -1", b"a.jpg +1", b"a.jpg 1.5", b"7", b"  7", b"a.jpg 7x"]
BAD_LINES += [b"a.jpg\0 7", b"\xa07", b"a.jpg\xa07", b"a.jpg \xd9\xa1", b"a.jpg\x1c7"]


def list_line(rng):
    if rng.random() < 0.04:
        return rng.choice(BAD_LINES)
    if rng.random() < 0.2:
        return rng.choice([b"", b" ", b"\r", b" \t", b"\0", b" \0a.jpg"])
    name = rng.choice(LEADS) + rng.choice(LIST_NAMES)
    return name + rng.choice(SPACES) + rng.choice(LABELS) + rng.choice(ENDS)


@pytest.fixture(scope="module")
def list_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("list")
    for lead in LEADS:
        for name in LIST_NAMES:
            write(root, lead + name)
    return root


def compare_lists(root, content):
    write(root, "list.txt", content=content)
    expected = dali_entries_or_refusal(file_list=str(root / "list.txt"))
    assert entries_or_refusal(file_list=root / "list.txt") == expected, content
    return expected


def test_random_lists_are_read_as_dali_does(list_root):
    rng, outcomes = random.Random(0), []
    for _ in range(by_tier(60, 1000)):
        lines = b"\n".join(list_line(rng) for _ in range(rng.randrange(9)))
        outcomes.append(compare_lists(list_root, lines + rng.choice([b"", b"\n"])))
    assert len(outcomes) // 12 < outcomes.count(None) < len(outcomes) * 4 // 5


@pytest.mark.parametrize("line", BAD_LINES, ids=repr)
def test_a_bad_line_is_named(list_root, line):
    assert compare_lists(list_root, b"a.jpg 1\n\n" + line) is None
    place = f"{re.escape(str(list_root))}/list.txt', line 3: .*{re.escape(repr(line))}"
    with pytest.raises(ValueError, match=place):
        discovery.from_file_list(list_root / "list.txt")


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\na.jpg 2"])
@pytest.mark.parametrize("size", [16382, 16383, 16384, 40000])
def test_a_line_has_at_most_16383_bytes(list_root, size, end):
    compare_lists(list_root, b"a.jpg" + b" " * (size - 6) + b"3" + end)
    compare_lists(list_root, b"a.jpg 3\0" + b"." * (size - 8) + end)


def test_a_list_without_samples_is_refused(list_root):
    assert compare_lists(list_root, b" \n\r\n") is None
    with pytest.raises(ValueError, match=r"no files found in file_list .*list.txt"):
        discovery.from_file_list(list_root / "list.txt")


def test_names_are_relative_to_the_root_of_a_list(list_root, monkeypatch):
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


def test_a_list_that_cannot_be_read_is_an_os_error(tmp_path):
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
        {"files": ["7"] * 5, "labels": [1.9, -1.9, 0.5, True, np.float32(2)]},
        {"files": ["7"] * 5, "labels": ["1", " 2", b"3", 2**32 + 3, -(2**62)]},
        *({"files": "7", "labels": label} for label in ("12", 1.9, np.int64(7), True)),
        {"files": ["é"], "labels": [0]},
    ],
)
def test_files_are_labelled_as_dali_does(list_root, arguments):
    expected = dali_entries(file_root=str(list_root), **arguments)
    assert entries(finding.find(file_root=list_root, **arguments)) == expected


def test_files_may_have_any_path_type_and_encoding():
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
def test_arguments_that_dali_refuses_are_refused(arguments, ours, dalis):
    assert dalis in dali_error(**arguments)
    with pytest.raises(ValueError, match=ours):
        finding.find(**arguments)


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
def test_an_argument_of_a_wrong_type_is_named(arguments, message):
    with pytest.raises(TypeError, match=message):
        finding.find(**arguments)


COPY = "mount or copy the data, and give its local path"
UNKNOWN = {"S3://b/x": "write s3://", "ftp://host/x": COPY, b"hdfs://h/x": COPY}
UNKNOWN |= {"file:///data": "leave out file://", "File:///data": "leave out file://"}


@pytest.mark.parametrize(("url", "remedy"), UNKNOWN.items(), ids=repr)
def test_an_unknown_scheme_is_refused_by_the_name_of_the_argument(tmp_path, url, remedy):
    what = re.escape(repr(os.fsdecode(url)))
    reason = f"must be a local path or a URL of s3, gs, az, http, https, not {what}: {remedy}"
    write(tmp_path, "list.txt", content=b"a.jpg 1\n")
    write(tmp_path, "other.txt", content=b"a.jpg 1\n\n" + os.fsencode(url) + b" 2\n")
    for name, arguments in (
        ("file_root", {"file_root": url}),
        ("file_root", {"file_root": url, "files": ["a.jpg"]}),
        ("file_root", {"file_root": url, "file_list": tmp_path / "list.txt"}),
        ("file_list", {"file_list": url}),
        ("files", {"files": ["a.jpg", url]}),
        ("files", {"files": url}),
        ("line 3 of file_list", {"file_list": tmp_path / "other.txt"}),
    ):
        with pytest.raises(ValueError, match=f"^{name} {reason}$"):
            finding.find(**arguments)


def found_paths(found):
    each = [found.path(sample) for sample in range(len(found))]
    assert each == found.paths(np.arange(len(found)))
    return each


def test_names_may_be_urls_of_several_stores(tmp_path):
    names = [b"s3://b/k", b"gs://b/k", b"az://c/k", b"http://h/k%3Fx", b"https://h/k"]
    write(tmp_path, "list.txt", content=b"".join(name + b" 7\n" for name in names))
    assert found_paths(discovery.from_files(names)) == names
    assert found_paths(discovery.from_file_list(tmp_path / "list.txt")) == names


def test_the_locations_of_samples_are_the_first_of_each_argument(tmp_path):
    """Of each argument the first; the others are checked when the samples are found."""
    write(tmp_path, "list.txt", content=b"\n \ns3://b/k 1\nx 2\n")
    found = locations("s3://b/t", [b"a", b"b"], tmp_path / "list.txt")
    assert found == [b"s3://b/t", b"a", b"s3://b/k 1\n"]
    assert locations(None, None, tmp_path / "missing.txt") == []


def test_a_local_path_may_look_a_little_like_a_url(tmp_path):
    found = discovery.from_files(["a/b://c", "://x", "s3:/x"], file_root=tmp_path)
    assert [found.name(i) for i in range(3)] == [b"a/b://c", b"://x", b"s3:/x"]


NAMES = ["a", "s3://b/k", "/c", "http://h/k"]
MIXED = "2 of 4 names are URLs and the others are not; give local paths or URLs, not both$"
BELOW = "are URLs, and file_root is '{}'; leave out file_root, or give names below it$"
IMPOSSIBLE = [
    ({"files": NAMES}, f"^files: {MIXED}"),
    ({"file_list": "mixed.txt"}, f"^file_list 'mixed.txt': {MIXED}"),
    ({"file_list": "s3://b/x"}, "^file_list must be a local path, not 's3://b/x': mount or copy"),
    ({"file_root": "/data\0"}, "file_root must be a path without NUL, not b'/"),
    ({"file_list": b"/list\0"}, "file_list must be a path without NUL, not b'/"),
]
for name in ("", "a\0b", b"\0"):
    IMPOSSIBLE.append(({"files": ["a", name]}, "files must be names of files, not "))
for root in ("/data", "s3://b/train"):
    for kind, given, what in (("files", "s3://b/k", ""), ("file_list", "urls.txt", " 'urls.txt'")):
        refusal = f"^the names in {kind}{what} {BELOW.format(root)}"
        IMPOSSIBLE.append(({kind: given, "file_root": root}, refusal))


@pytest.mark.parametrize(("arguments", "message"), IMPOSSIBLE, ids=lambda it: str(it)[:60])
def test_names_that_cannot_be_read_are_refused(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    write("./mixed.txt", content="".join(f"{name} 1\n" for name in NAMES).encode())
    write("./urls.txt", content=b"s3://b/k 1\n")
    with pytest.raises(ValueError, match=message):
        finding.find(**arguments)


def test_labels_beyond_64_bits_are_refused_where_dali_drops_all(list_root):
    arguments = {"files": ["7", "7"], "labels": [5, 2**63]}
    assert dali_entries(file_root=str(list_root), **arguments) == [(b"7", 0), (b"7", 1)]
    with pytest.raises(ValueError, match="labels must fit in 64 bits, not 9223372036854775808"):
        discovery.from_files(**arguments)
