"""Kernel AIO (io_setup, io_submit, io_getevents): many reads at once, from any thread.

AIO reads from the page cache synchronously, inside io_submit, and is fast all the same: one call,
which releases the interpreter lock once, copies a whole batch. Container runtimes allow AIO, and
forbid io_uring by default.

Destroying a context takes the kernel some 30 ms, and all contexts of a machine share a limited
number of events (fs.aio-max-nr, by default 65,536). So contexts are kept for the whole process, and
`read()` borrows one.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time
import weakref
from collections import defaultdict
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray
from ...contract.errors import BackendUnavailable
from . import libc

# <linux/aio_abi.h>, the same on every 64-bit little-endian machine
IOCB = np.dtype(
    [
        ("data", "<u8"),  # returned with the event
        ("key", "<u4"),
        ("rw_flags", "<u4"),  # RWF_*, see preadv2(2)
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("buf", "<u8"),  # with PREADV: the address of the iovecs
        ("nbytes", "<u8"),  # with PREADV: the number of iovecs
        ("offset", "<i8"),  # bytes into the file
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("resfd", "<u4"),
    ]
)
IO_EVENT = np.dtype([("data", "<u8"), ("obj", "<u8"), ("res", "<i8"), ("res2", "<i8")])
PREADV = 7

# The C library does not wrap these system calls.
_SETUP, _DESTROY, _GETEVENTS, _SUBMIT = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}.get(platform.machine(), (-1, -1, -1, -1))

_MOST_IDLE = 64  # idle contexts kept per depth; each reading lane needs one
_RETRY_S = 0.005  # while other lanes use every context allowed on this machine

_idle: defaultdict[int, list[AioContext]] = defaultdict(list)  # by depth
_open: dict[int, int] = {}  # the depth of every open context of this process, by its id
os.register_at_fork(after_in_child=_idle.clear)
os.register_at_fork(after_in_child=_open.clear)


def read(
    depth: int,
    fds: npt.ArrayLike,
    iovecs: npt.NDArray[np.void],
    offsets: npt.ArrayLike,
    rw_flags: int = 0,
) -> IntArray:
    """Read as `AioContext.read()` with a context of the process, `depth` reads at once.

    Raises `BackendUnavailable` if the kernel grants this process no context.
    """
    context = _borrow(depth, wait=True)
    results = context.read(fds, iovecs, offsets, rw_flags)  # an exception closes the context
    _give_back(context)
    return results


def unavailable(depth: int = 1) -> BackendUnavailable | None:
    """The reason why `read()` fails with this depth, with a remedy; None if available."""
    try:
        # An open one shows that AIO works, and the limit may allow no other.
        if depth not in list(_open.values()):
            _give_back(_borrow(depth, wait=False))
    except BackendUnavailable as reason:
        return reason.with_traceback(None)
    return None


def _borrow(depth: int, *, wait: bool) -> AioContext:
    """Borrow an idle context, or create one. Unless given back, it is closed by the collector.

    With `wait`, and at the machine's limit, wait for a context of another thread.
    """
    while True:
        others = wait and bool(_open)  # before the attempt: one may be closed right afterwards
        with suppress(IndexError):
            return _idle[depth].pop()
        try:
            return AioContext(depth)
        except _NoneLeftError:
            if not (_close_an_idle_one() or others):
                raise
        time.sleep(_RETRY_S)


def _give_back(context: AioContext) -> None:
    if len(_idle[context.depth]) < _MOST_IDLE:
        _idle[context.depth].append(context)


def _close_an_idle_one() -> bool:
    for contexts in list(_idle.values()):
        with suppress(IndexError):
            contexts.pop().close()
            return True
    return False


class _NoneLeftError(BackendUnavailable):
    """This machine has no context left."""


class AioContext:
    """A context of kernel AIO, for one thread at a time; closed when collected.

    Attributes:
        depth: the most reads in flight at once.
        id: the kernel's handle; 0 once closed.
    """

    def __init__(self, depth: int) -> None:
        """Create a context; raises `BackendUnavailable` if the kernel or a sandbox refuses."""
        self.depth = depth
        self.id = ctypes.c_ulong(0)
        self._process = os.getpid()
        # Before the context is made, which a Ctrl-C could lose right afterwards.
        weakref.finalize(self, _destroy, self.id, self._process).atexit = False
        if libc.syscall(_SETUP, ctypes.c_uint(depth), ctypes.byref(self.id)) != 0:
            raise _refusal(ctypes.get_errno())
        _open[self.id.value] = depth

    def read(
        self,
        fds: npt.ArrayLike,
        iovecs: npt.NDArray[np.void],
        offsets: npt.ArrayLike,
        rw_flags: int = 0,
    ) -> IntArray:
        """Read n ranges of files; return with no read in flight. An exception closes the context.

        Args:
            fds: int[n], the open files, or one for all.
            iovecs: IOVEC[n, k], C-contiguous: the k pieces of memory for each read.
            offsets: int64[n], bytes into the file where each read starts.
            rw_flags: RWF_* of preadv2(2), for all reads.

        Returns:
            int64[n]: the number of bytes read, or -errno. A short read is a success.
        """
        n, pieces = iovecs.shape
        iocbs = np.zeros(n, IOCB)
        iocbs["data"] = np.arange(n)
        iocbs["opcode"] = PREADV
        iocbs["fd"] = fds
        iocbs["buf"] = libc.row_addresses(iovecs)
        iocbs["nbytes"] = pieces
        iocbs["offset"] = offsets
        iocbs["rw_flags"] = rw_flags
        try:
            return self._run(libc.row_addresses(iocbs), bool(rw_flags & os.RWF_NOWAIT))
        except BaseException:
            # The kernel still writes to the memory of reads in flight; to destroy waits for them.
            self.close()
            raise

    def close(self) -> None:
        """Destroy the context, after the reads in flight. Closing twice is fine."""
        _destroy(self.id, self._process)

    def _run(self, iocbs: npt.NDArray[np.uint64], at_once: bool) -> IntArray:
        """Submit iocbs, by their addresses, and return their results.

        `at_once`: reads are complete as soon as they have been submitted.
        """
        n = iocbs.size
        results = np.empty(n, np.int64)
        events = np.empty(min(n, self.depth), IO_EVENT)
        submitted = finished = 0
        while finished < n:
            room = min(n - submitted, self.depth - (submitted - finished))
            if room:
                accepted = self._submit(iocbs[submitted : submitted + room])
                # EAGAIN with reads under way is no error: there is room after the next events.
                if accepted < 0 and not (accepted == -errno.EAGAIN and submitted > finished):
                    # Only the first submitted read is refused; the following ones may be fine.
                    results[submitted] = accepted
                    finished += 1
                    accepted = 1
                submitted += max(accepted, 0)
            under_way = submitted - finished
            if under_way:
                # All of the last ones together, so that the thread wakes up once.
                at_least = 0 if at_once else under_way if submitted == n else 1
                done = self._reap(events[:under_way], at_least)
                # If none is complete, they do block. From now on wait, or this loop would spin.
                at_once = at_once and done.size > 0
                results[done["data"].astype(np.int64)] = done["res"]
                finished += done.size
        return results

    def _submit(self, iocbs: npt.NDArray[np.uint64]) -> int:
        count, pointers = ctypes.c_long(iocbs.size), ctypes.c_void_p(iocbs.ctypes.data)
        accepted: int = libc.syscall(_SUBMIT, self.id, count, pointers)
        return accepted if accepted >= 0 else -ctypes.get_errno()

    def _reap(self, events: npt.NDArray[np.void], at_least: int) -> npt.NDArray[np.void]:
        bounds = ctypes.c_long(at_least), ctypes.c_long(events.size)
        memory = ctypes.c_void_p(events.ctypes.data)
        if not at_least:
            # This cannot block, so it keeps the interpreter lock.
            count = libc.syscall_with_gil(_GETEVENTS, self.id, *bounds, memory, None)
            return events[: max(count, 0)]
        while (count := libc.syscall(_GETEVENTS, self.id, *bounds, memory, None)) < 0:
            if ctypes.get_errno() != errno.EINTR:  # a valid context fails in no other way
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return events[:count]


def _destroy(context: ctypes.c_ulong, process: int) -> None:
    if not context.value or os.getpid() != process:
        return
    _open.pop(context.value, None)
    # Cleared first: after a Ctrl-C in between, the context stays until the process ends. A second
    # destruction could hit a new context of another thread, with the same id.
    number, context.value = context.value, 0
    libc.syscall(_DESTROY, ctypes.c_ulong(number))


def _refusal(number: int) -> BackendUnavailable:
    if number == errno.EAGAIN:
        return _NoneLeftError(
            "kernel AIO: all contexts of this machine are in use",
            "raise the limit with `sysctl fs.aio-max-nr=1048576`",
        )
    return BackendUnavailable(
        f"kernel AIO: io_setup failed ({os.strerror(number)}); the kernel lacks CONFIG_AIO, this "
        f"machine ({platform.machine()}) is not supported, or a sandbox forbids it",
        "in a sandbox, allow io_setup, io_submit, io_getevents and io_destroy (seccomp profile)",
    )
