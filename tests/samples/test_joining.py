"""One catalog of the samples of several."""

from dataclasses import replace

import numpy as np
import pytest

from dali_storage.contract.catalog import Catalog
from dali_storage.contract.ranges import Ranges
from dali_storage.samples.joining import join


def catalog(root, *names):
    return Catalog.from_names([*names], range(len(names)), root)


@pytest.mark.parametrize(
    ("roots", "root"),
    [
        ([b"/data/a", b"/data/b/c"], b"/data"),
        ([b"/data", b"/data/b"], b"/data"),
        ([b"/data", b"/other"], b"/"),
        ([b"/data", b""], b""),
        ([b"s3://bucket/a", b"s3://bucket/b"], b""),
    ],
)
def test_paths_are_those_of_the_sources_below_what_all_roots_have(roots, root):
    parts = [catalog(roots[0], b"x/1.jpg", b"/elsewhere/2.jpg"), catalog(roots[1], b"y/3.jpg")]
    joined = join({"a": parts[0], "b": parts[1]}, "own")
    assert joined.root == root
    expected = [part.file_path(file) for part in parts for file in range(part.file_count)]
    assert joined.file_paths(np.arange(3)) == expected
    assert joined.labels.tolist() == [0, 1, 0]


def test_a_checksum_does_not_depend_on_where_the_roots_are():
    def checksum(one, other, name=b"y"):
        return join({"a": catalog(one, b"x"), "b": catalog(other, name)}, "own").checksum()

    assert checksum(b"/a", b"/b") == checksum(b"/mnt/a", b"/c") != checksum(b"/a", b"/b", b"z")


def test_ranges_are_in_the_files_of_their_source():
    def container(name, *places):
        files, starts, sizes = (np.array(column) for column in zip(*places, strict=True))
        ranges = Ranges.of_columns(files, starts, sizes)
        made = Catalog.from_names([name, name + b"2"], [], b"/r")
        guards = {1: [(3, name)]}
        return Catalog(made.root, made.names, made.offsets, made.labels, ranges, guards=guards)

    first, second = container(b"p", (0, 1, 2), (1, 3, 4)), container(b"q", (1, 5, 6))
    joined = join({"a": first, "b": second}, None)
    assert joined.paths(np.arange(3)) == [b"/r/p", b"/r/p2", b"/r/q2"]
    found = [joined.where(at).split(": ")[1] for at in range(3)]
    assert found == ["2 bytes at 1", "4 bytes at 3", "6 bytes at 5"]
    assert joined.guards == {1: [(3, b"p")], 3: [(3, b"q")]}


def test_listed_and_named_objects_are_not_mixed():
    listed = replace(catalog(b"s3://b", b"x"), versions=np.array([b"v1"]))
    with pytest.raises(ValueError, match="only one of them has a listing"):
        join({"a": listed, "b": catalog(b"s3://b", b"y")}, "own")


def test_samples_without_labels_have_no_joint_ones():
    unlabelled = Catalog.from_names([b"x/1"], [], b"/r")
    with pytest.raises(ValueError, match="labels='joint': these samples have no labels"):
        join({"a": unlabelled, "b": unlabelled}, "joint")
