"""Bus addresses of GPU memory: the module dmabuf_import, the driver API and sysfs as stand-ins."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import itertools
import os
import resource
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
from tests.kit.fake_cuda import Cuda
from tests.kit.interrupts import ends_at
from tests.kit.process import open_files

GPU, CONTROLLER = "0000:c0:00.0", "0000:04:00.0"
BAR1 = 0x38_0000_0000
BAR1_SIZE = 64 << 20  # bytes
ARENA = 4 << 20  # bytes
ATTACH, DETACH, GET_MAP = 0xC0087547, 0x40047548, 0xC0087549
FLUSH_OPTIONS, ORDERING, DMA_BUF = 117, 118, 124  # attributes of a GPU

Segments = list[tuple[int, int]]


class Module:
    """dmabuf_import 0.8.1, as far as its ioctls can be seen: one list for all processes.

    Attributes:
        segments: where the next dma-buf is: bus addresses and bytes.
        attached: descriptor number -> segments.
        calls: the requests, and the numbers that they were for.
        fails: request -> errno, or an exception.
        verifies: as after 0.8.1: it refuses a number that is attached for another dma-buf.
    """

    def __init__(self) -> None:
        self.segments: Segments = [(BAR1, ARENA)]
        self.attached: dict[int, Segments] = {}
        self.calls: list[tuple[int, int]] = []
        self.fails: dict[int, int | BaseException] = {}
        self.locks: list[bool] = []
        self.verifies = False
        self.buffers: dict[int, int] = {}  # descriptor number -> inode of the dma-buf

    def ioctl(self, fd: int, request: int, argument: Any) -> int:
        head = np.frombuffer(argument, np.int32)
        number = int(head[0])
        self.calls.append((request, number))
        fails = self.fails.get(request)
        if fails is not None and not (request == GET_MAP and number not in self.attached):
            raise OSError(fails, "") if isinstance(fails, int) else fails
        is_known = self.verifies and request != DETACH and number in self.attached
        if is_known and os.fstat(number).st_ino != self.buffers[number]:
            raise OSError(errno.ESTALE, "")
        if request == ATTACH:
            self.buffers[number] = os.fstat(number).st_ino  # it is open
            self.locks.append(is_locked(fd))
            segments = self.attached.setdefault(number, self.segments)
            np.frombuffer(argument, np.uint32)[1] = len(segments)
        elif request == GET_MAP:
            if number not in self.attached:
                raise OSError(errno.EINVAL, "")
            room = int(head[1]) + 1  # old versions write one too many
            written = np.array(self.attached[number][:room], np.uint64).reshape(-1)
            np.frombuffer(argument, np.uint64)[1 : 1 + written.size] = written
        elif request == DETACH:
            if self.attached.pop(number, None) is None:
                raise OSError(errno.EINVAL, "")
        else:
            raise OSError(errno.ENOTTY, "")
        return 0


def is_locked(fd: int) -> bool:
    """Whether somebody who opens the same file cannot lock it."""
    with open(f"/proc/self/fd/{fd}", "rb") as other:
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class Driver:
    """libcuda."""

    def __init__(self, machine: Cuda) -> None:
        self.machine = machine
        self.attributes = {DMA_BUF: 1, ORDERING: 100, FLUSH_OPTIONS: 1}
        self.code = 0
        self.flushed: list[tuple[int, int]] = []
        self.exported: list[tuple[int, int, int]] = []

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:  # noqa: N802
        device._obj.value = 40 + ordinal
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:  # noqa: N802
        if number not in self.attributes:
            return 1
        assert device.value == 40
        value._obj.value = self.attributes[number]
        return 0

    def cuMemGetHandleForAddressRange(  # noqa: N802
        self, fd: Any, start: Any, length: Any, kind: int, flags: Any
    ) -> int:
        if self.code or self.machine.context is None:
            return self.code or 201
        self.exported.append((start.value, length.value, kind))
        fd._obj.value = os.memfd_create("dma-buf")
        return 0

    def cuFlushGPUDirectRDMAWrites(self, target: int, scope: int) -> int:  # noqa: N802
        if self.machine.context is None:
            return 201  # CUDA_ERROR_INVALID_CONTEXT
        self.flushed.append((target, scope))
        return self.code

    def cuGetErrorName(self, code: int, text: Any) -> int:  # noqa: N802
        text._obj.value = b"CUDA_ERROR_OF_A_TEST"
        return 0


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    made = Module()
    monkeypatch.setattr(fcntl, "ioctl", made.ioctl)
    return made


@pytest.fixture
def libcuda(monkeypatch: pytest.MonkeyPatch, gpus: Cuda) -> Driver:
    made = Driver(gpus)
    monkeypatch.setattr(driver, "_library", lambda: made)
    return made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with everything."""
    functions = tmp_path / "sys/bus/pci/devices"
    (functions / GPU).mkdir(parents=True)
    bars = [(0x9000_0000, 16 << 20, 0x40200), (BAR1, BAR1_SIZE, 0x14220C), (0, 0, 0)]
    lines = [f"{at:#018x} {at + max(size, 1) - 1:#018x} {flags:#018x}" for at, size, flags in bars]
    (functions / GPU / "resource").write_text("\n".join(lines) + "\n")
    (functions / CONTROLLER).mkdir()
    bind(tmp_path, "uio_pci_generic")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/dmabuf_import").touch()
    return tmp_path


