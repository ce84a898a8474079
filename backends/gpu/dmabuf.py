"""GPU memory for DMA by an NVMe controller: its bus addresses, obtained through a dma-buf.

CUDA exports the memory as a dma-buf. The kernel module dmabuf_import attaches the dma-buf and
returns its bus addresses. The module has a single list of attachments for all processes, identified
by the *number* of the dma-buf's descriptor. An attachment lasts until detached, even if the process
has died. For a listed number, the module returns the addresses of that attachment to any process;
only versions after 0.8.1 refuse (ESTALE). Reads to the addresses of another process's memory would
overwrite that memory. Therefore:

* numbers are high and random (low ones are alike in all containers), and a number with an
  attachment is never used;
* the address ranges must have the length of the memory, and all lie inside the BAR1 of its GPU;
* the attachment is detached when the memory dies, or else at the end of the process, after the
  readers are closed; until then, both descriptors stay open. (Some versions tie an attachment to
  the descriptor of the module.)

Source: github.com/safl/upcie, experimental/dmabuf_import/module/dmabuf_import.h.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import operator
import os
import resource
import secrets
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ...contract._types import Buffer
from ...contract.errors import LIMITS, BackendUnavailable, named
from ...runtime import cuda
from ..linux.pci import FUNCTIONS, bar1, problem_of
from ..xnvme.bus import PAGE_SHIFT, BusAddresses, BusMap, BusMemory, paged
from . import driver
from .requirements import LARGER_BAR1, MODULE, controller_needs

_ATTACH, _DETACH, _GET_MAP = 0xC0087547, 0x40047548, 0xC0087549
_REQUEST = np.dtype([("fd", "<i4"), ("count", "<u4")])  # of ATTACH and the head of a map
_SEGMENT = np.dtype([("address", "<u8"), ("nbytes", "<u8")])
_PAGE = 1 << PAGE_SHIFT  # bytes
_FIRST_NUMBER, _LAST_NUMBER, _TRIES = 1000, 31_000, 64

# Unloading the module does not help: up to 0.8.1 it forgets its attachments without ending them.
_RESTART = "restart the machine, or use mem='pinned'"
_SMALLER = "use smaller batches or a smaller prefetch_queue_depth"


class PeerMemory:
    """Memory of a GPU that an NVMe controller can write to."""

    def __init__(self, gpu: int, controller: str, root: str = "/") -> None:
        """Check the requirements; `controller` is a PCI address. `root` contains `sys` and `dev`.

        Raises:
            BackendUnavailable: something is missing on this machine; names the remedy.
        """
        cupy = cuda.require(gpu)
        address = str(cupy.cuda.Device(gpu).pci_bus_id).lower()
        self._gpu, self._name = gpu, f"GPU {gpu} ({address})"
        self._known = BusMap()
        # The descriptors of each attachment, by the identity of their list.
        self._attached: dict[int, list[int]] = {}
        self._module = Path(root) / MODULE
        self._bar1 = bar1(Path(root) / FUNCTIONS / address)
        self._flushes = driver.attribute(gpu, driver.RDMA_ORDERING) < driver.OWNER
        self._require_export()
        if problem := problem_of(controller_needs(controller, root)):
            what = f"{controller} cannot write to GPU memory: it {problem.reason}"
            raise BackendUnavailable(what, problem.remedy)
        # At exit, finalizers run in the reverse order of their creation. A buffer's finalizer would
        # run while a lane still reads into the buffer. This one, created earlier, runs after the
        # readers are closed.
        weakref.finalize(self, _detach_all, os.getpid(), self._attached)

    def allocate(self, nbytes: int) -> cuda.DeviceBuffer:
        """Allocate at least `nbytes` of GPU memory, and register them for `find()`.

        Raises:
            MemoryError: the GPU has not enough memory, or its BAR1 is too small.
            BackendUnavailable: the memory has no usable bus addresses.
            OSError: the module fails.
        """
        size = self._bar1.stop - self._bar1.start
        if nbytes > size:
            what = f"the BAR1 of {self._name} has {size} bytes, too few for {nbytes}"
            raise MemoryError(f"{what}: {_SMALLER}; or {LARGER_BAR1}")
        buffer = cuda.allocate(nbytes, self._gpu)
        segments, detach = self._attach(buffer)
        try:
            pages = self._pages(buffer.nbytes, segments)
            self._known.add(buffer, paged(buffer.address, buffer.nbytes, pages))
        except BaseException:
            detach()
            raise
        return buffer

    def find(self, memory: Buffer) -> BusMemory:
        """The bus addresses of memory from `allocate()`, or of a slice; else ValueError."""
        return self._known.find(memory)

    def flush(self) -> None:
        """Make the controller's writes visible to GPU work that begins later.

        Completions are written to host memory, and may overtake the data.
        """
        if self._flushes:
            driver.flush_writes(self._gpu)

    def _require_export(self) -> None:
        if not driver.attribute(self._gpu, driver.DMA_BUF):
            what = f"{self._name} cannot export its memory as a dma-buf"
            remedy = "use NVIDIA's open kernel modules, and a data centre or workstation GPU"
            raise BackendUnavailable(what, f"{remedy}; or use mem='pinned'")
        options = driver.attribute(self._gpu, driver.RDMA_FLUSH_OPTIONS)
        if self._flushes and not options & driver.HOST_FLUSH:
            what = f"{self._name} cannot flush the writes of other devices to its memory"
            raise BackendUnavailable(what, "use mem='pinned'")
        if not self._bar1:
            what = f"sysfs shows no memory window (BAR1) of {self._name}"
            raise BackendUnavailable(what, "in a container, mount /sys")

    def _attach(
        self, buffer: cuda.DeviceBuffer
    ) -> tuple[npt.NDArray[np.void], Callable[[], object]]:
        """Attach a buffer's dma-buf; return its segments, and a function to detach early."""
        fds: list[int] = []
        self._attached[id(fds)] = fds
        detach = weakref.finalize(buffer, self._detach, os.getpid(), fds)  # keeps `self` alive
        detach.atexit = False
        try:
            with named(os.fsencode(self._module)):
                fds.append(os.open(self._module, os.O_RDWR | os.O_CLOEXEC))
            fd = driver.export(buffer)
            try:
                # Nobody may attach between the search for an unused number and our own ATTACH.
                fcntl.flock(fds[0], fcntl.LOCK_EX)
                fds.append(_with_unused_number(fds[0], fd))
            finally:
                os.close(fd)
            request = np.array([(fds[1], 0)], _REQUEST)
            hint = f": dmabuf_import cannot attach {buffer.nbytes} bytes of {self._name}"
            with named(os.fsencode(self._module), f"{hint}; its BAR1 may be full: {_SMALLER}"):
                fcntl.ioctl(fds[0], _ATTACH, request.data)
            fcntl.flock(fds[0], fcntl.LOCK_UN)
            return _segments(fds[0], fds[1], int(request["count"][0])), detach
        except BaseException:
            detach()
            raise

    def _detach(self, process: int, fds: list[int]) -> None:
        _close(process, fds)
        self._attached.pop(id(fds), None)

    def _pages(self, nbytes: int, segments: npt.NDArray[np.void]) -> BusAddresses:
        """Check that segments can belong to the memory; return the bus addresses of 4-KiB pages."""
        starts, lengths = segments["address"], segments["nbytes"]
        total = int(lengths.sum())
        if total != nbytes:
            what = f"/{MODULE} has {total} bytes for {nbytes} bytes of {self._name}"
            raise BackendUnavailable(f"{what}, so it maps other memory", _RESTART)
        first, last = np.uint64(self._bar1.start), np.uint64(self._bar1.stop)
        outside = (starts < first) | (starts >= last) | (lengths > last - starts)
        if outside.any() or ((starts | lengths) % np.uint64(_PAGE)).any():
            known = f"{self._bar1.start:#x} to {self._bar1.stop - 1:#x}"
            what = f"/{MODULE} has addresses outside the BAR1 of {self._name}, {known}"
            raise BackendUnavailable(f"{what}, so it maps other memory", _RESTART)
        counts = (lengths // np.uint64(_PAGE)).astype(np.int64)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.repeat(starts, counts) + (within * _PAGE).astype(np.uint64)


def _with_unused_number(module: int, fd: int) -> int:
    """Duplicate a descriptor to a number without an attachment by any process."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    end = _LAST_NUMBER if limit == resource.RLIM_INFINITY else min(limit, _LAST_NUMBER)
    start = min(_FIRST_NUMBER, end // 2)
    number = start + secrets.randbelow(max(end - start - _TRIES, 1))
    for _ in range(_TRIES):
        with named(os.fsencode(f"/{MODULE}"), f"; {LIMITS[errno.EMFILE]}"):
            number = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, number)
        try:
            is_used = _is_attached(module, number)
        except BaseException:
            os.close(number)
            raise
        if not is_used:
            return number
        os.close(number)
        number += 1
    what = f"/{MODULE} has attachments of other processes under {_TRIES} numbers"
    raise BackendUnavailable(f"{what} up to {number - 1}", _RESTART)


def _is_attached(module: int, number: int) -> bool:
    """Test if a descriptor number has an attachment, of this or another process."""
    try:
        _segments(module, number, 0)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ESTALE):
            raise
        return error.errno == errno.ESTALE
    return True


def _segments(module: int, number: int, count: int) -> npt.NDArray[np.void]:
    """Query the first `count` segments of an attached dma-buf."""
    # One more than asked for, because old versions of the module write one too many.
    answer = np.zeros(_REQUEST.itemsize + (count + 1) * _SEGMENT.itemsize, np.uint8)
    answer[: _REQUEST.itemsize].view(_REQUEST)[0] = number, count
    with named(os.fsencode(f"/{MODULE}"), ": dmabuf_import has no addresses"):
        fcntl.ioctl(module, _GET_MAP, answer.data)
    return answer[_REQUEST.itemsize :].view(_SEGMENT)[:count]


def _detach_all(process: int, attached: dict[int, list[int]]) -> None:
    for fds in list(attached.values()):  # meanwhile a buffer may die
        _close(process, fds)


def _close(process: int, fds: list[int]) -> None:
    """Detach, if attached, and close the descriptors of the module and of the dma-buf."""
    if os.getpid() != process:  # the attachment belongs to the parent
        return
    if len(fds) == 2:
        number = np.array(fds[1:], np.int32)
        detach: Callable[[], object] = partial(fcntl.ioctl, fds[0], _DETACH, number.data)
        # One bytecode instruction: after a Ctrl-C in between, the next attempt would detach the
        # memory of another process that has meanwhile used the number.
        with contextlib.suppress(OSError):  # not attached
            deque(map(operator.call, (fds.pop, detach)), 0)
        os.close(int(number[0]))
    if fds:
        os.close(fds.pop())
