"""Maps of many files."""

import tracemalloc

import numpy as np
import pytest

from bmap_tools import load, save
from tests.kit.bmap.documents import many
from tests.kit.process import alone
from tests.kit.tiers import by_tier


@pytest.mark.long
@alone
def test_a_file_takes_at_most_120_bytes_and_its_row_is_not_kept(tmp_path):
    count = by_tier(20_000, 100_000)
    save(many(count), tmp_path / "bmap.json")
    tracemalloc.start()
    loaded = load(tmp_path / "bmap.json")
    kept, peak = tracemalloc.get_traced_memory()
    assert len(loaded) == count
    assert (kept - len(loaded.names)) / count <= 120
    assert peak / count <= 300  # the objects of one row alone take 500


def test_many_files_are_saved_and_loaded(tmp_path):
    saved = many(10_000)
    save(saved, tmp_path / "bmap.json")
    loaded = load(tmp_path / "bmap.json")
    assert loaded.names == saved.names
    for column in ("name_offsets", "sizes", "extent_offsets", "extents"):
        assert np.array_equal(getattr(loaded, column), getattr(saved, column))
