"""Indexes of WebDatasets that are wrong, and files that are missing."""

import io
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.contract.errors import ContainerChangedError
from dali_storage.formats.tar import index as tar_index
from tests.kit.parity import contents
from tests.kit.process import open_files, room_for
from tests.kit.tiers import by_tier
from tests.kit.webdataset import INDEX, build, find

WRONG_FORM = [
    ("v1.2 3", "v1.3 3", "line 1: expected v1.1 or v1.2 and the number of samples"),
    ("v1.2 3", "v1.2", "line 1: expected v1.1 or v1.2"),
    ("v1.2 3", "v1.2 0", "line 1: expected v1.1 or v1.2"),
    ("v1.2 3", "v1.2 -3", "line 1: expected v1.1 or v1.2"),
    ("v1.2 3", "", "line 1: expected v1.1 or v1.2"),
    ("v1.2 3", "\0\x1f\x8b" * 3000, "line 1: expected v1.1 or v1.2"),
    ("v1.2 3", "v1.2 4", "line 5: the line is missing: line 1 says 4 samples"),
    ("v1.2 3", "v1.1 3", "line 2: expected extension, offset, size of each component"),
    ("v1.2 3\n", "v1.2 3\n\n", "line 2: expected extension, offset, size and name"),
    ("1536 4 1.cls", "1536 4", "line 2: expected extension, offset, size and name"),
    ("4608", "4609", "line 3: an offset is not a multiple of 512"),
    ("4608", "-512", "line 3: an offset or a size is negative"),
    ("4 3.cls", "-4 3.cls", "line 4: an offset or a size is negative"),
    ("4608 4", "4608 4.0", r"line 3: b'4.0' should be a number"),
    ("4608 4", "4_608 4", r"line 3: b'4_608' should be a number"),
    ("4608 4", "0x1200 4", r"line 3: b'0x1200' should be a number"),
    ("4608 4", "99999999999999999999 4", "line 3: "),
    ("7680", "7681", "line 4: an offset is not a multiple"),
]
WRONG_COMPONENTS = [
    ("cls 7680", "csv 7680", "line 4: nothing for 'cls'"),
    ("cls 7680 4", "cls 7680 5", "line 4: 5 bytes for 'cls', not a multiple of the size of int16"),
]
CONTRADICTIONS = [
    ("7680 4", "7680 99998", "line 4: 99,998 bytes at 7,680, but the tar has 10,240"),
    ("4608 4", "10752 4", "line 3: 4 bytes at 10,752, but the tar has 10,240"),
    ("4608 4", "4608 922337203685477580", "line 3: 922,3.* but the tar has 10,240"),
    ("512 3", "512 4", "line 2: 4 bytes at 512, but the file there has 3 bytes"),
    ("512 3", "0 3", "line 2: 3 bytes at 0, but there is no tar header"),
    ("512 3", "1024 3", "line 2: .*checksum is wrong"),
    ("7680 4 3.cls", "7680 4 4.cls", "line 4: 4 bytes at 7,680, but the file there is '3.cls'"),
    ("7680 4", "7680 8", "line 4: 8 bytes at 7,680, but the file there has 4 bytes"),
]


@pytest.mark.parametrize("at_once", [1 << 20, 1])  # bytes of the index: all, or a line
@pytest.mark.parametrize(("old", "new", "message"), WRONG_FORM + WRONG_COMPONENTS + CONTRADICTIONS)
def test_a_wrong_index_is_refused_by_line(tar, index, old, new, message, at_once, monkeypatch):
    monkeypatch.setattr(tar_index, "_BYTES", at_once)
    index.write_text(INDEX.replace(old, new))
    with pytest.raises((ValueError, ContainerChangedError), match=message) as caught:
        find([tar], [index], missing="error", dtypes=["u1", "i2"])
    assert str(index) in str(caught.value)
    make_anew = (old, new, message) not in WRONG_COMPONENTS
    assert ("-m dali_storage index" in str(caught.value)) == make_anew
    contradicts = (old, new, message) in CONTRADICTIONS
    assert getattr(caught.value, "filename", None) == (str(tar) if contradicts else None)
    del caught
    assert not open_files(tar.parent)


@pytest.mark.parametrize("number", ["512.0", "5_12", "0x200", "512-", "+", "1" * 25])
def test_a_number_of_another_form_is_refused_among_regular_lines(tar, index, number):
    index.write_text(f"v1.1 3\njpg 512 3\njpg {number} 3\njpg 512 3\n")
    with pytest.raises(ValueError, match=rf"a\.idx', line 3: .*{re.escape(number)}|not a multiple"):
        find([tar], [index], [b"jpg"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("512 3", "512 4", "line 2: 4 bytes at 512, but the file there has 3"),
        ("6656 5", "6656 99999", "line 4: 99,999 bytes at 6,656, but the tar has"),
    ],
)
@pytest.mark.parametrize("missing", [False, True])  # one component is twice in the sample, or not
def test_an_index_is_compared_also_where_samples_are_skipped(
    tar, index, old, new, message, missing, monkeypatch
):
    monkeypatch.setattr(tar_index, "_BYTES", 1)  # a line
    text = INDEX.replace(old, new)
    twice = text.replace("txt", "jpg", 1).replace("jpg 2560", "no 2560")
    index.write_text(text.replace("cls 4608", "no 4608") if missing else twice)
    with pytest.raises(ContainerChangedError, match=message):
        find([tar], [index], missing="skip")


