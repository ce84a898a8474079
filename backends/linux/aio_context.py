"""One context of kernel AIO (io_setup, io_submit, io_getevents): many reads by two system calls.

This is the only module that knows the kernel's ABI: `struct iocb` and `struct io_event` of
<linux/aio_abi.h>, which are the same on every 64-bit little-endian machine, and the numbers of the
system calls, which the C library does not wrap.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import weakref
from collections import deque
from itertools import chain

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from ...errors import BackendUnavailable
from . import libc
from .libc import IOVEC

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

_SETUP, _DESTROY, _GETEVENTS, _SUBMIT = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}.get(platform.machine(), (-1, -1, -1, -1))


class AioContext:
    """A context of kernel AIO, for one thread at a time. It is closed when it is collected.

    Attributes:
        depth: how many reads it can have under way at once.
        id: the kernel's name for it; 0 once it is closed.
    """

    def __init__(self, depth: int) -> None:
        """Create it.

        Raises:
            BackendUnavailable: the kernel or a sandbox refuses it.
        """
        self.depth = depth
        self.id = ctypes.c_ulong(0)
        self._process = os.getpid()
        self._events = np.zeros(depth, IO_EVENT)
        self._iocbs = np.zeros(0, IOCB)
        self._make_room(depth)
        weakref.finalize(self, _destroy, self.id, self._process).atexit = False
        if libc.syscall(_SETUP, ctypes.c_uint(depth), ctypes.byref(self.id)) != 0:
            raise _refusal(ctypes.get_errno())

    def read(
        self,
        fds: npt.ArrayLike,
        iovecs: npt.NDArray[np.void],
        offsets: npt.ArrayLike,
        rw_flags: int = 0,
    ) -> IntArray:
        """Read n ranges of files; return when no read is under way.

        An exception (Ctrl-C, outside a lane) closes the context, which waits for the reads first.

        Args:
            fds: int[n], the open files.
            iovecs: IOVEC[n, k], C-contiguous: the k pieces of memory that each read fills. With
                O_DIRECT their addresses and lengths are multiples of the device's logical block.
            offsets: int64[n], bytes into the file where each read starts.
            rw_flags: RWF_* of preadv2(2), for all reads.

        Returns:
            int64[n]: how many bytes were read, or -errno. A short read is a success.
        """
        n, pieces = iovecs.shape
        self._make_room(n)
        iocbs = self._iocbs[:n]
        iocbs["fd"] = fds
        step = pieces * IOVEC.itemsize
        iocbs["buf"] = iovecs.ctypes.data + np.arange(n, dtype=np.uint64) * step
        iocbs["nbytes"] = pieces
        iocbs["offset"] = offsets
        iocbs["rw_flags"] = rw_flags
        try:
            return self._run(n)
        except BaseException:
            try:
                self._drain()
            finally:  # a second Ctrl-C can arrive between two iterations of _drain(): run it again
                self._drain()
            raise

    def close(self) -> None:
        """Destroy the context, after the reads that are under way. Closing twice is fine."""
        _destroy(self.id, self._process)

    def _drain(self) -> None:
        """Close the context; Ctrl-C does not end the wait for the reads under way."""
        while self.id.value:
            try:  # noqa: SIM105  (contextlib.suppress() is Python code, which Ctrl-C interrupts)
                self.close()
            except KeyboardInterrupt:
                pass

    def _make_room(self, n: int) -> None:
        if n <= self._iocbs.size:
            return
        self._iocbs = np.zeros(n, IOCB)
        self._iocbs["data"] = np.arange(n)
        self._iocbs["opcode"] = PREADV
        first = self._iocbs.ctypes.data
        self._pointers = first + np.arange(n, dtype=np.uint64) * IOCB.itemsize

    def _run(self, n: int) -> IntArray:
        results = np.empty(n, np.int64)
        submitted = finished = 0
        while finished < n:
            room = min(n - submitted, self.depth - (submitted - finished))
            if room:
                accepted = self._submit(submitted, room)
                if accepted < 0 and not (accepted == -errno.EAGAIN and submitted > finished):
                    # Only the first of those submitted is refused; those after it may be fine.
                    results[submitted] = accepted
                    finished += 1
                    accepted = 1
                submitted += max(accepted, 0)
            under_way = submitted - finished
            if under_way:
                finished += self._reap(results, under_way if submitted == n else 1, under_way)
        return results

    def _submit(self, first: int, count: int) -> int:
        pointers = ctypes.c_void_p(self._pointers.ctypes.data + 8 * first)
        accepted: int = libc.syscall(_SUBMIT, self.id, ctypes.c_long(count), pointers)
        return accepted if accepted >= 0 else -ctypes.get_errno()

    def _reap(self, results: IntArray, at_least: int, at_most: int) -> int:
        events = ctypes.c_void_p(self._events.ctypes.data)
        bounds = ctypes.c_long(at_least), ctypes.c_long(at_most)
        while (count := libc.syscall(_GETEVENTS, self.id, *bounds, events, None)) < 0:
            if ctypes.get_errno() != errno.EINTR:  # a valid context fails in no other way
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        done = self._events[:count]
        results[done["data"].astype(np.int64)] = done["res"]
        return int(count)


def _destroy(context: ctypes.c_ulong, process: int) -> None:
    if not context.value or os.getpid() != process:
        return
    # One bytecode instruction. If a Ctrl-C could come between the two calls, the context would be
    # destroyed again, and another thread may have a new one of the same id by then.
    destroy = map(libc.syscall, (_DESTROY,), (context,))
    forget = map(ctypes.memset, (ctypes.addressof(context),), (0,), (ctypes.sizeof(context),))
    deque(chain(destroy, forget), maxlen=0)


class NoneLeftError(BackendUnavailable):
    """This machine has no context left."""


def _refusal(number: int) -> BackendUnavailable:
    if number == errno.EAGAIN:
        return NoneLeftError(
            "kernel AIO: the contexts of this machine are all in use",
            "raise the limit with `sysctl fs.aio-max-nr=1048576`",
        )
    return BackendUnavailable(
        f"kernel AIO: io_setup failed ({os.strerror(number)}); the kernel lacks CONFIG_AIO, this "
        f"machine ({platform.machine()}) is not supported, or a sandbox forbids it",
        "in a sandbox, allow io_setup, io_submit, io_getevents and io_destroy (seccomp profile)",
    )
