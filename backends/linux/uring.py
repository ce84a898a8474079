"""io_uring: the opens and reads, or the status queries, of a whole batch by one system call.

The ABI is that of <linux/io_uring.h>, Linux 6.1 and newer. Each thread has a ring of its own, which
no other thread may enter: so the kernel posts completions only inside this thread's own calls, and
the shared memory needs no barriers. A call returns, or raises, with nothing in flight and no file
open. To close a ring would not do: the kernel ends its reads later.
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
_FIXED_FILE, _LINK = 1, 4  # IOSQE_*
_STATX_TYPE_SIZE = 0x201

_SETUP, _ENTER, _REGISTER = 425, 426, 427  # on every machine, like all system calls since 2019
# IORING_SETUP_*: SUBMIT_ALL, or a bad entry would stop the next ones; SINGLE_ISSUER, DEFER_TASKRUN
_SETUP_FLAGS = 1 << 7 | 1 << 12 | 1 << 13
_GETEVENTS_EXT_ARG = 1 | 8  # IORING_ENTER_*
_ARG_BYTES = ctypes.c_size_t(24)  # of struct io_uring_getevents_arg
_FILES_UPDATE, _PROBE, _FILES2, _WORKERS, _SYNC_CANCEL = 6, 8, 13, 19, 24  # IORING_REGISTER_*
_CANCEL_ALL = 1 | 4  # IORING_ASYNC_CANCEL_ALL and _ANY
_SHARED_POPULATED = 0x8001  # MAP_SHARED and MAP_POPULATE
_PASSING = errno.ETIME, errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ENOMEM

_FILES = 256  # slots for files, at most as many as this process may open
_ENTRIES = 2 * _FILES
_MOST_WORKERS = 64  # of the kernel, for calls that block; else 4 per processor
_STALL_S = 10


class Ring:
    """A ring of the thread that makes it. Closed when collected.

    Attributes:
        files: the most files of a call.
    """

    def __init__(self) -> None:
        """Raises an OSError if the kernel refuses."""
        fds, maps = list[int](), list[tuple[int, int]]()
        # Before there is anything to close, which a Ctrl-C could lose right afterwards.
        self.close = weakref.finalize(self, _close, fds, maps)
        self.close.atexit = False
        parameters = np.zeros(30, np.uint32)  # struct io_uring_params
        parameters[2] = _SETUP_FLAGS
        fds += map(_call, (_SETUP,), (_ENTRIES,), (ctypes.c_void_p(parameters.ctypes.data),))
        (self._fd,) = fds
        _open.add(self._fd)
        sq, cq = parameters[10:20].tolist(), parameters[20:30].tolist()  # offsets in the ring
        count = int(parameters[1])
        ring = self._map(maps, max(cq[5] + count * CQE.itemsize, sq[6] + _ENTRIES * 4), 0)
        self._sqes = self._map(maps, _ENTRIES * SQE.itemsize, 0x10000000).view(SQE)
        self._cqes = ring[cq[5] :][: count * CQE.itemsize].view(CQE)
        words = ring[: ring.size // 4 * 4].view(np.uint32)
        words[sq[6] // 4 :][:_ENTRIES] = np.arange(_ENTRIES)
        places = [at // 4 for at in (*sq[:2], *cq[:2])]
        self._sq_head, self._sq_tail, self._cq_head, self._cq_tail = (words[p:][:1] for p in places)
        # Two of struct io_uring_getevents_arg, each behind its struct timespec.
        self._waits = np.array([[0, 0, 0, 0, 0], [_STALL_S, 0, 0, 0, 0]], np.int64)
        self._waits[:, 4] = libc.row_addresses(self._waits)
        # More slots than this process may open files are refused (EMFILE).
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.files = min(_FILES, limit) if limit > 0 else _FILES
        self._register(_FILES2, np.array([self.files, 1, 0, 0, 0, 0, 0, 0], np.uint32), 32)
        self._register(_WORKERS, np.array([_MOST_WORKERS, 0], np.uint32), 2)
        self._pairs = np.zeros((self.files, 2), SQE)
        opens, reads = self._pairs[:, 0], self._pairs[:, 1]
        opens["opcode"], opens["flags"], opens["fd"] = OPENAT, _LINK, libc.AT_FDCWD
        opens["slot"] = np.arange(1, self.files + 1)
        reads["opcode"], reads["flags"], reads["fd"] = READV, _FIXED_FILE, np.arange(self.files)
        reads["len"] = 2
        self._empty = np.full(self.files, -1, np.int32)

    def opcodes(self) -> set[int]:
        """The opcodes that this kernel has."""
        probe = np.zeros((258, 8), np.uint8)  # struct io_uring_probe, two rows and one for each
        self._register(_PROBE, probe, 256)
        return {int(row[0]) for row in probe[2:] if row[2] & 1}

    def read_files(
        self, paths: Sequence[bytes], open_flags: IntArray, iovecs: npt.NDArray[np.void]
    ) -> IntArray:
        """Open n files, read each from its beginning, and close them.

        `open_flags`: int64[n], of open(2) without O_CLOEXEC, as there are no descriptors; with
        O_NONBLOCK, a file on a file system without RWF_NOWAIT is read, too. `iovecs`: IOVEC[n, 2],
        C-contiguous, two pieces of memory for each file.

        Returns:
            int64[n]: the number of bytes read, or -errno. -ECANCELED stands for any error.
        """
        pairs = self._pairs[: len(paths)]
        names, pairs["addr"][:, 0] = _joined(paths)
        pairs["op_flags"][:, 0] = open_flags
        pairs["addr"][:, 1] = libc.row_addresses(iovecs)
        try:
            return self._run(pairs.reshape(-1))[1::2]
        finally:
            del names
            # A read can never hit the file of the batch before: its slot is empty.
            update = np.array([0, self._empty.ctypes.data], np.uint64)  # io_uring_files_update
            self._register(_FILES_UPDATE, update, len(paths))

    def sizes(self, paths: Sequence[bytes]) -> IntArray:
        """The sizes of n regular files in bytes, asked at the same time: int64[n].

        -1 for another file, and after an error.
        """
        status, entries = np.zeros(len(paths), libc.STATX), np.zeros(len(paths), SQE)
        names, entries["addr"] = _joined(paths)
        entries["opcode"], entries["fd"], entries["len"] = STATX, libc.AT_FDCWD, _STATX_TYPE_SIZE
        entries["off"] = libc.row_addresses(status)
        failed = self._run(entries)
        del names
        regular = (failed == 0) & (status["mode"] & 0o170000 == stat.S_IFREG)
        return np.where(regular, status["size"], -1)

    def _run(self, entries: npt.NDArray[np.void]) -> IntArray:
        """Submit n entries and wait for them; yield the turn before a wait. Sets `user_data`.

        Returns int64[n], the result of each; -ECANCELED if the kernel did not take it.
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
            # To wait for all, but not at all: for fewer, the kernel would not begin all reads.
            self._enter(n, n, self._waits[0])
            # The rest of a chain, submitted later, would no longer wait for its beginning.
            self._sq_tail[:] = self._sq_head
            if self._in_flight():
                yield_turn()
        finally:
            self._settle()
        head, end = int(self._cq_head[0]), int(self._cq_tail[0])
        done = self._cqes[(head + np.arange(end - head & 0xFFFFFFFF)) % self._cqes.size]
        results[done["user_data"].astype(np.int64)] = done["res"]
        return results

    def _in_flight(self) -> int:
        """Entries without a completion; each has one, and there is room for all."""
        return int(self._sq_head[0]) - int(self._cq_tail[0]) & 0xFFFFFFFF

    def _settle(self) -> None:
        """Wait until nothing is in flight, also after an error; forget what was not submitted."""
        self._sq_tail[:] = self._sq_head
        try:
            since = time.monotonic()
            while count := self._in_flight():
                # The kernel counts the completions that are not taken, too.
                ready = int(self._cq_tail[0]) - int(self._cq_head[0]) & 0xFFFFFFFF
                self._enter(0, ready + count, self._waits[1])
                if self._in_flight() < count:
                    since = time.monotonic()
                elif time.monotonic() - since >= _STALL_S:
                    # A pipe in place of a file may have a writer that writes nothing, for which the
                    # kernel waits despite O_NONBLOCK. So what can be cancelled is cancelled: also
                    # opens that wait for the grace period of an NFS server, which lose nothing.
                    cancel = np.zeros(8, np.int64)  # struct io_uring_sync_cancel_reg
                    cancel[1] = _CANCEL_ALL << 32
                    with suppress(OSError):  # there is nothing to cancel
                        self._register(_SYNC_CANCEL, cancel, 1)
                    since = time.monotonic()
        except BaseException:  # a Ctrl-C in the main thread, and any further one
            self._settle()
            raise

    def _enter(self, submit: int, complete: int, wait: IntArray) -> None:
        argument = ctypes.c_void_p(wait[2:].ctypes.data)
        how = _GETEVENTS_EXT_ARG, argument, _ARG_BYTES
        # While completions are not taken, the kernel hides all errors: only the rings tell.
        result = libc.syscall(_ENTER, self._fd, submit, complete, *how)
        if result < 0 and ctypes.get_errno() not in _PASSING:
            raise _error()

    def _register(self, what: int, argument: npt.NDArray[np.generic], count: int) -> None:
        _call(_REGISTER, self._fd, what, ctypes.c_void_p(argument.ctypes.data), count)

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
    """The ring of the calling thread, made by its first call; it ends with the thread.

    None while there is no memory or descriptor for a ring, or while rings have a quarter of the
    descriptors that this process may open: then the caller reads in another way.
    """
    mine: Ring | None = getattr(_mine, "ring", None)
    if mine is None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit < 0 or len(_open) < limit // 4:
            with suppress(OSError):
                mine = _mine.ring = Ring()
    return mine


def unavailable() -> BackendUnavailable | None:
    """The reason why no thread gets a ring here, with a remedy; None if available."""
    try:
        probe = Ring()
        lacking = {READV, OPENAT, STATX} - probe.opcodes()
        probe.sizes([])  # a sandbox may forbid io_uring_enter alone
        probe.close()
    except OSError as error:
        if error.errno in LIMITS:  # for now
            return None
        remedy = "allow io_uring_setup, io_uring_enter and io_uring_register (seccomp profile), and"
        remedy += " set `sysctl kernel.io_uring_disabled=0`"
        if error.errno == errno.EINVAL:
            remedy = "use Linux 6.1 or newer"
        return BackendUnavailable(f"io_uring is refused ({error.strerror})", remedy)
    if lacking:
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
