"""`readers.webdataset`: arguments, bad input, and where it differs from DALI's.

What is expected are the bytes that were written into the tars.
"""

from __future__ import annotations

import functools
import gc
import io
import os
import re
import resource
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wds2idx
from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia.dali import Pipeline, fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator

from dali_storage import readers
from dali_storage.cli.index import main as make_indexes
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import ContainerChangedError, MapNotChecked
from dali_storage.formats.tar import index as tar_index
from dali_storage.formats.tar import webdataset
from dali_storage.formats.tar.components import Selection
from dali_storage.loaders import Loader, Shard
from tests.kit.containers import write_numbered_tars, write_tar, write_wds_index
from tests.kit.devices import disk
from tests.kit.layouts import make_map
from tests.kit.process import open_files

MEMBERS = [
    *(("1.jpg", b"one"), ("1.cls", b"0001")),
    *(("2.jpg", b"two" * 400), ("2.cls", b"0002"), ("2.txt", b"text")),
    *(("3.jpg", b"three"), ("3.cls", b"0003")),
]
INDEX = """v1.2 3
jpg 512 3 1.jpg cls 1536 4 1.cls
jpg 2560 1200 2.jpg cls 4608 4 2.cls txt 5632 4 2.txt
jpg 6656 5 3.jpg cls 7680 4 3.cls
"""


def build(operator: Any = readers.webdataset, batch_size: int = 3, **arguments: Any) -> Pipeline:
    if operator is readers.webdataset:
        arguments = {"backend": "memory"} | arguments
    pipeline = Pipeline(batch_size, num_threads=1, device_id=None)
    with pipeline:
        nodes = operator(name="R", **arguments)
        pipeline.set_outputs(*(nodes if isinstance(nodes, (list, tuple)) else [nodes]))
    pipeline.build()
    return pipeline


def run(pipeline: Pipeline) -> list[list[Any]]:
    """The outputs of a batch: for each the samples."""
    return [[np.array(sample) for sample in output] for output in pipeline.run()]


def texts(pipeline: Pipeline) -> list[list[bytes]]:
    return [[sample.tobytes() for sample in output] for output in run(pipeline)]


def find(paths: Any, indexes: Any = None, ext: Any = (b"jpg", b"cls"), **options: Any) -> Catalog:
    dtypes = [np.dtype(np.uint8)] * len(ext)
    selection = Selection(ext, dtypes, options.pop("missing", "empty"))
    encoded = [[*map(os.fsencode, each)] if each else None for each in (paths, indexes)]
    options = {"may_be_missing": False} | options
    return webdataset.find(encoded[0], encoded[1], selection, **options)  # type: ignore[arg-type]


@pytest.fixture
def tar(tmp_path: Path) -> Path:
    return write_tar(tmp_path / "a.tar", MEMBERS)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    (tmp_path / "a.idx").write_text(INDEX)
    return tmp_path / "a.idx"


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert", [str, os.fsencode, Path, lambda path: [path], lambda p: (str(p),)]
)
def test_paths_may_be_one_or_several_of_any_kind(
    tar: Path, index: Path, convert: Callable[[Path], Any]
) -> None:
    pipeline = build(paths=convert(tar), index_paths=convert(index), ext="jpg")
    assert texts(pipeline) == [[b"one", b"two" * 400, b"three"]]


def test_names_need_not_be_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.tar"
    os.rename(write_tar(tmp_path / "t", [("\udcff.\udcfe", b"1"), ("2.jpg", b"")]), path)
    for ext in (b"\xfe", "\udcfe"):
        assert texts(build(paths=path, ext=ext, batch_size=2)) == [[b"1", b""]]


def test_one_output_is_a_node_and_several_are_a_tuple(tar: Path) -> None:
    with Pipeline(1, 1, None):
        one: Any = readers.webdataset(paths=tar, ext="jpg")
        two: Any = readers.webdataset(paths=tar, ext=["jpg", "cls"])
        indexed: Any = readers.webdataset(paths=tar, ext="jpg", return_index=True)
    assert one.name.startswith("__Webdataset_0")
    assert [len(two), len(indexed)] == [2, 2]


