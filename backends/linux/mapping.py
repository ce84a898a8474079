"""Maps of files in one range of addresses: mmap(2), madvise(2), process_madvise(2)."""

import ctypes
import mmap
import os
import resource
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from ...contract._types import HostBuffer, IntArray
from ...contract.errors import BackendUnavailable, os_error
from . import libc

ROOM = 2 << 20
"""Bytes of a huge page. Maps begin at multiples of this."""

_NORESERVE, _FIXED, _POPULATE_READ = 0x4000, 0x10, 22  # <asm-generic/mman.h>
_PIDFD_OPEN, _PROCESS_MADVISE = 434, 440  # on every machine, like all system calls since 2019


def missing() -> BackendUnavailable | None:
    """The reason why this process cannot map and populate files; None if possible."""
    # Reserved addresses count for this limit, though they use no memory.
    if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
        what = "the address space of this process is limited (RLIMIT_AS)"
        return BackendUnavailable(what, "lift the limit: ulimit -v unlimited")
    with suppress(OSError), mmap.mmap(-1, mmap.PAGESIZE) as page:
        page.madvise(_POPULATE_READ)
        return None
    return BackendUnavailable("the kernel cannot populate maps", "use Linux 5.14 or newer")


def reserve(nbytes: int) -> HostBuffer:
    """Reserve addresses for maps, from a multiple of `ROOM` on, without using memory.

    Everything is unmapped when the last slice dies. Addresses outside of maps must not be accessed.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    # The owner is a C object, which any thread may free. Prot 0: no access.
    memory = np.frombuffer(mmap.mmap(-1, nbytes + ROOM, flags=flags, prot=0), np.uint8)
    return memory[-memory.ctypes.data % ROOM :][:nbytes]


def map_file(address: int, fd: int, nbytes: int, path: bytes) -> None:
    """Map the beginning of a file to reserved addresses, read-only and private."""
    flags = mmap.MAP_PRIVATE | _FIXED
    if libc.mmap(address, nbytes, mmap.PROT_READ, flags, fd, 0) != address:
        hint = "; the file cannot be mapped: leave out the option io='mmap'"
        raise os_error(ctypes.get_errno(), path, hint)


def populate(addresses: IntArray, lengths: IntArray) -> bool:
    """Populate n parts of maps (int64[n], whole pages); blocks until they have been read.

    Returns False if a file ends too early, or cannot be read.
    """
    iovecs = libc.make_iovecs((addresses, lengths))
    # -1 in a sandbox that forbids it: then each part has a call of its own.
    process = libc.syscall(_PIDFD_OPEN, os.getpid(), 0)
    # WILLNEED first, to read all pages at once, and only these. Otherwise the kernel would read
    # `read_ahead_kb` around each missing page, and wait: a tenth of the speed.
    advised = [_advise(process, iovecs, each) for each in (mmap.MADV_WILLNEED, _POPULATE_READ)]
    libc.close(process)
    return advised[-1]


def _advise(process: int, iovecs: npt.NDArray[np.void], advice: int) -> bool:
    vector = ctypes.c_void_p(iovecs.ctypes.data), ctypes.c_size_t(len(iovecs))
    if libc.syscall(_PROCESS_MADVISE, process, *vector, advice, 0) == iovecs["len"].sum():
        return True
    # Before Linux 6.13, in a sandbox, beyond 1,024 parts or 2 GiB; or a part has failed.
    parts = zip(iovecs["base"][:, 0].tolist(), iovecs["len"][:, 0].tolist(), strict=True)
    return not any(libc.madvise(address, nbytes, advice) for address, nbytes in parts)
