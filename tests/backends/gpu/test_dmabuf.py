"""Bus addresses of GPU memory: the module dmabuf_import, the driver API and sysfs as stand-ins."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import itertools
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dali_storage.backends.gpu import dmabuf, driver
from dali_storage.backends.gpu.dmabuf import PeerMemory
from dali_storage.contract.errors import BackendUnavailable
from tests.kit import gpu_machine
from tests.kit.dmabuf_import import (
    ARENA,
    ATTACH,
    BAR1,
    BAR1_SIZE,
    DETACH,
    DMA_BUF,
    FLUSH_OPTIONS,
    GET_MAP,
    ORDERING,
    Driver,
    Module,
    Segments,
)
from tests.kit.fake_cuda import Cuda
from tests.kit.gpu_machine import NVME, GpuMachine, bar
from tests.kit.interrupts import ends_at
from tests.kit.process import descriptors


@pytest.fixture
def machine(tmp_path: Path) -> GpuMachine:
    """A machine with everything."""
    made = GpuMachine(tmp_path)
    made.change({gpu_machine.RESOURCE: bar(0x9000_0000, 16 << 20) + bar(BAR1, BAR1_SIZE)})
    return made


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    return Module(monkeypatch)


@pytest.fixture
def libcuda(monkeypatch: pytest.MonkeyPatch, gpus: Cuda) -> Driver:
    return Driver(gpus, monkeypatch)


def peer(machine: GpuMachine, gpu: int = 0) -> PeerMemory:
    return PeerMemory(gpu, NVME, str(machine.base))


@pytest.fixture
def memory(module: Module, libcuda: Driver, machine: GpuMachine) -> PeerMemory:
    return peer(machine)


@pytest.fixture(autouse=True)
def no_descriptor_stays_open(tmp_path: Path) -> Iterator[None]:
    """Neither of the module nor of a dma-buf."""
    before = descriptors(below="/memfd:dma-buf")
    yield
    gc.collect()
    assert not descriptors(below=tmp_path)
    assert descriptors(below="/memfd:dma-buf") <= before


# What is right


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_bus_addresses_are_those_of_the_segments_in_their_order(
    memory: PeerMemory, module: Module, data: st.DataObject
) -> None:
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
    buffer = memory.allocate(ARENA - 5)
    assert buffer.nbytes == ARENA
    addresses = buffer.address + np.arange(0, ARENA, 4096)
    assert memory.find(buffer).addresses(addresses).tolist() == expected
    part = memory.find(buffer[4096:8192])
    assert part.addresses(addresses[1:2] + 7).tolist() == [expected[1] + 7]
    del part
    del buffer
    assert not module.attached


def test_the_whole_memory_is_exported_and_attached_under_the_lock(
    memory: PeerMemory, module: Module, libcuda: Driver
) -> None:
    buffer = memory.allocate(ARENA)
    assert libcuda.exported == [(buffer.address, ARENA, 1)]  # 1: as a dma-buf
    assert module.locks == [True]
    ((number, _),) = module.attached.items()
    assert number >= 500
    assert [request for request, _ in module.calls] == [GET_MAP, ATTACH, GET_MAP]
    other = memory.allocate(ARENA)
    assert module.locks == [True, True]  # the first one has let go
    assert len(module.attached) == 2
    del buffer, other


def test_an_attachment_lasts_as_long_as_the_last_slice(memory: PeerMemory, module: Module) -> None:
    part = memory.allocate(ARENA)[4096:][:10]
    gc.collect()
    (number,) = module.attached
    os.fstat(number)
    del part
    assert not module.attached
    assert module.calls[-1] == (DETACH, number)


@pytest.mark.parametrize("ordering", [0, 100, 200])
def test_writes_are_flushed_only_if_the_gpu_does_not_order_them(
    module: Module, libcuda: Driver, machine: GpuMachine, ordering: int
) -> None:
    libcuda.attributes[ORDERING] = ordering
    memory = peer(machine)
    with ThreadPoolExecutor(1) as lane:  # which has not used the GPU before
        lane.submit(memory.flush).result()
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
    memory: PeerMemory, module: Module, segments: Segments, message: str
) -> None:
    module.segments = segments
    with pytest.raises(BackendUnavailable, match=message) as caught:
        memory.allocate(ARENA)
    assert "they are of other memory" in caught.value.reason
    assert "restart the machine" in caught.value.remedy
    assert not module.attached


@pytest.mark.parametrize("verifies", [False, True])
def test_numbers_with_attachments_of_other_processes_are_not_used(
    memory: PeerMemory, module: Module, monkeypatch: pytest.MonkeyPatch, verifies: bool
) -> None:
    module.verifies = verifies
    monkeypatch.setattr(secrets, "randbelow", lambda _: 0)
    first = memory.allocate(ARENA)
    (number,) = module.attached
    del first
    others = {number + k: [(BAR1 + ARENA, ARENA)] for k in (0, 1, 2, 4)}
    module.attached |= others  # equally long, and in the same BAR1
    module.buffers |= dict.fromkeys(others, 0)
    buffer = memory.allocate(ARENA)
    assert set(module.attached) - set(others) == {number + 3}
    assert memory.find(buffer).addresses(np.array([buffer.address])).tolist() == [BAR1]
    del buffer
    assert module.attached == others


def test_if_all_numbers_have_attachments_the_remedy_is_named(
    memory: PeerMemory, module: Module
) -> None:
    others = {number: [(BAR1, ARENA)] for number in range(100, 40_000)}
    module.attached |= others
    with pytest.raises(BackendUnavailable, match=r"attachments .* 64 numbers.*restart the machine"):
        memory.allocate(ARENA)
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
    memory: PeerMemory, module: Module, request_: int, number: int, message: str
) -> None:
    module.fails[request_] = number
    with pytest.raises(OSError, match=message) as caught:
        memory.allocate(ARENA)
    assert caught.value.errno == number
    assert str(caught.value.filename).endswith("/dev/dmabuf_import")
    assert not module.attached


@pytest.mark.parametrize("request_", [ATTACH, GET_MAP])
def test_a_ctrl_c_leaves_nothing_attached(
    memory: PeerMemory, module: Module, request_: int
) -> None:
    module.fails[request_] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        memory.allocate(ARENA)
    assert not module.attached


def test_a_ctrl_c_while_memory_is_detached_detaches_nothing_of_others(
    memory: PeerMemory, module: Module
) -> None:
    others = [(BAR1 + ARENA, ARENA)]
    for instruction in itertools.count():
        buffer = memory.allocate(ARENA)
        (number,), (fds,) = module.attached, memory._attached.values()
        opened = {fd: os.fstat(fd).st_ino for fd in fds}

        def detach(fds: list[int] = fds) -> None:
            dmabuf._close(os.getpid(), fds)

        is_interrupted = ends_at(instruction, dmabuf, detach)
        is_detached = number not in module.attached
        if is_detached:  # another process takes the number
            module.attached[number] = others
        dmabuf._detach_all(os.getpid(), memory._attached)
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


def test_buffers_that_two_lanes_make_at_once_are_both_detached(
    memory: PeerMemory, module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def open_slowly(*arguments: Any) -> int:
        monkeypatch.setattr(os, "open", opened)
        memory.allocate(ARENA)  # by the other lane, which lets go of it
        return opened(*arguments)

    monkeypatch.setattr(os, "open", open_slowly)
    buffer = memory.allocate(ARENA)
    assert len(module.attached) == 1
    dmabuf._detach_all(os.getpid(), memory._attached)  # at exit
    assert not module.attached
    del buffer


def test_a_device_that_is_not_the_module_is_an_error(
    memory: PeerMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ioctl(*_: Any) -> int:
        raise OSError(errno.ENOTTY, "")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with pytest.raises(OSError, match="dmabuf_import has no addresses") as caught:
        memory.allocate(ARENA)
    assert caught.value.errno == errno.ENOTTY


def test_memory_that_cannot_be_exported_is_an_error(
    memory: PeerMemory, module: Module, libcuda: Driver
) -> None:
    libcuda.code = 801
    message = r"GPU 0: cuMemGetHandleForAddressRange: CUDA_ERROR_OF_A_TEST \(801\)"
    with pytest.raises(BackendUnavailable, match=message):
        memory.allocate(ARENA)
    assert module.calls == []


def test_a_module_that_is_unloaded_meanwhile_is_an_error(
    memory: PeerMemory, machine: GpuMachine
) -> None:
    machine.change({gpu_machine.MODULE: None})
    with pytest.raises(FileNotFoundError):
        memory.allocate(ARENA)


# What is missing


def test_a_machine_without_cupy_or_gpus_is_refused(
    monkeypatch: pytest.MonkeyPatch, machine: GpuMachine, gpus: Cuda
) -> None:
    gpus.count = 1
    with pytest.raises(BackendUnavailable, match="there is no GPU 1"):
        peer(machine, 1)
    monkeypatch.setattr(driver, "_LIBRARY", "libno-such-library.so")
    driver._library.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"driver cannot be loaded.*--gpus all"):
        peer(machine)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=r"CuPy.*pip install"):
        peer(machine)


LOCKED = {gpu_machine.MODULE: None, gpu_machine.LOCKDOWN: "none [integrity] confidentiality"}


@pytest.mark.parametrize(
    ("attributes", "files", "message"),
    [
        ({DMA_BUF: 0}, {}, r"GPU 0 \(0000:c0:00.0\) cannot export its memory as a dma-buf; .*open"),
        ({DMA_BUF: None}, {}, "cannot export its memory.* take mem='pinned'"),  # an old driver
        ({ORDERING: 0, FLUSH_OPTIONS: 2}, {}, "cannot wait for what other dev.* mem='pinned'"),
        ({}, {gpu_machine.RESOURCE: None}, r"no memory window \(BAR1\) of GPU 0.*/sys"),
        (
            {},
            LOCKED,
            f"{NVME} cannot write to GPU memory: it needs /dev/dmabuf_import, no kernel lockdown "
            r"\(integrity\); .*modprobe dmabuf_import.*switch Secure Boot off",
        ),
        ({}, {gpu_machine.DRIVER: "vfio-pci"}, "the driver uio_pci_generic.*set-override"),
    ],
)
def test_a_machine_that_lacks_something_is_refused(
    libcuda: Driver,
    machine: GpuMachine,
    attributes: dict[int, int | None],
    files: dict[str, str | None],
    message: str,
) -> None:
    given = libcuda.attributes | attributes
    libcuda.attributes = {name: value for name, value in given.items() if value is not None}
    machine.change(files)
    with pytest.raises(BackendUnavailable, match=message):
        peer(machine)


def test_a_bar1_smaller_than_the_memory_is_named_before_anything_is_allocated(
    memory: PeerMemory, gpus: Cuda, module: Module
) -> None:
    with pytest.raises(MemoryError, match=f"BAR1 of GPU 0 .* has {BAR1_SIZE} bytes, too few for"):
        memory.allocate(BAR1_SIZE + 1)
    assert not gpus.allocated
    assert not module.calls


# In processes of their own

START = """
import errno, os, resource, sys, weakref
import pytest
from dali_storage.backends.gpu.dmabuf import PeerMemory
from tests.kit import fake_cuda
from tests.kit.dmabuf_import import ARENA, Driver, Module
from tests.kit.process import descriptors