def test_the_index_of_a_sample_leads_to_its_tar(tmp_path: Path) -> None:
    tars, _ = write_numbered_tars(tmp_path, [3, 2])
    ext, options = ["n", "missing"], {"random_shuffle": True, "return_index": True}
    pipeline = build(paths=tars, ext=ext, batch_size=5, **options)
    numbers, _, indices = run(pipeline)
    catalog = readers.catalog(pipeline, "R")
    for number, index in zip(numbers, indices, strict=True):
        sample = int(number.view(np.int64)[0])
        path = catalog.path(int(index[0]) * catalog.pieces)
        assert path == os.fsencode(tars[sample // 3])


def test_dtypes_may_be_of_numpy(tar: Path) -> None:
    [labels] = run(build(paths=tar, ext="cls", dtypes=np.int32))
    assert [label.tolist() for label in labels] == [
        np.frombuffer(label, np.int32).tolist() for label in (b"0001", b"0002", b"0003")
    ]


@pytest.mark.parametrize("behaviour", ["", "skip"])
def test_an_extension_that_nothing_has_is_refused_with_those_there_are(
    tar: Path, behaviour: str
) -> None:
    with pytest.raises(ValueError, match=r"ext: no sample has any.* 'img'; .* 'jpg', 'cls', 'txt'"):
        build(paths=tar, ext="img", missing_component_behavior=behaviour)
    with pytest.raises(ValueError, match=r"sample 0: nothing for 'img'; it has 'jpg', 'cls'"):
        build(paths=tar, ext=["jpg", "img"], missing_component_behavior="error")
    with pytest.raises(ValueError, match=r"no sample has all components of 'jpg', 'img'"):
        build(paths=tar, ext=["jpg", "img"], missing_component_behavior="skip")


def test_an_output_without_an_extension_is_empty(tar: Path) -> None:
    assert texts(build(paths=tar, ext="")) == [[b""] * 3]
    assert texts(build(paths=tar, ext=["", "cls"])) == [[b""] * 3, [b"0001", b"0002", b"0003"]]


@pytest.mark.parametrize("sensitive", [None, True, 1])
def test_case_matters_unless_it_is_said_not_to(tar: Path, sensitive: Any) -> None:
    with pytest.raises(ValueError, match=r"any component of 'CLS'; there are 'jpg', 'cls'"):
        build(paths=tar, ext="CLS", case_sensitive_extensions=sensitive)
    pipeline = build(paths=tar, ext="CLS", case_sensitive_extensions=False)
    assert texts(pipeline) == [[b"0001", b"0002", b"0003"]]


def test_a_missing_component_is_named_with_the_line_of_the_index(tar: Path, index: Path) -> None:
    with pytest.raises(ValueError, match=r"a.idx', line 2: nothing for 'txt'; it has 'jpg', 'cls'"):
        find([tar], [index], [b"jpg", b"cls", b"txt"], missing="error")


# --- outputs -------------------------------------------------------------------------------------


def test_small_samples_of_one_size_are_one_array(tar: Path) -> None:
    catalog = find([tar], None, [b"jpg", b"cls", b"txt"])
    fmt = webdataset.WebDataset([np.dtype(t) for t in ("u1", "<i2", "u1")])
    data = [b"one", b"0001", b"", b"two!", b"0002", b"text"]
    jpg, cls, txt = fmt.decode(catalog, np.arange(2), [memoryview(each) for each in data])
    assert [bytes(each) for each in jpg] == [b"one", b"two!"]
    assert isinstance(cls, np.ndarray)
    assert (cls.dtype, cls.tolist()) == (np.int16, [[0x3030, 0x3130], [0x3030, 0x3230]])
    assert [bytes(each) for each in txt] == [b"", b"text"]
    both = np.frombuffer(b"aaaabbbbccccddddeeeeffff", np.uint8).reshape(6, 4)
    outputs = fmt.decode(catalog, np.arange(2), both)
    assert [np.asarray(each).tobytes() for each in outputs] == [
        b"aaaadddd",
        b"bbbbeeee",
        b"ccccffff",
    ]
    large = [memoryview(bytes(5000))] * 6
    assert not any(
        isinstance(each, np.ndarray) for each in fmt.decode(catalog, np.arange(2), large)
    )


def test_the_order_of_samples_is_that_of_readers_file(tmp_path: Path) -> None:
    tars, indexes = write_numbered_tars(tmp_path, [3, 9, 1, 7])
    files = {"files": tars * 5}
    arguments: dict[str, Any] = {"random_shuffle": True, "seed": 3, "initial_fill": 6}
    for order in (arguments, {"shuffle_after_epoch": True}):
        options: dict[str, Any] = {"shuffle": "samples", "return_index": True} | order
        options |= {"paths": tars, "index_paths": indexes, "ext": "n", "dtypes": types.INT64}
        ours = build(batch_size=20, **options)
        expected = build(fn.readers.file, batch_size=20, **files, **order)
        for _ in range(3):
            numbers, index = run(ours)
            assert [int(n[0]) for n in numbers] == [int(i[0]) for i in index]
            assert [int(i[0]) for i in index] == [int(i[0]) for i in run(expected)[1]]


def test_containers_are_counted_with_those_that_have_no_samples(tmp_path: Path, tar: Path) -> None:
    empty = write_tar(tmp_path / "b.tar", [("x.txt", b"")])
    catalog = find([empty, tar, empty], None, missing="skip")
    assert catalog.containers is not None
    assert catalog.containers.tolist() == [0, 3, 0]
    assert (catalog.delivered, len(catalog), catalog.pieces) == (3, 6, 2)
    assert catalog.where(3) == "sample 1: 4 bytes at 4,608"
    assert catalog.path(3) == os.fsencode(tar)


# --- indexes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("v1.2 3", "v1.3 3", "line 1: expected v1.1 or v1.2 and the number of samples"),
        ("v1.2 3", "v1.2", "line 1: expected v1.1 or v1.2"),
        ("v1.2 3", "v1.2 0", "line 1: expected v1.1 or v1.2"),
        ("v1.2 3", "v1.2 -3", "line 1: expected v1.1 or v1.2"),
        ("v1.2 3", "", "line 1: expected v1.1 or v1.2"),
        ("v1.2 3", "\0\x1f\x8b" * 3000, "line 1: expected v1.1 or v1.2"),
        ("v1.2 3", "v1.2 4", "line 5: there is no such line: line 1 says 4 samples"),
        ("v1.2 3", "v1.1 3", "line 2: expected extension, offset, size of each component"),
        ("v1.2 3\n", "v1.2 3\n\n", "line 2: expected extension, offset, size and name"),
        ("1536 4 1.cls", "1536 4", "line 2: expected extension, offset, size and name"),
        ("4608", "4609", "line 3: an offset is no multiple of 512"),
        ("4608", "-512", "line 3: an offset or a size is negative"),
        ("4 3.cls", "-4 3.cls", "line 4: an offset or a size is negative"),
        ("4608 4", "4608 4.0", r"line 3: b'4.0' should be a number"),
        ("4608 4", "4_608 4", r"line 3: b'4_608' should be a number"),
        ("4608 4", "0x1200 4", r"line 3: b'0x1200' should be a number"),
        ("4608 4", "99999999999999999999 4", "line 3: "),
    ],
)
def test_an_index_of_another_form_is_refused_by_line(
    tar: Path, index: Path, old: str, new: str, message: str
) -> None:
    index.write_text(INDEX.replace(old, new))
    with pytest.raises(ValueError, match=rf"index '.*a\.idx', {message}.* -m dali_storage index"):
        find([tar], [index])