def test_lines_may_repeat_and_come_in_any_order(tar, index):
    _, *lines = INDEX.splitlines()
    index.write_text("\n".join(["v1.2 4", lines[2], lines[0], lines[2], lines[1], "more"]))
    pipeline = build(paths=tar, index_paths=index, ext="jpg", batch_size=4)
    assert contents(pipeline) == [[b"three", b"one", b"three", b"two" * 400]]


words = st.sampled_from(["jpg", "cls"])
numbers = st.integers(0, 2**40).map(lambda number: number * 512)
samples = st.lists(st.tuples(words, numbers, st.integers(0, 2**33)), min_size=1, max_size=3)


@given(
    lines=st.one_of(
        st.lists(samples, min_size=1, max_size=12),
        st.lists(samples, min_size=1, max_size=1).map(lambda lines: lines * 9),
    ),
    names=st.booleans(),
    at_once=st.integers(1, 200),
    end=st.sampled_from(["", "\n", "\r\n"]),
)
def test_blocks_of_lines_are_what_the_lines_say(tmp_path_factory, lines, names, at_once, end):
    path = tmp_path_factory.getbasetemp() / "any.idx"
    name = " n" if names else ""
    text = [" ".join(f"{e} {start} {size}{name}" for e, start, size in line) for line in lines]
    path.write_text("\n".join([f"v1.{1 + names} {len(lines)}", *text]) + end)
    found = {}
    done = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tar_index, "_BYTES", at_once)
        for block in tar_index.blocks(b"index", io.BytesIO(path.read_bytes())):
            for extensions, which, places in block.groups:
                for sample, place in zip(which.tolist(), places.tolist(), strict=True):
                    row = [(e.decode(), *p) for e, p in zip(extensions, place, strict=True)]
                    found[done + sample] = row
            done += block.size
    assert [found[i] for i in range(len(lines))] == lines


def test_equal_sums_of_words_are_not_taken_for_equal_lines(tmp_path):
    path = tmp_path / "a.idx"
    path.write_text("v1.1 3\na 512 1 b 1024 2\na 1536 3\nb 2048 4 a 2560 5 b 3072 6\n")
    [block] = tar_index.blocks(b"index", io.BytesIO(path.read_bytes()))
    assert {group.extensions for group in block.groups} == {
        *((b"a", b"b"), (b"a",), (b"b", b"a", b"b"))
    }
    line = "a 512 1 n b 512 1 n"
    path.write_text("\n".join(["v1.2 4", line, "a 512 1", "b 512 1 n", f"{line} n {line}"]))
    with pytest.raises(ValueError, match=r"line 3: expected extension, offset, size and name"):
        next(tar_index.blocks(b"index", io.BytesIO(path.read_bytes())))


@pytest.mark.parametrize(
    ("path", "index_path", "error"),
    [
        *(("no.tar", index, FileNotFoundError) for index in (None, "a.idx")),
        ("a.tar", "no.idx", FileNotFoundError),
        (".", None, IsADirectoryError),
        (".", "a.idx", ContainerChangedError),
    ],
)
@pytest.mark.usefixtures("tar", "index")
def test_what_is_missing_or_no_file_is_named(tmp_path, monkeypatch, path, index_path, error):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error) as caught:
        find([path], [index_path] if index_path else None)
    assert caught.value.filename == (index_path if index_path == "no.idx" else path)
    with pytest.raises(error):
        build(paths=path, index_paths=index_path, ext="jpg", backend="python-file")


def test_a_tar_may_be_missing_if_the_backend_knows_where_it_is(tmp_path, index):
    assert find([tmp_path / "no.tar"], [index], may_be_missing=True).delivered == 3


def test_an_empty_list_of_indexes_is_none(tar):
    assert contents(build(paths=tar, index_paths=[], ext="jpg"))[0][0] == b"one"


@pytest.mark.parametrize("indexed", [False, True])
def test_many_tars_open_with_few_descriptors(tmp_path, tar, index, indexed):
    paths = [tmp_path / f"{number}.tar" for number in range(by_tier(500, 5000))]
    for path in paths:
        os.link(tar, path)
    with room_for(100):
        catalog = find(paths, [index] * len(paths) if indexed else None)
    assert catalog.delivered == 3 * len(paths)
