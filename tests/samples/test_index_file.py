"""The file of an index of samples."""

import contextlib
import copy
import errno
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.backends.extents.map import LoadedMap, files_of
from dali_storage.contract.catalog import Catalog
from dali_storage.samples import finding, index_file
from dali_storage.samples.index_file import CatalogFile, save
from tests.kit import scale
from tests.kit.catalogs import columns_of
from tests.kit.paths import ROOT
from tests.kit.process import descriptors
from tests.kit.tiers import by_tier

FILTERS = {"file_filters": ["*"], "dir_filters": None, "case_sensitive_filter": False}
NAMES = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=20)
ROOTS = st.one_of(
    st.binary(max_size=10).map(lambda end: b"/" + end),
    st.sampled_from([b"s3://bucket", b"gs://b/\xff\xfe/", b"https://host/\xc3\xa9"]),
)
MAGIC, START = b"DALISIDX", struct.Struct("<8sII")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """For tests that write many files; on a busy disk, to flush each would take a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield tmp_path_factory.mktemp("indexes")


@pytest.fixture(scope="module")
def whole(directory):
    """The file of `example()`."""
    return example(directory / "whole")


def parts(data):
    """The header and the data, by the text of the specification."""
    magic, length, crc = START.unpack(data[: START.size])
    text, end = data[START.size : START.size + length], START.size + length
    assert (magic, crc) == (MAGIC, zlib.crc32(text))
    data_start = -(-end // 64) * 64
    assert not any(data[end:data_start])
    return json.loads(text), data[data_start:]


def packed(header, data):
    """A file with this header, whose CRC is right."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = START.pack(MAGIC, len(text), zlib.crc32(text)) + text
    return start.ljust(-(-len(start) // 64) * 64, b"\0") + data


@st.composite
def catalogs(draw):
    names = draw(NAMES)
    count = len(names)
    labels = draw(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=count, max_size=count))
    catalog = Catalog.from_names(names, labels, draw(ROOTS))
    if draw(st.booleans()):
        return catalog
    sizes = draw(st.lists(st.integers(0, 2**63 - 1), min_size=count, max_size=count))
    tags = st.binary(max_size=40).map(lambda tag: tag.rstrip(b"\0"))
    versions = np.array(draw(st.lists(tags, min_size=count, max_size=count)), bytes)
    return replace(catalog, sizes=np.array(sizes, np.int64), versions=versions)


def require_layout(whole, catalog):
    """Fail unless an index has this catalog as the specification says."""
    header, data = parts(whole)
    assert (header["version"], header["filters"]) == (1, FILTERS)
    assert header["root"].encode("utf-8", "surrogateescape") == catalog.root
    found = {}
    for name, each in header["columns"].items():
        dtype, start, length, crc = each.values()
        assert start % 64 == 0
        column = np.frombuffer(data, dtype, length, start)
        assert zlib.crc32(column.tobytes()) == crc
        found[name] = column
    assert list(header["columns"]["names"]) == ["dtype", "offset", "length", "crc32"]
    assert max(each["offset"] for each in header["columns"].values()) + column.nbytes == len(data)
    names, offsets = found["names"].tobytes(), found["offsets"].tolist()
    listed = [names[start:stop] for start, stop in pairwise(offsets)]
    assert listed == [catalog.name(i) for i in range(len(catalog))]
    assert found["labels"].tolist() == catalog.labels.tolist()
    if catalog.sizes is None or catalog.versions is None:
        assert found.keys() == {"names", "offsets", "labels"}
    else:
        assert found["sizes"].tolist() == catalog.sizes.tolist()
        assert found["versions"].tolist() == catalog.versions.tolist()


@given(catalogs())
def test_a_catalog_comes_back_as_it_was(directory, catalog):
    path = directory / "a.index"
    save(catalog, path, FILTERS)
    require_layout(path.read_bytes(), catalog)
    opened = CatalogFile(path)
    found = opened.catalog()
    assert (opened.root, opened.filters) == (catalog.root, FILTERS)
    assert columns_of(found) == columns_of(catalog)
    others = replace(found, labels=catalog.labels + np.int32(1))
    assert others.checksum() != catalog.checksum()
    assert replace(others, labels=found.labels).checksum() == catalog.checksum()
    columns = [memoryview(found.names), *map(memoryview, (found.offsets, found.labels))]
    assert all(column.readonly for column in columns)
    everything = np.arange(len(catalog))
    for each in (found, pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert each.paths(everything) == catalog.paths(everything)
        assert [each.name(i) for i in everything] == [catalog.name(i) for i in everything]
        assert each.checksum() == catalog.checksum()
    opened.verify()


def example(path):
    """An index with all columns; its bytes."""
    names, versions = [b"a/1.jpg", b"b/22.jpg"], np.array([b'"one"', b'"three"'])
    plain = Catalog.from_names(names, [0, 1], b"s3://bucket/root")
    save(replace(plain, sizes=np.array([5, 7]), versions=versions), path, FILTERS)
    return path.read_bytes()


def refusal(path, data):
    """The error of a file with these bytes, which names it."""
    path.write_bytes(data)
    with pytest.raises(ValueError) as caught:
        CatalogFile(path).verify()
    assert repr(str(path)) in str(caught.value)
    return str(caught.value)


def test_a_file_that_is_cut_short_anywhere_is_refused(directory, whole):
    for size in range(0, len(whole), by_tier(3, 1)):
        assert "index" in refusal(directory / "cut", whole[:size])
    assert "bytes" in refusal(directory / "cut", whole + b"\0")


def test_every_byte_of_an_index_that_counts_is_checked(directory, whole):
    header, data = parts(whole)
    filling = bytearray(len(whole))  # 1 where a byte means nothing
    start, end = len(whole) - len(data), START.size + len(json.dumps(header))
    filling[end:start] = b"\1" * (start - end)
    filling[start:] = b"\1" * len(data)
    for each in header["columns"].values():
        first, size = start + each["offset"], np.dtype(each["dtype"]).itemsize * each["length"]
        filling[first : first + size] = bytes(size)
    assert filling.count(0) > 300
    for place in range(0, len(whole), by_tier(3, 1)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        if filling[place]:
            (directory / "filled").write_bytes(changed)
            CatalogFile(directory / "filled").verify()
        else:
            assert "index" in refusal(directory / "damaged", bytes(changed))


TYPES = ["", "/", "s3", "<i8", "|u1", "<i4", "|S0", "|S7", "|S300", "|O", ">i8", "<f8", "i4,i4"]
VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.integers(-200, 2000), st.floats()),
    *(st.sampled_from([*TYPES, 2**63]), st.lists(st.integers(), max_size=2), st.just({"a": 1})),
)


@given(st.data())
def test_no_header_leads_out_of_the_index(directory, whole, data):
    header, rest = parts(whole)
    inner = data.draw(st.sampled_from([header, *header["columns"].values(), header["columns"]]))
    name = data.draw(st.sampled_from(sorted(inner)))
    if data.draw(st.booleans()):
        inner[name] = data.draw(VALUES)
    else:
        del inner[name]
    path = directory / "hostile"
    path.write_bytes(packed(header, rest))
    try:
        catalog = CatalogFile(path).catalog()
    except ValueError:
        refusal(path, path.read_bytes())
        return
    for column in (catalog.offsets, catalog.labels, np.frombuffer(catalog.names, np.uint8)):
        assert column.tobytes() in rest
    for sample in (0, 1, -1, 2, 100):
        with contextlib.suppress(IndexError):
            assert len(catalog.paths(np.array([sample]))[0]) <= len(whole)


@pytest.mark.parametrize(
    ("name", "changes", "what"),
    [
        ("names", {"offset": 1, "length": 14}, "at .* of"),
        ("names", {"offset": -64, "length": 79}, "at .* of"),
        ("names", {"offset": 1 << 40}, "at .* of"),
        ("names", {"length": -1}, "at .* of"),
        ("names", {"length": 16}, "lengths of columns do not match"),
        ("offsets", {"dtype": ">i8"}, "type '>i8'"),
        ("labels", {"dtype": "<f4"}, "type '<f4'"),
        ("versions", {"dtype": "|S0"}, r"type '\|S0'"),
        ("versions", {"dtype": "|S257", "length": 0}, r"type '\|S257'"),
        ("offsets", {"length": 0}, "lengths of columns do not match"),
        *((name, {"length": 1}, "do not match") for name in ("labels", "sizes", "versions")),
        ("others", {"dtype": "|u1", "offset": 0, "length": 0, "crc32": 0}, "'others'"),
    ],
)
def test_columns_that_cannot_be_right_are_refused(directory, whole, name, changes, what):
    header, data = parts(whole)
    header["columns"].setdefault(name, {}).update(changes)
    assert re.search(rf"damaged: .*{what}", refusal(directory / "hostile", packed(header, data)))


def with_offset(whole, entry, offset):
    """The index with another offset of a name; its CRC is that of the old one."""
    header, data = parts(whole)
    place = header["columns"]["offsets"]["offset"] + 8 * entry
    return packed(header, data[:place] + struct.pack("<q", offset) + data[place + 8 :])


HEADERS = {b"no json": "header is wrong", b"[1]": "header is wrong", b"1" * 5000: "header is wrong"}
HEADERS |= {b"[" * 100_000: "header is wrong", b"{}": "version", b'{"version": 1}': "root"}
HEADERS[b'{"version": 2}'] = "layout version 2 (this release reads 1); rebuild the index"


@pytest.mark.parametrize(("header", "what"), HEADERS.items(), ids=lambda it: str(it)[:20])
def test_a_header_of_another_kind_is_refused(directory, header, what):
    assert what in refusal(directory / "hostile", packed(header, b""))


def test_wild_offsets_of_names_are_errors_of_python(directory, whole):
    for entry in (0, 2):
        assert "do not match" in refusal(directory / "hostile", with_offset(whole, entry, 1))
    for wild in (-1, -(2**63), 2**63 - 1, 1000):
        assert "'offsets'" in refusal(directory / "wild", with_offset(whole, 1, wild))
        catalog = CatalogFile(directory / "wild").catalog()
        for sample in (0, 1):
            assert len(catalog.name(sample)) <= 15
            with contextlib.suppress(IndexError):
                assert len(catalog.paths(np.array([sample]))[0]) <= 17 + 15


def test_a_file_that_is_no_index_is_named(tmp_path):
    (tmp_path / "text").write_text("no index")
    (tmp_path / "empty").touch()
    for name in ("text", "empty"):
        words = f"{name}' is neither a directory nor an index of samples; make one"
        with pytest.raises(ValueError, match=words):
            finding.find(file_root=tmp_path / name)
    with pytest.raises(FileNotFoundError, match="nothing"):
        CatalogFile(tmp_path / "nothing")


def test_a_catalog_that_cannot_be_indexed_is_refused(tmp_path):
    target = tmp_path / "index"
    plain = Catalog.from_names([b"a/1", b"b/2"], [0, 1], b"s3://bucket")
    with pytest.raises(ValueError, match="relative path"):
        save(Catalog.from_names([b"a"], [0], b"data"), target, FILTERS)
    for names in ([], [b"without a label"]):
        with pytest.raises(ValueError, match=r"needs whole files with labels, at least one"):
            save(Catalog.from_names(names, [], b"/data"), target, FILTERS)
    long = np.array([b"1", b"2" * 257])
    catalog = Catalog(plain.root, plain.names, plain.offsets, plain.labels, versions=long)
    with pytest.raises(ValueError, match="'s3://bucket/b/2': the ETag has more than 256 bytes"):
        save(catalog, target, FILTERS)
    with pytest.raises(FileNotFoundError, match="missing/index"):
        save(plain, tmp_path / "missing" / "index", FILTERS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_index_is_replaced_when_the_new_one_is_complete(tmp_path, monkeypatch, error):
    target = tmp_path / "index"
    old = example(target)
    before = CatalogFile(target).catalog()
    monkeypatch.setattr(index_file.os, "fsync", Mock(side_effect=error))
    with pytest.raises(error):
        save(Catalog.from_names([b"new"], [0], b"/"), target, FILTERS)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert target.read_bytes() == old
    monkeypatch.undo()
    save(Catalog.from_names([b"new"], [0], b"/"), target, FILTERS)
    assert CatalogFile(target).catalog().path(0) == b"/new"
    assert before.path(1) == b"s3://bucket/root/b/22.jpg"  # still mapped


def test_two_writers_of_one_index_do_not_share_a_file(tmp_path):
    target = tmp_path / "index"
    with index_file.replacing(str(target)) as one:
        with index_file.replacing(str(target)) as other:
            other.write(b"other")
        assert target.read_bytes() == b"other"
        one.write(b"one")
    assert target.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["index"]


def test_an_error_of_mapping_names_the_index(directory, whole, monkeypatch):
    def refuse(*args, **options):
        raise OSError(errno.ENODEV, "no such device")  # as file systems that cannot map

    monkeypatch.setattr(index_file.mmap, "mmap", refuse)
    with pytest.raises(OSError, match="No such device") as caught:
        CatalogFile(directory / "whole")
    assert caught.value.filename == str(directory / "whole")


def test_an_index_is_compared_with_a_map_of_the_same_files(tmp_path):
    plain = Catalog.from_names([b"a/1.jpg", b"b/22.jpg"], [0, 1], os.fsencode(tmp_path))
    save(plain, tmp_path / "x.index", FILTERS)
    same = SimpleNamespace(names=plain.names, name_offsets=plain.offsets)
    found = files_of(CatalogFile(tmp_path / "x.index").catalog(), LoadedMap(same, ""))
    assert found.tolist() == [0, 1]


def test_an_index_is_closed_after_use(directory):
    example(directory / "open")
    catalog = CatalogFile(directory / "open").catalog()
    with pytest.raises(ValueError):
        CatalogFile(__file__)
    del catalog
    assert not descriptors(directory / "open") | descriptors(__file__)


def test_opening_an_index_does_not_read_the_columns(directory, whole):
    header, data = parts(whole)
    (directory / "x").write_bytes(packed(header | {"checksum": 7}, data))
    assert CatalogFile(directory / "x").catalog().checksum() == 7
    path = directory / "long.index"
    save(scale.generated(100_000), path, {})
    script = f"""if 1:
        from pathlib import Path
        from dali_storage.samples.index_file import CatalogFile
        from tests.kit.scale import memory_of_process
        before = memory_of_process()
        catalog = CatalogFile({str(path)!r}).catalog()
        print(memory_of_process() - before)
        del catalog
        assert {str(path)!r} not in Path("/proc/self/smaps").read_text()  # nobody refers to it
    """
    kept = subprocess.check_output([sys.executable, "-c", script], cwd=ROOT)
    assert int(kept) < 500_000  # of 8 MB


@pytest.mark.long
def test_processes_that_read_an_index_share_its_memory(tmp_path):
    path = str(tmp_path / "x.index")
    save(scale.generated(100_000), path, {})
    size = os.path.getsize(path)
    for samples, resident, charged, own in scale.shared(path, 3):
        assert (samples, resident >= size - 4096) == (100_000, True)
        assert charged <= size / 3 + 4096
        assert own < size / 4
