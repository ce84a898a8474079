"""GPU memory on the bus: machines that lack something, and whole processes."""

import errno
import resource
import subprocess
import sys

import pytest

from dali_storage.backends.gpu import driver
from dali_storage.backends.gpu.dmabuf import PeerMemory
from dali_storage.contract.errors import BackendUnavailable
from tests.kit import gpu_machine
from tests.kit.dmabuf_import import (
    ARENA,
    ATTACH,
    BAR1_SIZE,
    DETACH,
    DMA_BUF,
    FLUSH_OPTIONS,
    GET_MAP,
    ORDERING,
)
from tests.kit.gpu_machine import NVME
from tests.kit.process import alone, room_for


def peer(base, gpu=0):
    return PeerMemory(gpu, NVME, str(base))


def test_a_machine_without_cupy_or_gpus_is_refused(monkeypatch, machine, gpus):
    gpus.count = 1
    with pytest.raises(BackendUnavailable, match="there is no GPU 1"):
        peer(machine.base, 1)
    monkeypatch.setattr(driver, "_LIBRARY", "libno-such-library.so")
    driver._library.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"driver cannot be loaded.*--gpus all"):
        peer(machine.base)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=r"CuPy.*pip install"):
        peer(machine.base)


LACKS = {
    gpu_machine.MODULE: None,
    gpu_machine.LOCKDOWN: "none [integrity] confidentiality",
    gpu_machine.DRIVER: "vfio-pci",
}


@pytest.mark.parametrize(
    ("attributes", "files", "message"),
    [
        ({DMA_BUF: 0}, {}, r"GPU 0 \(0000:c0:00.0\) cannot export its memory as a dma-buf; .*open"),
        ({DMA_BUF: None}, {}, "cannot export its memory.* use mem='pinned'"),  # an old driver
        ({ORDERING: 0, FLUSH_OPTIONS: 2}, {}, "cannot flush the writes of other .* mem='pinned'"),
        ({}, {gpu_machine.RESOURCE: None}, r"no memory window \(BAR1\) of GPU 0.*/sys"),
        ({}, LACKS, f"{NVME} cannot write to GPU memory: it needs /dev/dmabuf_im.*lockdown"
                    ".*driver uio_pci_generic.*Secure Boot.*set-override"),
    ],
)  # fmt: skip
def test_a_machine_that_lacks_something_is_refused(libcuda, machine, attributes, files, message):
    given = libcuda.attributes | attributes
    libcuda.attributes = {name: value for name, value in given.items() if value is not None}
    machine.change(files)
    with pytest.raises(BackendUnavailable, match=message):
        peer(machine.base)


def test_a_bar1_smaller_than_the_memory_is_named_before_anything_is_allocated(
    peer_memory, gpus, module
):
    with pytest.raises(MemoryError, match=f"BAR1 of GPU 0 .* has {BAR1_SIZE} bytes, too few for"):
        peer_memory.allocate(BAR1_SIZE + 1)
    assert not gpus.allocated
    assert not module.calls


# In processes of their own

START = """
import os, sys, weakref
import pytest
from dali_storage.backends.gpu.dmabuf import PeerMemory
from tests.kit import fake_cuda
from tests.kit.dmabuf_import import ARENA, Driver, Module

class Watched(Module):
    def ioctl(self, fd, request, argument):
        print(os.getpid() == parent, hex(request), flush=True)
        return super().ioctl(fd, request, argument)

parent, patch = os.getpid(), pytest.MonkeyPatch()
Driver(fake_cuda.install(patch), patch)
module = Watched(patch)
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


def run(machine, code):
    """The lines that a process prints that has the stand-ins."""
    command = [sys.executable, "-c", START + code, NVME, str(machine.base)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_attachments_end_after_the_readers_of_their_process_and_not_with_its_children(machine):
    made = [f"True {request:#x}" for request in (GET_MAP, ATTACH, GET_MAP)]
    detached = f"True {DETACH:#x}"
    ends = ["closed", "0"]  # of the child
    expected = [*made, *made, *ends, detached, "closed", detached]
    assert run(machine, CHILD) == expected


@pytest.mark.long
@alone
def test_descriptor_numbers_are_high_and_random_and_a_limit_of_open_files_is_named(
    peer_memory, module
):
    hard, numbers = resource.getrlimit(resource.RLIMIT_NOFILE)[1], set()
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1 << 16, hard), hard))
    for _ in range(5):
        buffer = peer_memory.allocate(ARENA)
        numbers.update(module.attached)
        del buffer
    assert len(numbers) > 1
    assert min(numbers) >= 1000
    for files in (0, 2):  # the first descriptor cannot be opened, or the third
        with room_for(files), pytest.raises(OSError, match="ulimit -n") as caught:
            peer_memory.allocate(ARENA)
        assert caught.value.errno in (errno.EMFILE, errno.EINVAL)
        del caught
        assert not module.attached
    with room_for(40):
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        buffer = peer_memory.allocate(ARENA)
        assert max(module.attached) < limit
        del buffer