class Watched(Module):
    def ioctl(self, fd, request, argument):
        print(os.getpid() == parent, hex(request), flush=True)
        return super().ioctl(fd, request, argument)

parent, patch = os.getpid(), pytest.MonkeyPatch()
Driver(fake_cuda.install(patch), patch)
module = {module}(patch)
memory = PeerMemory(0, *sys.argv[1:])
"""
CHILD = """
reader = type("Reader", (), {})()
weakref.finalize(reader, print, "closed", flush=True)
kept = memory.allocate(ARENA)
given_up = memory.allocate(ARENA)
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1], flush=True)
del given_up
"""
NUMBERS = """
hard, numbers = resource.getrlimit(resource.RLIMIT_NOFILE)[1], set()
resource.setrlimit(resource.RLIMIT_NOFILE, (min(1 << 16, hard), hard))
for _ in range(5):
    buffer = memory.allocate(ARENA)
    numbers.update(module.attached)
    del buffer
print(len(numbers) > 1, min(numbers) >= 1000)
for free in (0, 2, 40):  # the first descriptor cannot be opened, the third, or all can
    used = {number for number, _ in descriptors()}
    limit = [number for number in range(1000) if number not in used][free]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        buffer = memory.allocate(ARENA)
        print(max(module.attached) < limit)
        del buffer
    except OSError as error:
        print(error.errno in (errno.EMFILE, errno.EINVAL), "ulimit -n" in str(error))
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1 << 16, hard), hard))
    assert not module.attached
"""


def run(machine: GpuMachine, module: str, code: str) -> list[str]:
    """The lines that a process prints that has the stand-ins."""
    command = [sys.executable, "-c", START.format(module=module) + code, NVME, str(machine.base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_attachments_end_after_the_readers_of_their_process_and_not_with_its_children(
    machine: GpuMachine,
) -> None:
    made = [f"True {request:#x}" for request in (GET_MAP, ATTACH, GET_MAP)]
    detached = f"True {DETACH:#x}"
    ends = ["closed", "0"]  # of the child
    expected = [*made, *made, *ends, detached, "closed", detached]
    assert run(machine, "Watched", CHILD) == expected


def test_descriptor_numbers_are_high_and_random_and_a_limit_of_open_files_is_named(
    machine: GpuMachine,
) -> None:
    refused = "True True"
    assert run(machine, "Module", NUMBERS) == ["True True", refused, refused, "True"]
