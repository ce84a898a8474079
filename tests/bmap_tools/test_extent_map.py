"""The values that a map consists of."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bmap_tools.extent_map import csr_offsets, csr_rows, without_reserved

COUNTS = st.lists(st.integers(0, 4), max_size=6)


@given(COUNTS)
def test_rows_of_several_owners_are_found_by_their_offsets(counts):
    owned = [[(owner, row) for row in range(count)] for owner, count in enumerate(counts)]
    rows = [row for each in owned for row in each]
    offsets = csr_offsets(counts)
    assert offsets[-1] == len(rows)
    assert [rows[start:stop] for start, stop in pairwise(offsets)] == owned
    some = np.arange(0, len(counts), 2)
    chosen = csr_rows(offsets[some], np.array(counts, np.int64)[some])
    assert [rows[row] for row in chosen] == [row for each in owned[::2] for row in each]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6))
def test_reserved_extents_are_those_that_begin_beyond_the_end(files):
    extents = [(file, i * 512, 512) for file, (_, count) in enumerate(files) for i in range(count)]
    flat = np.array([(logical, 0, length) for _, logical, length in extents], np.int64)
    sizes = [blocks * 512 for blocks, _ in files]
    kept, counts = without_reserved(
        flat.reshape(-1, 3), np.array([count for _, count in files], np.int64), np.array(sizes)
    )
    expected = [logical for file, logical, _ in extents if logical < sizes[file]]
    assert kept[:, 0].tolist() == expected
    assert counts.tolist() == [min(blocks, count) for blocks, count in files]