@pytest.mark.parametrize("number", ["512.0", "5_12", "0x200", "512-", "+", "1" * 25])
def test_a_number_of_another_form_is_refused_among_regular_lines(
    tar: Path, index: Path, number: str
) -> None:
    index.write_text(f"v1.1 3\njpg 512 3\njpg {number} 3\njpg 512 3\n")
    with pytest.raises(ValueError, match=rf"a\.idx', line 3: .*{re.escape(number)}|no multiple"):
        find([tar], [index], [b"jpg"])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("7680 4", "7680 99999", "line 4: 99,999 bytes at 7,680, but the tar has 10,240"),
        ("4608 4", "10752 4", "line 3: 4 bytes at 10,752, but the tar has 10,240"),
        ("4608 4", "4608 922337203685477580", "line 3: 922,3.* but the tar has 10,240"),
        ("512 3", "512 4", "line 2: 4 bytes at 512, but the file there has 3 bytes"),
        ("512 3", "0 3", "line 2: 3 bytes at 0, but no header of a tar is there"),
        ("512 3", "1024 3", "line 2: .*checksum is wrong"),
        ("7680 4 3.cls", "7680 4 4.cls", "line 4: 4 bytes at 7,680, but the file there is '3.cls'"),
        ("7680 4", "7680 8", "line 4: 8 bytes at 7,680, but the file there has 4 bytes"),
    ],
)
def test_an_index_that_contradicts_its_tar_is_refused_by_line(
    tar: Path, index: Path, old: str, new: str, message: str
) -> None:
    index.write_text(INDEX.replace(old, new))
    before = open_files()
    with pytest.raises(ContainerChangedError, match=f"{message}.* -m dali_storage index") as caught:
        find([tar], [index])
    assert caught.value.filename == str(tar)
    del caught
    assert open_files() <= before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("cls 7680", "csv 7680", "line 4: nothing for 'cls'"),
        ("cls 7680 4", "cls 7680 5", "line 4: 5 bytes for 'cls', no multiple of the size of int16"),
        ("cls 7680 4", "cls 7680 8", "line 4: 8 bytes at 7,680, but the file there has 4"),
        ("7680", "7681", "line 4: an offset is no multiple"),
        ("7680 4 3.cls", "7680", "line 4: expected extension, offset, size"),
    ],
)
def test_lines_beyond_the_first_block_are_named(
    tar: Path, index: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.setattr(tar_index, "_BYTES", 1)  # a line
    index.write_text(INDEX.replace(old, new))
    with pytest.raises((ValueError, ContainerChangedError), match=message):
        build(
            paths=tar,
            index_paths=index,
            ext=["jpg", "cls"],
            dtypes=["u1", "i2"],
            missing_component_behavior="error",
        )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("512 3", "512 4", "line 2: 4 bytes at 512, but the file there has 3"),
        ("6656 5", "6656 99999", "line 4: 99,999 bytes at 6,656, but the tar has"),
    ],
)
def test_all_blocks_of_an_index_are_compared_also_where_samples_are_skipped(
    tar: Path, index: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.setattr(tar_index, "_BYTES", 1)  # a line
    index.write_text(
        INDEX.replace(old, new).replace("txt", "jpg", 1).replace("jpg 2560", "no 2560")
    )
    with pytest.raises(ContainerChangedError, match=message):
        find([tar], [index], [b"jpg", b"cls"], missing="skip")
    index.write_text(INDEX.replace(old, new).replace("cls 4608", "no 4608"))
    with pytest.raises(ContainerChangedError, match=message):
        find([tar], [index], [b"jpg", b"cls"], missing="skip")


def test_lines_may_repeat_and_come_in_any_order(tar: Path, index: Path) -> None:
    _, *lines = INDEX.splitlines()
    index.write_text("\n".join(["v1.2 4", lines[2], lines[0], lines[2], lines[1], "more"]))
    pipeline = build(paths=tar, index_paths=index, ext="jpg", batch_size=4)
    assert texts(pipeline) == [[b"three", b"one", b"three", b"two" * 400]]


words = st.sampled_from(["jpg", "cls"])
numbers = st.integers(0, 2**40).map(lambda number: number * 512)
samples = st.lists(st.tuples(words, numbers, st.integers(0, 2**33)), min_size=1, max_size=3)


@settings(max_examples=200, deadline=None)
@given(
    lines=st.one_of(
        st.lists(samples, min_size=1, max_size=12),
        st.lists(samples, min_size=1, max_size=1).map(lambda lines: lines * 9),
    ),
    names=st.booleans(),
    at_once=st.integers(1, 200),
    end=st.sampled_from(["", "\n", "\r\n"]),
)
def test_blocks_of_lines_are_what_the_lines_say(
    tmp_path_factory: pytest.TempPathFactory, lines: Any, names: bool, at_once: int, end: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.idx"
    name = " n" if names else ""
    text = [" ".join(f"{e} {start} {size}{name}" for e, start, size in line) for line in lines]
    path.write_text("\n".join([f"v1.{1 + names} {len(lines)}", *text]) + end)
    found: dict[int, Any] = {}
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


def test_equal_sums_of_words_are_not_taken_for_equal_lines(tmp_path: Path) -> None:
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


# --- where DALI dies or lies ---------------------------------------------------------------------


def test_a_tar_that_is_cut_short_before_it_is_opened_is_refused(tar: Path, index: Path) -> None:
    os.truncate(tar, 7680 + 2)  # DALI: SIGSEGV
    with pytest.raises(ContainerChangedError, match="4 bytes at 7,680, but the tar has 7,682"):
        build(paths=tar, index_paths=index, ext="cls")


@pytest.mark.parametrize("change", ["truncated", "rewritten"])
def test_a_tar_that_changes_while_it_is_read_is_refused(
    tar: Path, index: Path, change: str
) -> None:
    pipeline = build(paths=tar, index_paths=index, ext="jpg", batch_size=1, backend="python-file")
    assert texts(pipeline) == [[b"one"]]
    if change == "truncated":  # DALI: SIGBUS
        os.truncate(tar, 1024)
    else:  # DALI: other bytes, silently
        tar.write_bytes(tar.read_bytes().replace(b"two", b"TWO"))
    with pytest.raises(ContainerChangedError) as caught:
        for _ in range(30):
            texts(pipeline)
    assert caught.value.filename == str(tar)


def test_one_component_may_be_several_outputs(tar: Path, index: Path) -> None:
    pipeline = build(  # DALI without mmap: SIGFPE
        paths=tar, index_paths=index, ext=["cls", "cls"], dtypes=[types.INT32, types.UINT8]
    )
    for _ in range(3):
        assert texts(pipeline) == [[b"0001", b"0002", b"0003"]] * 2


def test_a_component_of_several_outputs_counts_once(tmp_path: Path) -> None:
    names = ["1.jpg", "1.cls", "2.jpg", "3.cls", "3.jpg", "4.jpg", "4.n"]
    tar = write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names])
    arguments: dict[str, Any] = {"paths": str(tar), "missing_component_behavior": "skip"}
    arguments |= {"ext": ["jpg", "cls;jpg"], "batch_size": 4}
    expected = texts(build(fn.readers.webdataset, **arguments))
    assert texts(build(**arguments)) == expected
    assert expected == [[b"3.jpg"] * 4, [b"3.cls"] * 4]  # of the others, both are 1.jpg and so on
    arguments["missing_component_behavior"] = "error"
    with pytest.raises(ValueError, match=r"sample 0: a component is two outputs; it has 'jpg'"):
        build(**arguments)
    with pytest.raises(RuntimeError):
        build(fn.readers.webdataset, **arguments)


