"""Samples that a list of bad ones names are left out."""

import json
import os

import numpy as np
import pytest

from dali_storage.bad_samples import exclusion
from dali_storage.bad_samples.exclusion import without
from dali_storage.contract.catalog import Catalog


@pytest.fixture
def listed(tmp_path):
    def write(*paths):
        lines = [json.dumps({"index": 99, "path": str(path), "reason": "x"}) for path in paths]
        (tmp_path / "bad.jsonl").write_text("".join(line + "\n" for line in lines))
        return tmp_path / "bad.jsonl"

    return write


def names(catalog):
    return [os.fsdecode(catalog.name(it)) for it in range(len(catalog))]


@pytest.mark.parametrize("root", ["data", "/data/set", "", "./data/../other"])
def test_the_listed_files_are_left_out_by_name(listed, root, monkeypatch):
    monkeypatch.setattr(exclusion, "_PART", 2)
    monkeypatch.chdir(listed().parent)
    given = [b"a/1", b"b/0", b"./c/2", "\udcff.jpg".encode(errors="surrogateescape"), b"a/1"]
    catalog = Catalog.from_names(given, range(5), os.fsencode(root))
    bad = [os.path.abspath(os.path.join(root, each)) for each in ("a/1", "c/2", "\udcff.jpg")]
    left = without(catalog, listed(*bad, *bad))
    assert (names(left), left.labels.tolist(), left.root) == (["b/0"], [1], catalog.root)
    assert names(without(catalog, listed())) == names(catalog)


def test_objects_keep_their_columns(listed):
    catalog = Catalog.from_names([b"c/1", b"c/2", b"d//3"], [0, 0, 1], b"s3://bucket/x")
    more = Catalog(
        *(catalog.root, catalog.names, catalog.offsets, catalog.labels),
        sizes=np.array([5, 6, 7]),
        versions=np.array([b"e", b"f", b"g"]),
    )
    left = without(more, listed("s3://bucket/x/c/2", "s3://bucket/x/d//3"))
    assert (names(left), left.sizes.tolist(), left.versions.tolist()) == (["c/1"], [5], [b"e"])
    assert left.checksum() == Catalog.from_names([b"c/1"], [0], b"s3://bucket/x").checksum()


def test_names_that_are_not_there_are_counted(listed):
    catalog = Catalog.from_names([b"a", b"b"], [0, 1], b"/data")
    with pytest.warns(UserWarning, match=r"2 of 3 files in .*bad.jsonl' are not among the samples"):
        assert len(without(catalog, listed("/data/a", "/other/a", "/data/c"))) == 1


@pytest.mark.parametrize("line", ["{}", "[]", "a.jpg", '{"path": 5}', '"a"'])
def test_a_wrong_list_is_refused(listed, line):
    catalog = Catalog.from_names([b"a"], [0], b"/data")
    file = listed("/data/b")
    file.write_text(file.read_text() + line)
    with pytest.raises(ValueError, match=r"exclude='.*bad.jsonl', line 2: expected a JSON object"):
        without(catalog, file)
    with pytest.raises(ValueError, match="leaves no samples"):
        without(catalog, listed("/data/a"))
    with pytest.raises(FileNotFoundError):
        without(catalog, "/nowhere/bad.jsonl")
    with pytest.raises(ValueError, match="exclude must be a local path"):
        without(catalog, "s3://bucket/bad.jsonl")