def bind(root: Path, name: str) -> None:
    link = root / "sys/bus/pci/devices" / CONTROLLER / "driver"
    link.unlink(missing_ok=True)
    link.symlink_to(f"../../../../bus/pci/drivers/{name}")


@pytest.fixture
def memory(module: Module, libcuda: Driver, root: Path) -> PeerMemory:
    return PeerMemory(0, CONTROLLER, str(root))


@pytest.fixture(autouse=True)
def nothing_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() <= before


# What is right


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
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
    assert memory.find(buffer[4096:8192]).addresses(addresses[1:2] + 7).tolist() == [
        expected[1] + 7
    ]
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


def test_descriptor_numbers_are_high_and_random(memory: PeerMemory, module: Module) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1 << 16, limits[1]), limits[1]))
    try:
        numbers = set()
        for _ in range(5):
            buffer = memory.allocate(ARENA)
            numbers.update(module.attached)
            del buffer
        assert len(numbers) > 1
        assert min(numbers) >= 1000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("ordering", [0, 100, 200])
def test_writes_are_flushed_only_if_the_gpu_does_not_order_them(
    module: Module, libcuda: Driver, root: Path, ordering: int
) -> None:
    libcuda.attributes[ORDERING] = ordering
    memory = PeerMemory(0, CONTROLLER, str(root))
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
        opened = [*fds]

        def detach(fds: list[int] = fds) -> None:
            dmabuf._close(os.getpid(), fds)

        is_interrupted = ends_at(instruction, dmabuf, detach)
        is_detached = number not in module.attached
        if is_detached:  # another process takes the number
            module.attached[number] = others
        dmabuf._detach_all(os.getpid(), memory._attached)
        assert module.attached.pop(number, None) == (others if is_detached else None)
        assert not fds
        for fd in opened:  # a descriptor may stay open, but is not closed twice
            with contextlib.suppress(OSError):
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


def test_a_module_that_is_unloaded_meanwhile_is_an_error(memory: PeerMemory, root: Path) -> None:
    (root / "dev/dmabuf_import").unlink()
    with pytest.raises(FileNotFoundError):
        memory.allocate(ARENA)


@pytest.mark.parametrize("free", [0, 2, 40])
def test_a_limit_of_open_files_is_respected_and_named(
    memory: PeerMemory, module: Module, free: int
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {number for number, _ in open_files()}
    limit = [number for number in range(1000) if number not in used][free]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
    try:
        if free < 40:  # the first descriptor or the third cannot be opened
            with pytest.raises(OSError, match="ulimit -n") as caught:
                memory.allocate(ARENA)
            assert caught.value.errno in (errno.EMFILE, errno.EINVAL)
        else:
            buffer = memory.allocate(ARENA)
            assert max(module.attached) < limit
            del buffer
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not module.attached


# What is missing


def test_a_machine_without_cupy_or_gpus_is_refused(
    monkeypatch: pytest.MonkeyPatch, root: Path, gpus: Cuda
) -> None:
    gpus.count = 1
    with pytest.raises(BackendUnavailable, match="there is no GPU 1"):
        PeerMemory(1, CONTROLLER, str(root))
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=r"CuPy.*pip install"):
        PeerMemory(0, CONTROLLER, str(root))


