from __future__ import annotations

import gc
import threading

import numpy as np

from dali_storage._types import Buffer
from dali_storage.buffers import BufferPool


class Allocator:
    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, nbytes: int) -> Buffer:
        self.sizes.append(nbytes)
        return np.zeros(nbytes, np.uint8)


def test_a_buffer_returns_when_its_last_view_dies() -> None:
    allocate = Allocator()
    pool = BufferPool(allocate)
    lease = pool.lease(1000)
    address = lease.ctypes.data
    view = lease[100:200][10:20]  # numpy collapses the chain of views
    del lease
    gc.collect()
    assert pool.lease(1000).ctypes.data != address
    del view
    assert address in {pool.lease(1000).ctypes.data, pool.lease(1000).ctypes.data}
    assert len(allocate.sizes) == 2


def test_the_same_buffer_serves_batch_after_batch() -> None:
    allocate = Allocator()
    pool = BufferPool(allocate)
    for nbytes in (5000, 1, 4000, 5200):
        pool.lease(nbytes)[:] = 1
    assert len(allocate.sizes) == 1


def test_a_larger_batch_replaces_the_small_buffer() -> None:
    allocate = Allocator()
    pool = BufferPool(allocate)
    pool.lease(1000)
    assert pool.lease(100 << 20).size >= 100 << 20
    assert pool.lease(1000).size >= 100 << 20
    assert len(allocate.sizes) == 2


def test_two_leases_never_share_memory() -> None:
    pool = BufferPool(Allocator())
    leases = [pool.lease(100) for _ in range(10)]
    assert len({lease.ctypes.data for lease in leases}) == 10


def test_leases_may_end_in_other_threads() -> None:
    allocate = Allocator()
    pool = BufferPool(allocate)

    def use() -> None:
        for number in range(2000):
            lease = pool.lease(64)
            lease[:] = number % 251
            assert (lease == number % 251).all()

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(allocate.sizes) <= 8  # a thread leases the next before the last dies