def test_an_empty_file_may_end_a_tar_without_zeros(tmp_path: Path) -> None:
    content = write_tar(tmp_path / "a.tar", [("1.jpg", b"1"), ("1.cls", b"")]).read_bytes()
    (tmp_path / "a.tar").write_bytes(content[: 3 * 512])  # DALI: SIGSEGV
    assert make_indexes([str(tmp_path / "a.tar")]) == 0
    for indexes in (None, tmp_path / "a.idx"):
        for backend in ("memory", "python-file"):
            pipeline = build(
                paths=tmp_path / "a.tar", index_paths=indexes, ext=["jpg", "cls"], backend=backend
            )
            assert texts(pipeline) == [[b"1"] * 3, [b""] * 3]


LONG = "long/" * 30
LONG_MEMBERS = [(f"{LONG}{name}", data) for name, data in MEMBERS]


@pytest.mark.parametrize("flavour", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("indexed", [False, True])
def test_long_names_are_right_without_an_index_and_with_ours(
    tmp_path: Path, flavour: int, indexed: bool
) -> None:
    tar = write_tar(tmp_path / "a.tar", LONG_MEMBERS, flavour)
    arguments: dict[str, Any] = {}
    if indexed:
        assert make_indexes([str(tar)]) == 0
        arguments = {"index_paths": tmp_path / "a.idx"}
    pipeline = build(paths=tar, ext=["jpg", "cls"], **arguments)
    expected = [[b"one", b"two" * 400, b"three"], [b"0001", b"0002", b"0003"]]
    assert texts(pipeline) == expected


@pytest.mark.parametrize("version", ["v1.1", "v1.2"])
def test_an_index_by_wds2idx_of_long_gnu_names_is_refused(tmp_path: Path, version: str) -> None:
    tar = write_tar(tmp_path / "a.tar", LONG_MEMBERS, tarfile.GNU_FORMAT)
    creator = wds2idx.IndexCreator(str(tar), str(tmp_path / "a.idx"), verbose=False)
    creator.create_index()
    creator.close()
    if version == "v1.1":
        head, *lines = (tmp_path / "a.idx").read_text().splitlines()
        rows = [line.split() for line in lines]
        short = [" ".join(word for i, word in enumerate(row) if i % 4 < 3) for row in rows]
        (tmp_path / "a.idx").write_text("\n".join([head.replace("2", "1", 1), *short]))
    with pytest.raises(ContainerChangedError, match=r"of type 'L'.* index anew \(python -m"):
        build(paths=tar, index_paths=tmp_path / "a.idx", ext=["jpg", "cls"])


@pytest.mark.parametrize(
    "large", [MEMBERS, [(name.replace(".", "n" * 90 + "."), b"") for name, _ in MEMBERS]]
)
def test_one_long_gnu_name_among_others_is_found(tmp_path: Path, large: Any) -> None:
    """DALI delivers the name as data, also of a component that `ext` does not ask for."""
    members = [*large, ("m" * 101 + ".jpg", b"long"), ("m" * 101 + ".cls", b"0004"), *large]
    tar = write_tar(tmp_path / "a.tar", members, tarfile.GNU_FORMAT)
    creator = wds2idx.IndexCreator(str(tar), str(tmp_path / "a.idx"), verbose=False)
    creator.create_index()
    creator.close()
    with pytest.raises(ContainerChangedError, match=r"line \d: 4 bytes at .* of type 'L'"):
        build(paths=tar, index_paths=tmp_path / "a.idx", ext=["jpg", "cls"])
    assert make_indexes([str(tar)]) == 0
    pipeline = build(paths=tar, index_paths=tmp_path / "a.idx", ext="cls", batch_size=4)
    assert texts(pipeline)[0][3:] == [b"0004"]


@pytest.mark.parametrize("flavour", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("indexed", [False, True])
def test_what_follows_a_file_of_8_gib_is_read(tmp_path: Path, flavour: int, indexed: bool) -> None:
    path, size = tmp_path / "large.tar", (8 << 30) + 5
    small = write_tar(tmp_path / "small.tar", MEMBERS, flavour).read_bytes()
    with open(path, "wb") as file:
        info = tarfile.TarInfo("0.bin")
        info.size = size
        file.write(info.tobuf(flavour))
        file.seek(-(-size // 512) * 512, os.SEEK_CUR)
        file.write(small)
    arguments: dict[str, Any] = {}
    if indexed:
        arguments = {"index_paths": write_wds_index(path, tmp_path / "large.idx")}
    pipeline = build(paths=path, ext="cls", backend="python-file", batch_size=4, **arguments)
    assert texts(pipeline) == [[b"", b"0001", b"0002", b"0003"]]


def test_the_header_of_a_file_of_8_gib_agrees_with_its_index(tmp_path: Path) -> None:
    for flavour in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        info = tarfile.TarInfo("0.bin")
        info.size = (8 << 30) + 512
        header = info.tobuf(flavour)
        with open(tmp_path / "t.tar", "wb") as file:
            file.write(header)
            file.truncate(len(header) + info.size + 1024)
        index = tmp_path / "t.idx"
        index.write_text(f"v1.2 1\nbin {len(header)} {info.size} 0.bin\n")
        assert int(find([tmp_path / "t.tar"], [index], [b"bin"]).ranges.sizes[0]) == info.size  # type: ignore[union-attr]
        index.write_text(f"v1.2 1\nbin {len(header)} {8 << 29} 0.bin\n")
        with pytest.raises(ContainerChangedError, match="the file there has"):
            find([tmp_path / "t.tar"], [index], [b"bin"])


@pytest.mark.parametrize("flavour", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_an_index_by_wds2idx_has_names_as_tar_lists_them(tmp_path: Path, flavour: int) -> None:
    tar = write_tar(tmp_path / "a.tar", [("é\\.jpg", b"1"), ("a.cls", b"2")], flavour)
    creator = wds2idx.IndexCreator(str(tar), str(tmp_path / "a.idx"), verbose=False)
    creator.create_index()
    creator.close()
    assert "\\\\.jpg" in (tmp_path / "a.idx").read_text()  # two for one
    assert find([tar], [tmp_path / "a.idx"]).delivered == 2


@pytest.mark.parametrize("flavour", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("name", ["new.jpg", "n" * 300 + ".jpg", "n" * 9000 + ".jpg"])
def test_the_name_in_a_header_may_be_another_than_that_of_the_file(
    tmp_path: Path, flavour: int, name: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=flavour) as tar:
        is_pax = flavour == tarfile.PAX_FORMAT
        info = tarfile.TarInfo("old.jpg" if is_pax and len(name) < 9000 else name)
        info.pax_headers = {"path": name}
        tar.addfile(info)
    assert make_indexes([str(tmp_path / "a.tar")]) == 0
    assert f" {name}\n" in (tmp_path / "a.idx").read_text()
    find([tmp_path / "a.tar"], [tmp_path / "a.idx"])


# --- many tars, and missing ones ------------------------------------------------------------------


def test_a_missing_tar_is_named_when_the_reader_is_opened(tmp_path: Path, index: Path) -> None:
    missing = tmp_path / "no.tar"
    for indexes in (None, [index]):
        with pytest.raises(FileNotFoundError) as caught:
            find([missing], indexes)
        assert caught.value.filename == str(missing)
        with pytest.raises(FileNotFoundError):
            build(paths=missing, index_paths=indexes, ext="jpg", backend="python-file")
    catalog = find([missing], [index], may_be_missing=True)  # the backend knows where it is
    assert catalog.delivered == 3


def test_an_empty_list_of_indexes_is_none(tar: Path) -> None:
    assert texts(build(paths=tar, index_paths=[], ext="jpg"))[0][0] == b"one"


def test_a_missing_index_is_named(tmp_path: Path, tar: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        find([tar], [tmp_path / "no.idx"])
    assert caught.value.filename == str(tmp_path / "no.idx")


def test_a_directory_is_named(tmp_path: Path, index: Path) -> None:
    for indexes in (None, [index]):
        with pytest.raises((IsADirectoryError, ContainerChangedError)) as caught:
            find([tmp_path], indexes)
        assert caught.value.filename == str(tmp_path)


@contextmanager
def few_descriptors(limit: int = 256) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("count", "indexed"), [(10_000, True), (1_000, False)])
def test_many_tars_open_with_few_descriptors(
    tmp_path: Path, tar: Path, index: Path, count: int, indexed: bool
) -> None:
    paths = [tmp_path / f"{number}.tar" for number in range(count)]
    for path in paths:
        os.link(tar, path)
    began = time.process_time()
    with few_descriptors():
        catalog = find(paths, [index] * count if indexed else None)
    assert catalog.delivered == 3 * count
    assert time.process_time() - began < count / 500


# --- training ------------------------------------------------------------------------------------


def pack(jpegs: Path, directory: Path) -> tuple[list[str], list[str]]:
    """Tars of real JPEGs with their classes, int32, and descriptions; and their indexes."""
    directory.mkdir(exist_ok=True)
    tars = []
    for number in range(3):
        members: list[tuple[str, bytes]] = []
        for path in sorted(jpegs.glob("*/*.jpg"))[number::3]:
            label = np.int32(path.parent.name[1:]).tobytes()
            members += [(f"{path.stem}.jpg", path.read_bytes()), (f"{path.stem}.cls", label)]
            members += [(f"{path.stem}.json", b"{}")]
        tars.append(str(write_tar(directory / f"{number}.tar", members, tarfile.PAX_FORMAT)))
    assert make_indexes(tars) == 0
    return tars, [f"{tar[:-4]}.idx" for tar in tars]


@pipeline_def(batch_size=4, num_threads=2, device_id=None, seed=7, enable_checkpointing=True)
def training(webdataset: Any, data: Any, shard_id: int, num_shards: int) -> Any:
    order = {"shard_id": shard_id, "num_shards": num_shards, "pad_last_batch": True}
    order |= {"random_shuffle": True, "initial_fill": 9}
    jpegs, labels = webdataset(
        ext=["jpg", "cls"], dtypes=[types.UINT8, types.INT32], name="Reader", **order, **data
    )
    images = fn.decoders.image(jpegs, device="cpu")
    images = fn.random_resized_crop(images, size=(24, 24), seed=3)
    mirror = fn.random.coin_flip(seed=4)
    return fn.crop_mirror_normalize(images, mirror=mirror, mean=[128.0] * 3), labels


@pytest.mark.parametrize(
    ("order", "shard"),
    [({}, (0, 1)), ({"shuffle_after_epoch": True}, (0, 1)), ({"stick_to_shard": True}, (1, 2))],
    ids=str,
)
def test_pixels_are_those_of_dali_in_a_loader_and_in_an_iterator(
    jpegs: Path, tmp_path: Path, order: dict[str, Any], shard: tuple[int, int]
) -> None:
    tars, indexes = pack(jpegs, tmp_path)
    data = {"paths": tars, "index_paths": indexes} | order

    def iterate(webdataset: Any) -> list[Any]:
        pipeline = training(webdataset, data, *shard)
        iterator = DALIGenericIterator([pipeline], ["x", "y"], reader_name="Reader")
        found = []
        for _ in range(3):
            found += [(b[0]["x"].numpy().tobytes(), b[0]["y"].numpy().tobytes()) for b in iterator]
            iterator.reset()
        return found

    expected = iterate(fn.readers.webdataset)
    assert iterate(readers.webdataset) == expected
    make = functools.partial(training, readers.webdataset, data)
    with Loader(make, shard=Shard(*shard), last_batch="pad", to="numpy") as loader:
        found = [(x.tobytes(), y.tobytes()) for _ in range(3) for x, y in loader]
    assert found == expected


def test_tars_of_a_disk_that_is_not_mounted_are_read_by_their_map(
    jpegs: Path, tmp_path: Path
) -> None:
    """Their indexes lie elsewhere. Without one, the tar would have to be read as a file."""
    with disk(tmp_path, "ext4") as made:
        tars, beside = pack(jpegs, made.mount / "tars")
        indexes = [shutil.copy(index, tmp_path) for index in beside]
        bmap = make_map(made.mount, tmp_path / "bmap.json")
        arguments: dict[str, Any] = {"paths": tars, "ext": ["jpg", "cls"], "batch_size": 7}
        arguments |= {"random_shuffle": True, "seed": 5}
        real = build(fn.readers.webdataset, index_paths=indexes, **arguments)
        expected = [texts(real) for _ in range(15)]
        del real
        gc.collect()
    arguments |= {"backend": "block", "backend_options": {"bmap": bmap, "uri": made.image}}
    with pytest.warns(MapNotChecked, match="cannot check whether"):
        ours = build(index_paths=indexes, **arguments)
    assert [texts(ours) for _ in range(15)] == expected
    with pytest.raises(FileNotFoundError) as caught:
        build(**arguments)
    assert caught.value.filename == tars[0]
