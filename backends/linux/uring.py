"""io_uring: opens, reads and status queries of a whole batch by one system call.

The ABI is that of <linux/io_uring.h>, Linux 6.1 and newer. Each thread has a ring of its own, which
no other thread may enter: then the kernel posts completions only inside this thread's own calls, so
the shared memory needs no barriers. A ring ends with its thread.

Nothing stays behind: `run()` returns, or raises, with no entry in flight, and files are open only
while they are read. Closing a ring would not wait: the kernel finishes reads in flight later.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
import stat
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from ...contract._types import HostBuffer, IntArray
from ...contract.errors import LIMITS, BackendUnavailable
from ...contract.stages import yield_turn
from . import libc

MOST_BYTES = 0x7FFFF000
"""The most bytes that the kernel reads at once."""

SQE = np.dtype(  # struct io_uring_sqe
    {
        "names": ["opcode", "flags", "fd", "off", "addr", "len", "op_flags", "user_data", "slot"],
        "formats": ["u1", "u1", "<i4", "<u8", "<u8", "<u4", "<u4", "<u8", "<u4"],
        "offsets": [0, 1, 4, 8, 16, 24, 28, 32, 44],
        "itemsize": 64,
    }
)
CQE = np.dtype([("user_data", "<u8"), ("res", "<i4"), ("flags", "<u4")])
READV, OPENAT, STATX = 1, 18, 21
_FIXED_FILE, _LINK, _ASYNC = 1, 4, 16  # IOSQE_*
_STATX_TYPE_SIZE = 0x201

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # on every machine, like all system calls since 2019
# IORING_SETUP_*: of several bad entries none stops the others; one thread; completions in its calls
_SETUP_FLAGS = 1 << 7 | 1 << 12 | 1 << 13
_GETEVENTS, _EXT_ARG = 1, 8  # IORING_ENTER_*
_FILES_UPDATE, _PROBE, _FILES2, _WORKERS, _SYNC_CANCEL = 6, 8, 13, 19, 24  # IORING_REGISTER_*
_OFFSETS_OF_SQES = 0x10000000
_SHARED_POPULATED = 0x8001  # MAP_SHARED, MAP_POPULATE
_WAIT_BYTES = ctypes.c_size_t(24)  # of struct io_uring_getevents_arg

_FILES = 256  # slots for files, at most as many as this process may open
_ENTRIES = 2 * _FILES
_MOST_WORKERS = 64  # of the kernel, for calls that block; else 4 per processor
_CANCEL_ALL = 1 | 4  # IORING_ASYNC_CANCEL_ALL and _ANY
_STALL_S = 10
_RETRIED = errno.ETIME, errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ENOMEM


class Ring:
    """A ring of the thread that makes it.

    Attributes:
        files: the most files that `read_files()` takes at once.
    """

    def __init__(self) -> None:
        """Raises an OSError if the kernel refuses."""
        fds, maps = list[int](), list[tuple[int, int]]()
        # Before there is anything to close, which a Ctrl-C could lose right afterwards.
        self._finalizer = weakref.finalize(self, _close, fds, maps)
        self._finalizer.atexit = False
        parameters = np.zeros(30, np.uint32)  # struct io_uring_params
        parameters[2] = _SETUP_FLAGS
        fds += map(_call, (_SETUP,), (_ENTRIES,), (ctypes.c_void_p(parameters.ctypes.data),))
        (self._fd,) = fds
        _open.add(self._fd)
        sq, cq = parameters[10:20].tolist(), parameters[20:30].tolist()  # offsets in the ring
        count = self._count = int(parameters[1])
        ring = self._map(maps, max(cq[5] + count * CQE.itemsize, sq[6] + _ENTRIES * 4), 0)
        self._sqes = self._map(maps, _ENTRIES * SQE.itemsize, _OFFSETS_OF_SQES).view(SQE)
        words = ring[: ring.size // 4 * 4].view(np.uint32)
        self._sq_head, self._sq_tail = (words[at // 4 : at // 4 + 1] for at in sq[:2])
        self._cq_head, self._cq_tail = (words[at // 4 : at // 4 + 1] for at in cq[:2])
        words[sq[6] // 4 :][:_ENTRIES] = np.arange(_ENTRIES)
        self._cqes = ring[cq[5] :][: count * CQE.itemsize].view(CQE)
        # struct io_uring_getevents_arg, which points to a struct timespec
        self._times = np.array([[0, 0], [_STALL_S, 0]], np.int64)
        pointers = self._times.ctypes.data + np.arange(2) * self._times.strides[0]
        self._waits = np.zeros((2, 3), np.int64)
        self._waits[:, 2] = pointers
        # As many slots as this process may open files, or the kernel refuses them (EMFILE).
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.files = min(_FILES, limit) if limit > 0 else _FILES
        self._register(_FILES2, np.array([self.files, 1, 0, 0, 0, 0, 0, 0], np.uint32), 32)
        self._register(_WORKERS, np.array([_MOST_WORKERS, 0], np.uint32), 2)
        self._nothing = np.full(self.files, -1, np.int32)
        self._pairs = np.zeros((self.files, 2), SQE)
        opens, reads = self._pairs[:, 0], self._pairs[:, 1]
        opens["opcode"], opens["flags"], opens["fd"] = OPENAT, _LINK, libc.AT_FDCWD
        opens["slot"] = np.arange(1, self.files + 1)
        reads["opcode"], reads["flags"], reads["fd"] = READV, _FIXED_FILE, np.arange(self.files)
        reads["len"] = 2

    def close(self) -> None:
        """Close the ring. Closing twice is fine."""
        self._finalizer()

    def opcodes(self) -> npt.NDArray[np.bool_]:
        """bool[256]: true for each opcode that this kernel has."""
        probe = np.zeros(16 + 8 * 256, np.uint8)  # struct io_uring_probe
        self._register(_PROBE, probe, 256)
        found = probe[16:].reshape(256, 8)
        known = np.zeros(256, bool)
        known[found[:, 0]] = found[:, 2] & 1
        return known

    def read_files(
        self, paths: Sequence[bytes], open_flags: IntArray, iovecs: npt.NDArray[np.void]
    ) -> IntArray:
        """Open n <= `files` files, read each from its beginning, and close them.

        Args:
            paths: of the files.
            open_flags: int64[n], for open(2), without O_CLOEXEC: there are no descriptors. With
                O_NONBLOCK, a file whose file system knows no RWF_NOWAIT is still read.
            iovecs: IOVEC[n, 2], C-contiguous: two pieces of memory for each file.

        Returns:
            int64[n]: the number of bytes read, or -errno. -ECANCELED stands for any error.
        """
        pairs = self._pairs[: len(paths)]
        names, pairs["addr"][:, 0] = _joined(paths)
        pairs["op_flags"][:, 0] = open_flags
        pairs["addr"][:, 1] = libc.row_addresses(iovecs)
        try:
            return self.run(pairs.reshape(-1))[1::2]
        finally:
            del names
            # A read can never hit the file of the batch before: its slot is empty.
            update = np.array([0, self._nothing.ctypes.data], np.uint64)  # io_uring_files_update
            self._register(_FILES_UPDATE, update, len(paths))

    def sizes(self, paths: Sequence[bytes]) -> IntArray:
        """The size of n regular files in bytes, int64[n]; -1 for another file, and after an error.

        All are asked at the same time, by as many workers of the kernel.
        """
        status, entries = np.zeros(len(paths), libc.STATX), np.zeros(len(paths), SQE)
        names, entries["addr"] = _joined(paths)
        entries["opcode"], entries["fd"], entries["len"] = STATX, libc.AT_FDCWD, _STATX_TYPE_SIZE
        entries["off"] = libc.row_addresses(status)
        parts = np.array_split(entries, -(-len(paths) // _ENTRIES) or 1)
        failed = np.concatenate([*map(self.run, parts)])
        del names
        regular = (failed == 0) & (status["mode"] & 0o170000 == stat.S_IFREG)
        return np.where(regular, status["size"], -1)

    def read(
        self,
        fds: npt.ArrayLike,
        iovecs: npt.NDArray[np.void],
        offsets: npt.ArrayLike,
        rw_flags: int = 0,
        at_once: int = _ENTRIES,
    ) -> IntArray:
        """Read n ranges of open files, `at_once` at most; else as `aio.AioContext.read()`."""
        n, pieces = iovecs.shape
        entries = np.zeros(n, SQE)
        entries["opcode"] = READV
        entries["fd"], entries["off"], entries["op_flags"] = fds, offsets, rw_flags
        entries["addr"], entries["len"] = libc.row_addresses(iovecs), pieces
        most = min(at_once, _ENTRIES)
        parts = np.array_split(entries, -(-n // most) or 1)
        results = np.concatenate([*map(self.run, parts)])
        # With O_NONBLOCK, and before Linux 6.5, only a worker of the kernel waits for some disks.
        if not rw_flags and (again := np.flatnonzero(results == -errno.EAGAIN)[:most]).size:
            entries["flags"] = _ASYNC
            results[again] = self.run(entries[again])
        return results

    def run(self, entries: npt.NDArray[np.void]) -> IntArray:
        """Submit n entries and wait for them; yield the turn before a wait. Sets `user_data`.

        Returns:
            int64[n], the result of each; -ECANCELED if it was not submitted.
        """
        n = entries.size
        entries["user_data"] = np.arange(n)
        results = np.full(n, -errno.ECANCELED, np.int64)
        self._settle()
        self._cq_head[:] = self._cq_tail  # results of a run that an exception ended
        tail = int(self._sq_tail[0])
        at = tail % _ENTRIES
        first = min(n, _ENTRIES - at)
        self._sqes[at : at + first], self._sqes[: n - first] = entries[:first], entries[first:]
        try:
            self._sq_tail[0] = tail + n & 0xFFFFFFFF
            self._enter(n, n, 0)
            # The rest of a chain, submitted later, would no longer wait for its beginning.
            self._sq_tail[:] = self._sq_head
            if self._in_flight():
                yield_turn()
        finally:
            self._settle()
        head, end = int(self._cq_head[0]), int(self._cq_tail[0])
        done = self._cqes[(head + np.arange(end - head & 0xFFFFFFFF)) % self._count]
        results[done["user_data"].astype(np.int64)] = done["res"]
        self._cq_head[0] = end
        return results

    def _in_flight(self) -> int:
        """Entries without a completion; each has one, and there is room for all."""
        return int(self._sq_head[0]) - int(self._cq_tail[0]) & 0xFFFFFFFF

    def _settle(self) -> None:
        """Wait until no entry is in flight, after any error; forget those not submitted."""
        self._sq_tail[:] = self._sq_head
        since = time.monotonic()
        while count := self._in_flight():
            self._enter(0, count, 1)
            if self._in_flight() < count:
                since = time.monotonic()
            elif time.monotonic() - since >= _STALL_S:
                # A pipe in place of a file may have a writer that writes nothing, for which the
                # kernel waits despite O_NONBLOCK. So what can be cancelled is cancelled.
                cancel = np.zeros(8, np.int64)  # struct io_uring_sync_cancel_reg
                cancel[1] = _CANCEL_ALL << 32
                self._register(_SYNC_CANCEL, cancel, 1, allowed=(errno.ENOENT, errno.ETIME))
                since = time.monotonic()

    def _enter(self, submit: int, complete: int, wait: int) -> None:
        """Submit entries, and wait for completions: not at all (0), or for `_STALL_S` (1)."""
        flags, argument = _GETEVENTS | _EXT_ARG, ctypes.c_void_p(self._waits[wait].ctypes.data)
        result = libc.syscall(_ENTER, self._fd, submit, complete, flags, argument, _WAIT_BYTES)
        # The kernel returns none of these if there are completions, so the rings tell what is done.
        if result < 0 and ctypes.get_errno() not in _RETRIED:
            raise _error()

    def _register(
        self,
        what: int,
        argument: npt.NDArray[np.generic],
        count: int,
        allowed: Sequence[int] = (),
    ) -> None:
        try:
            _call(_REGISTER, self._fd, what, ctypes.c_void_p(argument.ctypes.data), count)
        except OSError as error:
            if error.errno not in allowed:
                raise

    def _map(self, maps: list[tuple[int, int]], nbytes: int, offset: int) -> HostBuffer:
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        address = libc.mmap(None, nbytes, protection, _SHARED_POPULATED, self._fd, offset)
        if address == ctypes.c_void_p(-1).value:
            raise _error()
        maps.append((address, nbytes))
        memory: HostBuffer = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
        return memory


_mine = threading.local()
_open: set[int] = set()  # descriptors of the rings of this process
os.register_at_fork(after_in_child=lambda: _mine.__dict__.clear())
os.register_at_fork(after_in_child=_open.clear)


def ring() -> Ring | None:
    """The ring of the calling thread, made by its first call; the same as long as the thread lives.

    None while there is no memory or no descriptor for a ring, or all rings have a quarter of the
    descriptors that this process may open. Then the caller reads in another way.
    """
    mine: Ring | None = getattr(_mine, "ring", None)
    if mine is None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit < 0 or len(_open) < limit // 4:
            with suppress(OSError):
                mine = _mine.ring = Ring()
    return mine


def unavailable() -> BackendUnavailable | None:
    """The reason why `ring()` never gives a ring here, with a remedy; None if available."""
    try:
        probe = Ring()
        lacking = np.flatnonzero(~probe.opcodes()[[READV, OPENAT, STATX]])
        probe.close()
    except OSError as error:
        if error.errno in (*LIMITS, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            return None  # for now
        reason = f"io_uring is refused ({error.strerror})"
        if error.errno == errno.EINVAL:
            return BackendUnavailable(reason, "use Linux 6.1 or newer")
        remedy = "allow io_uring_setup, io_uring_enter and io_uring_register (seccomp profile)"
        return BackendUnavailable(reason, f"{remedy}, and set `sysctl kernel.io_uring_disabled=0`")
    if lacking.size:
        return BackendUnavailable("io_uring of this kernel cannot open or read", "update it")
    return None


def _joined(paths: Sequence[bytes]) -> tuple[bytes, IntArray]:
    """A table of n paths, each with a NUL behind, and their addresses in it: int64[n]."""
    table = b"\0".join([*paths, b""])
    lengths = np.fromiter(map(len, paths), np.int64, len(paths)) + 1
    return table, np.frombuffer(table, np.uint8).ctypes.data + np.cumsum(lengths) - lengths


def _call(number: int, *arguments: object) -> int:
    result: int = libc.syscall(number, *arguments)
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _close(fds: list[int], maps: list[tuple[int, int]]) -> None:
    for address, nbytes in maps:
        libc.munmap(address, nbytes)
    for fd in fds:
        _open.discard(fd)
        libc.close(fd)