def test_a_missing_driver_library_is_named(
    monkeypatch: pytest.MonkeyPatch, root: Path, gpus: Cuda
) -> None:
    monkeypatch.setattr(driver, "_LIBRARY", "libno-such-library.so")
    driver._library.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"driver cannot be loaded.*--gpus all"):
        PeerMemory(0, CONTROLLER, str(root))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {DMA_BUF: 0},
            r"GPU 0 \(0000:c0:00.0\) cannot export its memory as a dma-buf; .*open",
        ),
        ({DMA_BUF: None}, "cannot export its memory"),  # an old driver
        ({ORDERING: 0, FLUSH_OPTIONS: 2}, "cannot wait for what other dev"),
    ],
)
def test_a_gpu_that_cannot_do_it_is_refused(
    libcuda: Driver, root: Path, attributes: dict[int, int | None], message: str
) -> None:
    for number, value in attributes.items():
        if value is None:
            del libcuda.attributes[number]
        else:
            libcuda.attributes[number] = value
    with pytest.raises(BackendUnavailable, match=message) as caught:
        PeerMemory(0, CONTROLLER, str(root))
    assert "take mem='pinned'" in caught.value.remedy


def test_a_gpu_without_bar1_in_sysfs_is_refused(libcuda: Driver, root: Path) -> None:
    (root / "sys/bus/pci/devices" / GPU / "resource").unlink()
    with pytest.raises(BackendUnavailable, match=r"no memory window \(BAR1\) of GPU 0"):
        PeerMemory(0, CONTROLLER, str(root))


def test_a_bar1_smaller_than_the_memory_is_named_before_anything_is_allocated(
    memory: PeerMemory, gpus: Cuda, module: Module
) -> None:
    with pytest.raises(MemoryError, match=f"BAR1 of GPU 0 .* has {BAR1_SIZE} bytes, too few for"):
        memory.allocate(BAR1_SIZE + 1)
    assert not gpus.allocated
    assert not module.calls


def test_a_missing_module_and_a_kernel_that_is_locked_down_are_named(
    libcuda: Driver, root: Path
) -> None:
    (root / "dev/dmabuf_import").unlink()
    (root / "sys/kernel/security").mkdir(parents=True)
    (root / "sys/kernel/security/lockdown").write_text("none [integrity] confidentiality")
    with pytest.raises(BackendUnavailable, match="modprobe dmabuf_import") as caught:
        PeerMemory(0, CONTROLLER, str(root))
    assert "needs /dev/dmabuf_import, no kernel lockdown (integrity)" in caught.value.reason
    assert "switch Secure Boot off" in caught.value.remedy


@pytest.mark.parametrize("domain", ["DMA", "DMA-FQ", "identity"])
def test_an_iommu_that_translates_is_refused(libcuda: Driver, root: Path, domain: str) -> None:
    group = root / "sys/bus/pci/devices" / CONTROLLER / "iommu_group"
    group.mkdir()
    (group / "type").write_text(f"{domain}\n")
    if domain == "identity":
        PeerMemory(0, CONTROLLER, str(root))
        return
    with pytest.raises(BackendUnavailable, match=f"{CONTROLLER} .* by the IOMMU; .*iommu=pt"):
        PeerMemory(0, CONTROLLER, str(root))


@pytest.mark.parametrize("name", ["vfio-pci", "nvme"])
def test_a_controller_with_another_driver_is_refused(
    libcuda: Driver, root: Path, name: str
) -> None:
    bind(root, name)
    with pytest.raises(BackendUnavailable, match=r"the driver uio_pci_generic.*set-override"):
        PeerMemory(0, CONTROLLER, str(root))


# Processes

PROCESSES = """
import os, sys, weakref
import pytest
from tests import fake_cuda, test_gpu_dmabuf as its
patch = pytest.MonkeyPatch()
machine = fake_cuda.install(patch)
patch.setattr(its.driver, "_library", lambda: its.Driver(machine))
module = its.Module()
def ioctl(fd, request, argument):
    print(os.getpid() == parent, hex(request), flush=True)
    return module.ioctl(fd, request, argument)
patch.setattr(its.fcntl, "ioctl", ioctl)
parent = os.getpid()
memory = its.PeerMemory(0, its.CONTROLLER, sys.argv[1])
reader = type("Reader", (), {})()
weakref.finalize(reader, print, "closed", flush=True)
kept = memory.allocate(its.ARENA)
given_up = memory.allocate(its.ARENA)
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1], flush=True)
del given_up
"""


def test_attachments_end_after_the_readers_of_their_process_and_not_with_its_children(
    root: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES, str(root)], capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    made = [f"True {request:#x}" for request in (GET_MAP, ATTACH, GET_MAP)]
    detached = f"True {DETACH:#x}"
    ends = ["closed", "0"]  # of the child
    assert done.stdout.splitlines() == [*made, *made, *ends, detached, "closed", detached]
