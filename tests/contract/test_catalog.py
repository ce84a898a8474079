"""The columns of a catalog."""

import copy
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest

from dali_storage.contract.catalog import Catalog, CatalogBuilder, join_path
from dali_storage.contract.ranges import Ranges


@pytest.mark.parametrize("root", [b"", b"/", b"/data", b"/data/", b"data//"])
@pytest.mark.parametrize("names", [[b"a", b"c/bb", b"\xff"], [b"a", b"/abs/b", b"c"]])
def test_names_are_joined_to_the_root(root, names):
    found = Catalog.from_names(names, [4, 5, 6], root)
    expected = [os.path.join(root, name) for name in names]
    assert [found.path(i) for i in range(3)] == expected
    samples = np.array([2, 0, 1, 1], np.int64)
    assert found.paths(samples) == [expected[i] for i in samples]
    assert found.paths(samples[:0]) == []


def test_columns_have_the_promised_types():
    found = Catalog.from_names([b"a", b"bcd"], [7, 8])
    assert (found.names, found.offsets.tolist(), found.labels.tolist()) == (
        b"abcd",
        [0, 1, 4],
        [7, 8],
    )
    assert (found.offsets.dtype, found.labels.dtype, len(found)) == (np.int64, np.int32, 2)


def test_a_catalog_prints_as_a_line():
    assert repr(Catalog.from_names([b"a"] * 10_000, [0] * 10_000, b"/d")) == (
        "<Catalog: 10,000 samples of '/d'>"
    )


@pytest.mark.parametrize("sample", [2, -3])
def test_an_index_beyond_the_catalog_is_an_error(sample):
    found = Catalog.from_names([b"a", b"b"], [0, 1])
    with pytest.raises(IndexError):
        found.name(sample)
    with pytest.raises(IndexError):
        found.paths(np.array([0, sample], np.int64))


def test_a_builder_takes_one_sample_or_many():
    builder = CatalogBuilder()
    builder.append(b"a", 1)
    builder.extend([b"b", b"cc"], [2, 2**32 + 3], prefix=b"d/")
    assert len(builder) == 3
    found = builder.build(b"/root")
    assert [found.path(i) for i in range(3)] == [b"/root/a", b"/root/d/b", b"/root/d/cc"]
    assert found.labels.tolist() == [1, 2, 3]


def test_an_absolute_name_is_its_own_path():
    assert join_path(b"root", b"/name") == b"/name"
    assert join_path(b"", b"name") == b"name"


def test_the_checksum_tells_where_a_name_ends():
    one, other = (Catalog.from_names(names, [0, 1]) for names in ([b"ab", b"c"], [b"a", b"bc"]))
    assert one.names == other.names
    assert one.checksum() != other.checksum()


def test_the_checksum_tells_where_samples_are_in_which_files():
    names, places = Catalog.from_names([b"a", b"b"], [0, 1, 2]), [[0, 0, 1], [0, 9, 0], [9, 9, 5]]
    others = [[[0, 1, 1], *places[1:]], [places[0], [0, 9, 1], places[2]], [*places[:2], [9, 9, 6]]]
    catalogs = [
        replace(names, ranges=Ranges.of_columns(*map(np.array, each))) for each in [places, *others]
    ]
    assert len({catalog.checksum() for catalog in catalogs}) == 4


@pytest.mark.parametrize("again", [replace, copy.copy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_known_checksum_is_not_that_of_a_copy(again):
    names = Catalog.from_names([b"a", b"b"], [0, 1])
    known = replace(names).knowing(7)
    assert known.checksum() == 7
    assert again(known).checksum() == names.checksum()
    assert (known.sidecar, again(known).sidecar) == ({"checksum": 7}, {})
