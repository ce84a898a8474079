"""Buffers that are leased to batches: of the host and of a GPU."""

import gc
import threading
from functools import partial

import numpy as np
import pytest

from dali_storage.contract._types import address_of
from dali_storage.reading.buffers import buffer_bytes
from dali_storage.runtime import cuda
from tests.kit.reading_ahead import pool_of
from tests.kit.tiers import by_tier


class Allocator:
    def __init__(self, device: str) -> None:
        self.device = device
        self.sizes = []

    def __call__(self, nbytes):
        self.sizes.append(nbytes)
        return cuda.allocate(nbytes, 0) if self.device == "gpu" else np.zeros(nbytes, np.uint8)


@pytest.fixture(params=["cpu", "gpu"])
def allocate(gpus, request):
    return Allocator(request.param)


def test_a_buffer_returns_when_its_last_view_dies(allocate):
    pool = pool_of(allocate)
    lease = pool.lease(1000)
    address = address_of(lease)
    view = lease[100:200][10:20]  # numpy collapses the chain of views
    del lease
    gc.collect()
    assert address_of(pool.lease(1000)) != address
    del view
    leases = pool.lease(1000), pool.lease(1000)
    assert address in map(address_of, leases)
    assert len(allocate.sizes) == 2


def test_a_buffer_serves_batch_after_batch_until_a_larger_one_replaces_it(allocate):
    pool = pool_of(allocate)
    for nbytes in (5000, 1, 4000, 5200):
        pool.lease(nbytes)[:] = 1
    assert len(allocate.sizes) == 1
    assert len(pool._lent) <= 1
    assert pool.lease(100 << 20).nbytes >= 100 << 20
    assert pool.lease(1000).nbytes >= 100 << 20
    assert len(allocate.sizes) == 2


def test_the_buffer_of_a_small_batch_is_small():
    """The kernel may clear a huge page for a larger one, and a pipeline has many."""
    allocate = Allocator("cpu")
    for nbytes in (1, 50_000, 500_000, 5_000_000):
        pool_of(allocate).lease(nbytes)
    assert allocate.sizes == [64 << 10, 64 << 10, 1 << 20, 6 << 20]


def test_leases_may_end_in_other_threads(allocate):
    pool = pool_of(allocate)

    def use():
        for number in range(by_tier(100, 2000 if allocate.device == "cpu" else 200)):
            lease = pool.lease(64)
            lease[:] = number % 251
            assert lease.tobytes() == bytes([number % 251]) * lease.nbytes

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(allocate.sizes) <= 8  # a thread leases the next before the last dies


# Fences


def test_a_fence_is_set_when_the_last_view_dies_and_waited_for_before_the_next_lease(allocate):
    log = []

    def fence():
        log.append("set")
        return partial(log.append, "waited")

    pool = pool_of(allocate, fence)
    lease = pool.lease(1000)
    view = lease[10:][:5]
    del lease
    gc.collect()
    assert log == []
    del view
    assert log == ["set"]
    first = pool.lease(1000)
    assert log == ["set", "waited"]
    pool.lease(1000)  # a new buffer
    assert log == ["set", "waited", "set"]
    del first
    pool.clear()
    assert log == ["set", "waited", "set", "set"]


def test_a_buffer_whose_fence_fails_is_not_leased_again(allocate):
    def fail(what):
        raise RuntimeError(what)

    pool = pool_of(allocate, partial(fail, "driver shutting down"))
    pool.lease(1)
    pool.lease(1)  # a fence that cannot be set is no error
    assert len(allocate.sizes) == 2
    pool = pool_of(allocate, lambda: partial(fail, "illegal address"))
    pool.lease(1)
    with pytest.raises(RuntimeError, match="illegal address"):
        pool.lease(1)
    pool.lease(1)
    assert len(allocate.sizes) == 4


def test_a_copy_that_is_queued_is_done_before_the_buffer_is_overwritten(gpus):
    stream = cuda.CudaStream(0)
    pool = pool_of(partial(cuda.allocate, gpu=0), stream.fence)
    copies = []
    for value in range(20):
        lease = pool.lease(100)
        lease[:] = value
        read = partial(gpus.contents, cuda.DeviceBuffer(address_of(lease), 100, 0, None))
        gpus.queue(stream.pointer, lambda read=read: copies.append(read()))
        del lease, read
    gpus.finish(stream.pointer)
    assert copies == [bytes([value]) * 100 for value in range(20)]
    assert len(gpus.allocated) == 1


@pytest.mark.parametrize(
    ("memory", "nbytes"),
    [(None, 1 << 30), (0, 0), (4 << 30, 1 << 29), (8 << 30, 1 << 30), (1 << 40, 1 << 30)],
)
def test_a_reader_may_fill_an_eighth_of_the_memory_and_at_most_1_gib(memory, nbytes):
    assert buffer_bytes(memory).value == nbytes
