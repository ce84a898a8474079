"""The layout of a batch of whole files, and its samples in the buffer."""

import weakref

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dali_storage.contract.views import Views
from dali_storage.reading.batches import layout
from tests.kit.reading_ahead import pool_of


@given(
    sizes=st.lists(st.integers(0, 1 << 40), max_size=50),
    alignment=st.sampled_from([1, 16, 512, 4096]),
)
def test_the_layout_gives_every_sample_an_aligned_range_of_its_own(sizes, alignment):
    offsets, nbytes = layout(np.array(sizes, np.int64), alignment)
    end = 0
    for offset, size in zip(offsets.tolist(), sizes, strict=True):
        assert offset % alignment == 0
        assert offset >= end
        end = offset + -(-size // alignment) * alignment
    assert nbytes == end


@given(
    sizes=st.one_of(
        st.lists(st.integers(0, 50), min_size=1, max_size=20),
        st.builds(lambda size, n: [size] * n, st.integers(0, 50), st.integers(1, 20)),
    ),
    alignment=st.sampled_from([1, 4, 16]),
)
def test_samples_of_one_size_side_by_side_are_rows_of_one_array(sizes, alignment):
    offsets, nbytes = layout(np.array(sizes, np.int64), alignment)
    arena = np.random.default_rng(1).integers(0, 256, nbytes + 5, np.uint8)
    pool = pool_of(lambda nbytes: arena)
    lease = pool.lease(nbytes)
    contents = Views(lease, offsets, np.array(sizes)).contents()
    assert [content.tobytes() for content in contents] == [
        arena[start : start + size].tobytes()
        for start, size in zip(offsets.tolist(), sizes, strict=True)
    ]
    together = len(set(sizes)) == 1 and (len(sizes) == 1 or sizes[0] % alignment == 0)
    assert isinstance(contents, np.ndarray) == (len(set(sizes)) == 1)
    lease_alive = weakref.ref(lease)
    del lease
    if isinstance(contents, np.ndarray) and not together:
        assert contents.base is not lease_alive(), "small ones are copied"
        return
    assert lease_alive() is not None, "the contents keep it"
    if isinstance(contents, np.ndarray):
        assert contents.shape == (len(sizes), sizes[0])
        assert contents.base is lease_alive()
    part = contents[-1:][0][:0]
    del contents
    assert lease_alive() is not None, "a part of a sample keeps it, too"
    del part
    assert lease_alive() is None
