"""Which of many reads was the last, by an engine of the test."""

import numpy as np

from dali_storage.backends.linux.libc import make_iovecs
from dali_storage.backends.linux.reads import Reads
from dali_storage.contract.stages import arrived

UNIT = 4096


def last_of(sizes, unit, order):
    """What `Reads.last` is after files of these sizes have been read to their ends.

    `order`: of the files, as they arrive in each submission.
    """

    def read(fds, iovecs, starts, flags):
        found = np.clip(np.array(sizes)[fds] - starts, 0, iovecs["len"].sum(axis=1).astype(int))
        arrived(max(range(len(fds)), key=lambda index: order.index(fds[index])))
        return found

    needed = np.array(sizes)
    rooms = (needed + unit - 1) // unit * unit + unit
    iovecs = make_iovecs((np.zeros_like(rooms), rooms), (0, unit))
    reads = Reads(read, [*range(len(sizes))], iovecs, needed * 0, needed, unit, to_end=True)
    reads.run(cached_first=False, yield_turn=lambda: None)
    assert (reads.got == needed).all()
    return reads.last


def test_the_last_that_arrives_is_known_around_the_page_cache():
    assert last_of([100, 200, 300], UNIT, [2, 0, 1]) == 1


def test_a_read_of_no_bytes_that_finds_the_end_is_not_the_last():
    """The second file ends with a block, so it is read again, alone, and nothing comes."""
    assert last_of([100, UNIT, 300], UNIT, [1, 0, 2]) == 2


def test_nobody_can_tell_through_the_page_cache():
    assert last_of([100, 200], 1, [0, 1]) is None
