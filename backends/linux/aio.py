"""Kernel AIO (io_submit, io_getevents): a whole array of reads in two system calls.

The only place that knows the kernel's ABI: `struct iocb` and `struct io_event` of
<linux/aio_abi.h>, which are the same on every 64-bit little-endian machine, and the numbers of the
system calls, which the C library does not wrap.

Why AIO also for files in the page cache, which it reads synchronously, inside io_submit: the copies
of a whole batch are made in one call, with the interpreter lock released once. Why not io_uring:
container runtimes forbid it by default and allow AIO.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from ...errors import BackendUnavailable

IOCB = np.dtype(
    [
        ("data", "<u8"),  # handed back with the event
        ("key", "<u4"),
        ("rw_flags", "<u4"),  # RWF_*, see preadv2(2)
        ("opcode", "<u2"),
        ("priority", "<i2"),
        ("fd", "<u4"),
        ("buf", "<u8"),  # with PREADV: the address of the iovecs
        ("nbytes", "<u8"),  # with PREADV: how many iovecs
        ("offset", "<i8"),  # bytes into the file
        ("reserved", "<u8"),
        ("flags", "<u4"),
        ("resfd", "<u4"),
    ]
)
IO_EVENT = np.dtype([("data", "<u8"), ("obj", "<u8"), ("res", "<i8"), ("res2", "<i8")])
IOVEC = np.dtype([("base", "<u8"), ("len", "<u8")])
PREADV = 7

_SETUP, _DESTROY, _GETEVENTS, _SUBMIT = {
    "x86_64": (206, 207, 208, 209),
    "aarch64": (0, 1, 4, 2),
    "riscv64": (0, 1, 4, 2),
}.get(platform.machine(), (-1, -1, -1, -1))

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class AioContext:
    """A kernel AIO context. For one thread at a time; `with` or `close()` ends it."""

    def __init__(self, depth: int) -> None:
        """Make room for `depth` reads under way at once.

        Raises:
            BackendUnavailable: the kernel, or what confines this process, does not give one.
        """
        self.depth = depth
        self._context = ctypes.c_ulong(0)
        self._is_busy = False  # reads may be under way
        self._events = np.zeros(depth, IO_EVENT)
        self._iocbs = np.zeros(0, IOCB)
        self._make_room(depth)
        self._open()

    def read(
        self,
        fds: npt.ArrayLike,
        iovecs: npt.NDArray[np.void],
        offsets: npt.ArrayLike,
        rw_flags: int = 0,
    ) -> IntArray:
        """Read n ranges of files; return when none of them is under way any more.

        Args:
            fds: int[n], the open files.
            iovecs: IOVEC[n, k], C-contiguous: where the bytes of each read go, k pieces of memory
                each. With O_DIRECT their addresses and lengths are multiples of the device's
                logical block.
            offsets: int64[n], bytes into the file where each read starts.
            rw_flags: RWF_* of preadv2(2) for all of them.

        Returns:
            int64[n]: how many bytes were read, or -errno. Fewer bytes than there is room for are a
            success.
        """
        n, pieces = iovecs.shape
        self._make_room(n)
        iocbs = self._iocbs[:n]
        iocbs["fd"] = fds
        iocbs["buf"] = iovecs.ctypes.data + np.arange(n, dtype=np.uint64) * (
            pieces * IOVEC.itemsize
        )
        iocbs["nbytes"] = pieces
        iocbs["offset"] = offsets
        iocbs["rw_flags"] = rw_flags
        self._renew()
        try:
            self._is_busy = True
            results = self._run(n)
            self._is_busy = False
            return results
        except BaseException:  # Ctrl-C, where this is not a lane
            try:
                self._renew()
            finally:  # what ends it is a Ctrl-C between two of its rounds
                self._renew()
            raise

    def _renew(self) -> None:
        """Wait for the reads under way, which ends the context; Ctrl-C does not end the waiting.

        Nothing is done where none is under way.
        """
        while self._is_busy:
            try:
                self.close()
                self._open()
                self._is_busy = False
            except KeyboardInterrupt:
                pass

    def _open(self) -> None:
        if _syscall(_SETUP, ctypes.c_uint(self.depth), ctypes.byref(self._context)) != 0:
            raise _no_aio(ctypes.get_errno())

    def close(self) -> None:
        """Give the context back to the kernel. Closing twice is fine."""
        if self._context.value:
            _syscall(_DESTROY, self._context)
            self._context.value = 0

    def __enter__(self) -> AioContext:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

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
                    # The first of those offered is refused; the ones behind it are not to blame.
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
        accepted: int = _syscall(_SUBMIT, self._context, ctypes.c_long(count), pointers)
        return accepted if accepted >= 0 else -ctypes.get_errno()

    def _reap(self, results: IntArray, at_least: int, at_most: int) -> int:
        events = ctypes.c_void_p(self._events.ctypes.data)
        while True:
            count: int = _syscall(
                _GETEVENTS,
                self._context,
                ctypes.c_long(at_least),
                ctypes.c_long(at_most),
                events,
                None,
            )
            if count >= 0:
                break
            if ctypes.get_errno() != errno.EINTR:  # nothing else can happen with a valid context
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        done = self._events[:count]
        results[done["data"].astype(np.int64)] = done["res"]
        return count


def why_not() -> str | None:
    """Why there is no kernel AIO here; None if there is."""
    try:
        AioContext(1).close()
    except BackendUnavailable as reason:
        return str(reason)
    return None


def _no_aio(number: int) -> BackendUnavailable:
    if number == errno.EAGAIN:
        return BackendUnavailable(
            "kernel AIO: all contexts of this machine are taken; "
            "raise the limit with `sysctl fs.aio-max-nr=1048576`"
        )
    return BackendUnavailable(
        f"kernel AIO: io_setup failed ({os.strerror(number)}); the kernel has no CONFIG_AIO, this "
        f"binding does not know the machine ({platform.machine()}), or a sandbox forbids it: then "
        "allow io_setup, io_submit, io_getevents and io_destroy in its seccomp profile"
    )
