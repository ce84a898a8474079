"""Maps of many files."""

import tracemalloc

import numpy as np
import pytest

from bmap_tools import MapFormatError, load, save
from tests.kit.bmap.documents import many, write
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


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("a/00004321.jpg", "a/00004320.jpg"), "'a/00004320.jpg': the path occurs twice"),
        (("a/00004321.jpg", "a/00004321.jpg/.."), r"'a/00004321.jpg/\.\.': a path must be"),
        (("a/00004321.jpg", "c/00004321.jpg"), "'c/00004321.jpg': 'c' is not in directories"),
        (('4321.jpg", 5000', '4321.jpg", true'), "'a/00004321.jpg': size must be .* not True"),
        (('4321.jpg", 5000', '4321.jpg", -1'), "'a/00004321.jpg': size must be .* not -1"),
        ((str(4321 * 8192), str(2**40)), r"'a/00004321.jpg': the extent \[0, 1099511627776, 8192"),
        ((str(4321 * 8192), "-1"), r"'a/00004321.jpg': .*\[0, -1, 8192\].* negative"),
        (("a/00004321.jpg", "a/00004321\\ud800"), r"'a/00004321\\ud800': not a path"),
    ],
)
def test_the_message_names_the_one_bad_file_of_many(tmp_path, edit, message):
    path = tmp_path / "bmap.json"
    save(many(10_000), path)
    text = path.read_text()
    assert text.count(edit[0]) == 1
    with pytest.raises(MapFormatError, match=message):
        load(write(tmp_path, text.replace(*edit)))
