"""GPU memory and page-locked memory: readers, and what other devices need of it."""

import mmap
import os
import time

import numpy as np
import pytest

from dali_storage.backends.gpu import driver
from dali_storage.contract.errors import BackendUnavailable
from dali_storage.runtime import cuda
from dali_storage.testing import SnapshotRangeTests
from tests.gpu.readers import DeviceReader

MIB = 1 << 20
ATTRIBUTES = {
    "GPU_DIRECT_RDMA_SUPPORTED": 116,
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS": driver.RDMA_FLUSH_OPTIONS,
    "GPU_DIRECT_RDMA_WRITES_ORDERING": driver.RDMA_ORDERING,
    "DMA_BUF_SUPPORTED": driver.DMA_BUF,
}
_MAP_HUGETLB = 0x40000


class TestReaderOnDeviceMemory(SnapshotRangeTests):
    @pytest.fixture(autouse=True)
    def choose(self, gpu):
        self.gpu = gpu
        cuda.allocate(1, gpu)[:] = 0  # CUDA opens files and starts threads when it is first used

    def open(self, catalog):
        return DeviceReader(catalog, gpu=self.gpu)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_attributes_of_the_gpu_are_measured(gpu, measured, name):
    measured(f"attribute {name}", driver.attribute(gpu, ATTRIBUTES[name]), "")


def test_memory_is_exported_as_a_dma_buf(gpu):
    buffer = cuda.allocate(4 * MIB, gpu)
    if not driver.attribute(gpu, driver.DMA_BUF):
        with pytest.raises(BackendUnavailable, match="cuMemGetHandleForAddressRange"):
            driver.export(buffer)
        pytest.skip("this GPU and its driver do not export memory (attribute 124 is 0)")
    fd = driver.export(buffer)
    try:
        assert os.lseek(fd, 0, os.SEEK_END) == buffer.nbytes
    finally:
        os.close(fd)


def anonymous(nbytes):
    return mmap.mmap(-1, nbytes)


def hugepages(nbytes):
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _MAP_HUGETLB
    try:
        return mmap.mmap(-1, nbytes, flags=flags)
    except OSError as error:
        pytest.skip(f"no free hugepages of 2 MiB ({error.strerror}): sysctl vm.nr_hugepages=8")


def memfd(nbytes):
    fd = os.memfd_create("page-locked")
    try:
        os.ftruncate(fd, nbytes)
        return mmap.mmap(fd, nbytes)
    finally:
        os.close(fd)


@pytest.mark.parametrize("map_memory", [anonymous, hugepages, memfd])
def test_memory_of_any_kind_is_page_locked(gpu, measured, map_memory):
    memory = np.frombuffer(map_memory(8 * MIB), np.uint8)
    memory[:] = np.random.default_rng(1).integers(0, 256, memory.size, np.uint8)
    start = time.perf_counter()
    cuda.page_lock(memory, gpu)
    measured(
        f"page-locking 8 MiB: {map_memory.__name__}", 1e3 * (time.perf_counter() - start), "ms"
    )
    buffer = cuda.allocate(memory.nbytes, gpu)
    buffer[:] = memory
    assert buffer.tobytes() == memory.tobytes()


@pytest.mark.parametrize("page_locked", [False, True])
def test_the_speed_of_copies_is_measured(gpu, measured, page_locked):
    memory = np.frombuffer(anonymous(64 * MIB), np.uint8)
    memory[:] = 1  # so that all pages are there
    if page_locked:
        cuda.page_lock(memory, gpu)
    buffer, best = cuda.allocate(memory.nbytes, gpu), float("inf")
    for _ in range(10):
        start = time.perf_counter()
        buffer[:] = memory
        best = min(best, time.perf_counter() - start)
    kind = "page-locked" if page_locked else "pageable"
    measured(f"copying 64 MiB of {kind} memory to the GPU", memory.nbytes / best / 1e9, "GB/s")
