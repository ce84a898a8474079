"""Bus addresses of GPU memory: the module dmabuf_import, the driver API and sysfs as stand-ins."""

import contextlib
import errno
import fcntl
import gc
import itertools
import os
import secrets
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dali_storage.backends.gpu import dmabuf
from dali_storage.backends.gpu.dmabuf import PeerMemory
from dali_storage.contract.errors import BackendUnavailable
from tests.kit import gpu_machine
from tests.kit.dmabuf_import import ARENA, ATTACH, BAR1, BAR1_SIZE, DETACH, GET_MAP, ORDERING
from tests.kit.gpu_machine import NVME
from tests.kit.interrupts import ends_at
from tests.kit.process import descriptors


@pytest.fixture(autouse=True)
def no_descriptor_stays_open(tmp_path):
    """Neither of the module nor of a dma-buf."""
    before = descriptors(below="/memfd:dma-buf")
    yield
    gc.collect()
    assert not descriptors(below=tmp_path)
    assert descriptors(below="/memfd:dma-buf") <= before


# What is right


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bus_addresses_are_those_of_the_segments_in_their_order(peer_memory, module, data):
    pages = ARENA // 4096
    cuts = data.draw(st.lists(st.integers(1, pages - 1), unique=True, max_size=20))
    ends = [0, *sorted(cuts), pages]
    lengths = [end - start for start, end in itertools.pairwise(ends)]
    places = data.draw(st.permutations(range(len(lengths))))
    starts = [BAR1 // 4096 + place * pages for place in places]
    starts = [
        min(start, (BAR1 + BAR1_SIZE) // 4096 - n) for start, n in zip(starts, lengths, strict=True)
    ]
    module.segments = [(at * 4096, n * 4096) for at, n in zip(starts, lengths, strict=True)]
    expected = [
        4096 * (at + page) for at, n in zip(starts, lengths, strict=True) for page in range(n)
    ]
    buffer = peer_memory.allocate(ARENA - 5)
    assert buffer.nbytes == ARENA
    addresses = buffer.address + np.arange(0, ARENA, 4096)
    assert peer_memory.find(buffer).addresses(addresses).tolist() == expected
    part = peer_memory.find(buffer[4096:8192])
    assert part.addresses(addresses[1:2] + 7).tolist() == [expected[1] + 7]
    del part
    del buffer
    assert not module.attached


def test_the_whole_memory_is_exported_and_attached_under_the_lock(peer_memory, module, libcuda):
    buffer = peer_memory.allocate(ARENA)
    assert libcuda.exported == [(buffer.address, ARENA, 1)]  # 1: as a dma-buf
    assert module.locks == [True]
    ((number, _),) = module.attached.items()
    assert number >= 500
    assert [request for request, _ in module.calls] == [GET_MAP, ATTACH, GET_MAP]
    other = peer_memory.allocate(ARENA)
    assert module.locks == [True, True]  # the first one has let go
    assert len(module.attached) == 2
    del buffer, other


def test_an_attachment_lasts_as_long_as_the_last_slice(peer_memory, module):
    part = peer_memory.allocate(ARENA)[4096:][:10]
    gc.collect()
    (number,) = module.attached
    os.fstat(number)
    del part
    assert not module.attached
    assert module.calls[-1] == (DETACH, number)


@pytest.mark.parametrize("ordering", [0, 100, 200])
def test_writes_are_flushed_only_if_the_gpu_does_not_order_them(module, libcuda, machine, ordering):
    libcuda.attributes[ORDERING] = ordering
    peer_memory = PeerMemory(0, NVME, str(machine.base))
    with ThreadPoolExecutor(1) as lane:  # which has not used the GPU before
        lane.submit(peer_memory.flush).result()
    assert libcuda.flushed == ([(0, 100)] if ordering == 0 else [])


# Addresses of other memory


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([], f"has 0 bytes for {ARENA} bytes"),
        ([(BAR1, ARENA - 4096)], f"has {ARENA - 4096} bytes for {ARENA} bytes"),
        ([(BAR1, ARENA), (BAR1 + ARENA, 4096)], f"has {ARENA + 4096} bytes"),
        ([(BAR1, 2 * ARENA)], f"has {2 * ARENA} bytes"),
        ([(BAR1 - 4096, ARENA)], "outside the BAR1 of GPU 0"),
        ([(BAR1 + BAR1_SIZE - ARENA + 4096, ARENA)], "outside the BAR1 of GPU 0"),
        ([(0x1000, ARENA)], "outside the BAR1"),
        ([(BAR1, ARENA // 2), (1 << 62, ARENA // 2)], "outside the BAR1"),
        ([(BAR1 + 512, ARENA)], "outside the BAR1"),
        ([(BAR1, 512), (BAR1 + 4096, ARENA - 512)], "outside the BAR1"),
        ([(BAR1, (1 << 64) - 4096), (BAR1, ARENA + 4096)], "outside the BAR1"),  # wraps around
    ],
)
def test_addresses_that_cannot_be_those_of_the_memory_are_refused(
    peer_memory, module, segments, message
):
    module.segments = segments
    with pytest.raises(BackendUnavailable, match=message) as caught:
        peer_memory.allocate(ARENA)
    assert "so it maps other memory" in caught.value.reason
    assert "restart the machine" in caught.value.remedy
    assert not module.attached


@pytest.mark.parametrize("verifies", [False, True])
def test_numbers_with_attachments_of_other_processes_are_not_used(
    peer_memory, module, monkeypatch, verifies
):
    module.verifies = verifies
    monkeypatch.setattr(secrets, "randbelow", lambda _: 0)
    first = peer_memory.allocate(ARENA)
    (number,) = module.attached
    del first
    others = {number + k: [(BAR1 + ARENA, ARENA)] for k in (0, 1, 2, 4)}
    module.attached |= others  # equally long, and in the same BAR1
    module.buffers |= dict.fromkeys(others, 0)
    buffer = peer_memory.allocate(ARENA)
    assert set(module.attached) - set(others) == {number + 3}
    assert peer_memory.find(buffer).addresses(np.array([buffer.address])).tolist() == [BAR1]
    del buffer
    assert module.attached == others


def test_if_all_numbers_have_attachments_the_remedy_is_named(peer_memory, module):
    others = {number: [(BAR1, ARENA)] for number in range(100, 40_000)}
    module.attached |= others
    with pytest.raises(BackendUnavailable, match=r"attachments .* 64 numbers.*restart the machine"):
        peer_memory.allocate(ARENA)
    assert module.attached == others


# Failures


@pytest.mark.parametrize(
    ("request_", "number", "message"),
    [
        (ATTACH, errno.ENOMEM, r"cannot attach \d+ bytes of GPU 0 .*its BAR1 may be full: use sma"),
        (ATTACH, errno.EOPNOTSUPP, "dmabuf_import cannot attach"),
        (ATTACH, errno.EINTR, "dmabuf_import cannot attach"),
        (GET_MAP, errno.EFAULT, "dmabuf_import has no addresses"),
        (GET_MAP, errno.EINVAL, "dmabuf_import has no addresses"),
    ],
)
def test_a_call_that_fails_is_named_and_nothing_stays_attached(
    peer_memory, module, request_, number, message
):
    module.fails[request_] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        peer_memory.allocate(ARENA)
    assert not module.attached
    module.fails[request_] = number
    with pytest.raises(OSError, match=message) as caught:
        peer_memory.allocate(ARENA)
    assert caught.value.errno == number
    assert str(caught.value.filename).endswith("/dev/dmabuf_import")
    assert not module.attached


def test_a_ctrl_c_while_memory_is_detached_detaches_nothing_of_others(peer_memory, module):
    others = [(BAR1 + ARENA, ARENA)]
    for instruction in itertools.count():
        buffer = peer_memory.allocate(ARENA)
        (number,), (fds,) = module.attached, peer_memory._attached.values()
        opened = {fd: os.fstat(fd).st_ino for fd in fds}

        def detach(fds=fds):
            dmabuf._close(os.getpid(), fds)

        is_interrupted = ends_at(instruction, dmabuf, detach)
        is_detached = number not in module.attached
        if is_detached:  # another process takes the number
            module.attached[number] = others
        dmabuf._detach_all(os.getpid(), peer_memory._attached)
        assert module.attached.pop(number, None) == (others if is_detached else None)
        assert not fds
        for fd, inode in opened.items():  # a descriptor may stay open, but is not closed twice
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_ino == inode:
                    os.close(fd)
        del buffer
        if not is_interrupted:
            break
    assert instruction > 20


def test_buffers_that_two_lanes_make_at_once_are_both_detached(peer_memory, module, monkeypatch):
    opened = os.open

    def open_slowly(*arguments):
        monkeypatch.setattr(os, "open", opened)
        peer_memory.allocate(ARENA)  # by the other lane, which lets go of it
        return opened(*arguments)

    monkeypatch.setattr(os, "open", open_slowly)
    buffer = peer_memory.allocate(ARENA)
    assert len(module.attached) == 1
    dmabuf._detach_all(os.getpid(), peer_memory._attached)  # at exit
    assert not module.attached
    del buffer


def test_a_device_that_is_not_the_module_is_an_error(peer_memory, monkeypatch):
    def ioctl(*_):
        raise OSError(errno.ENOTTY, "")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with pytest.raises(OSError, match="dmabuf_import has no addresses") as caught:
        peer_memory.allocate(ARENA)
    assert caught.value.errno == errno.ENOTTY


def test_memory_that_cannot_be_exported_is_an_error(peer_memory, module, libcuda):
    libcuda.code = 801
    message = r"GPU 0: cuMemGetHandleForAddressRange: CUDA_ERROR_OF_A_TEST \(801\)"
    with pytest.raises(BackendUnavailable, match=message):
        peer_memory.allocate(ARENA)
    assert module.calls == []


def test_a_module_that_is_unloaded_meanwhile_is_an_error(peer_memory, machine):
    machine.change({gpu_machine.MODULE: None})
    with pytest.raises(FileNotFoundError):
        peer_memory.allocate(ARENA)
