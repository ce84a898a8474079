"""Reads of many files through one queue of the xNVMe file API."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from ...contract._types import IntArray
from ...contract.errors import BackendUnavailable
from ...contract.stages import yield_turn
from ...runtime.uninterrupted import run_uninterrupted
from ..linux import libc
from .device import XnvmeDevice
from .library import Library
from .queue import NOTHING_TO_DO, Commands, Queue, Statuses
from .status import describe_status

IOS = ("io_uring", "libaio", "emu", "thrpool")
"""The asynchronous implementations of libxnvme that read files."""

LATER = -2
"""Placeholder for a descriptor: the file can only be opened after another one is closed."""

_MOST = 1 << 30  # bytes per command; the kernel reads at most 2 GiB at once
_PER_COMMAND = ("emu", "thrpool")  # read from the file of the command, not of the queue
_NOEXEC_SEAL = 0x8  # <linux/memfd.h>, since Linux 6.3; some systems require it


class FileQueue:
    """A queue that reads any open file, for one thread at a time, until `close()`.

    libxnvme has a queue per file. Creating a queue takes 0.1 ms with io_uring and 33 ms with
    libaio, far more than reading a cached file. So a handle and its queue are created once, on an
    empty file. For each read, dup3(2) then replaces the file behind the handle's descriptor.
    Commands keep their file from submission on. io_uring and libaio read from the file of the
    queue, and every command is submitted before the next dup3. The other implementations read
    later, from the file of the command, and get a handle per context. A trial at creation confirms
    that libxnvme reads from the replaced files.
    """

    def __init__(self, library: Library, io: str, depth: int, *, direct: bool = False) -> None:
        """Create the handles and the queue; `direct`: for files opened with O_DIRECT.

        Raises:
            OSError: libxnvme does not offer this `io`, one of IOS, here.
            BackendUnavailable: libxnvme does not read from replaced files.
        """
        self.io = io
        # The files are open with O_NONBLOCK; before Linux 5.15, io_uring then fails with EAGAIN.
        major, minor = map(int, re.findall(r"\d+", platform.release())[:2])
        self._clears_nonblock = io == "io_uring" and (major, minor) < (5, 15)
        self._flags = os.O_DIRECT if direct else 0
        self._handles: list[XnvmeDevice] = []
        self._moved: set[int] = set()
        self._queue: Queue | None = None
        self._home = _anonymous_file(b"")
        try:
            for _ in range(depth if io in _PER_COMMAND else 1):
                self._handles.append(open_anonymous(library, io, self._home))
            self._queue = queue = Queue(self._handles[0], depth)
            self._targets = [_descriptor(handle, self._home) for handle in self._handles]
            if io in _PER_COMMAND:
                queue.contexts["device"] = [handle.pointer for handle in self._handles]
            else:
                self._targets *= depth
            self._try_out(library)
        except BaseException:
            self.close()
            raise

    def run(self, reads: Commands, memory: object) -> None:
        """Run reads of this queue, as `Queue.run()`."""
        try:
            # The handles are kept with the memory: their threads may still read.
            self._opened_queue().run(reads, (memory, self._handles))
        finally:
            for target in self._moved:  # the space of a deleted file stays in use while open
                libc.dup3_with_gil(self._home, target, os.O_CLOEXEC)
            self._moved.clear()

    def submit(
        self,
        contexts: list[int],
        fds: Sequence[int],
        memory: Sequence[int],
        nbytes: Sequence[int],
        offsets: Sequence[int],
    ) -> list[int]:
        """Submit a read per free context. The files may be closed afterwards.

        `fds` are open files, -1 for nothing to read, or LATER; lengths and offsets are in bytes.
        Returns UNDER_WAY, NOTHING_TO_DO or -errno for each, -EAGAIN for LATER.
        """
        queue = self._opened_queue()
        queue.heads[contexts] = np.void(bytes(queue.heads.itemsize))
        pread, codes = queue.functions.xnvme_file_pread, []
        reads = zip(contexts, fds, memory, nbytes, offsets, strict=True)
        for context, fd, address, length, offset in reads:
            code = -errno.EAGAIN if fd == LATER else NOTHING_TO_DO
            if fd >= 0:
                if self._clears_nonblock:
                    fcntl.fcntl(fd, fcntl.F_SETFL, self._flags)
                target = self._targets[context]
                self._moved.add(target)
                if libc.dup3_with_gil(fd, target, os.O_CLOEXEC) < 0:
                    what = "a descriptor was closed by other code of this process"
                    raise OSError(errno.EBADF, what)
                code = pread(queue.pointers[context], address, length, offset)
                if self.io == "io_uring":
                    queue.poll()  # submits the read
            codes.append(code)
        return codes

    def close(self) -> None:
        """Close everything. Closing twice is fine."""
        if self._queue is not None:
            self._queue.close()
            if self._queue.device.lost:
                return  # reads in flight need their files
        for handle in self._handles:
            handle.close()
        home, self._home = self._home, -1
        if home >= 0:
            os.close(home)
        self._queue, self._handles = None, []

    def _opened_queue(self) -> Queue:
        if self._queue is None:
            raise ValueError("the queue is closed")
        return self._queue

    def _try_out(self, library: Library) -> None:
        contents = [b"one file", b"other 1!"]
        memory = np.zeros((2, 8), np.uint8)
        addresses = memory.ctypes.data + np.array([0, 8])
        fds: list[int] = []
        try:
            fds += map(_anonymous_file, contents)
            trial = FileReads(self, fds, addresses, np.array([8, 8]))
            run_uninterrupted(partial(self.run, trial, memory))
        finally:
            for fd in fds:
                os.close(fd)
        if error := int(trial.errors.max()):
            raise OSError(error, os.strerror(error))
        if [row.tobytes() for row in memory] != contents:
            raise BackendUnavailable(
                f"{library.path}: io={self.io!r} does not read from descriptors that are replaced, "
                "unlike libxnvme 0.7.5 and main"
            )


def open_anonymous(library: Library, io: str, home: int | None = None) -> XnvmeDevice:
    """Open a handle on an empty file without a name: on `home`, or on a new one.

    Raises `OSError` if libxnvme does not offer the asynchronous implementation `io`.
    """
    if home is None:
        home = _anonymous_file(b"")
        try:
            return open_anonymous(library, io, home)
        finally:
            os.close(home)
    return XnvmeDevice(library, b"/proc/self/fd/%d" % home, io=io, sync="psync", file=True)


def _anonymous_file(content: bytes) -> int:
    try:
        fd = os.memfd_create("dali_storage", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create("dali_storage", os.MFD_CLOEXEC)
    os.pwrite(fd, content, 0)
    return fd


def _descriptor(handle: XnvmeDevice, home: int) -> int:
    """The descriptor of a handle on `home`; refuses a libxnvme with another layout."""
    fd = handle.descriptor
    with suppress(OSError):  # not open
        if os.path.sameopenfile(fd, home) and fd != home:
            return fd
    raise BackendUnavailable(
        f"{handle.library.path} does not keep its descriptors where libxnvme 0.7.5 and main do"
    )


class FileReads(Commands):
    """Reads of n files, which stay open. A subclass can open and close files.

    Attributes:
        got: int64[n], bytes read of each file so far.
        errors: int64[n], errno of each file; 0 if none.
    """

    will_wait = staticmethod(yield_turn)

    def __init__(
        self,
        queue: FileQueue,
        fds: list[int],
        memory: IntArray,
        sizes: IntArray,
        unit: int = 1,
        *,
        starts: IntArray | int = 0,
    ) -> None:
        """Submit nothing yet.

        `memory`: int64[n], the destination address of each file; `sizes`: int64[n], bytes; `unit`:
        bytes, a divisor of offsets and lengths; `starts`: int64[n], bytes into the files.
        """
        self.count = sizes.size
        self.got = np.zeros_like(sizes)
        self.errors = np.zeros_like(sizes)
        self._queue = queue
        self._fds = fds
        self._memory = memory
        self._starts = starts + np.zeros_like(sizes)
        self._rounded = -(-sizes // unit) * unit
        self._sizes = sizes
        self._unit = unit

    def open(self, indices: list[int]) -> list[int]:
        """The descriptors of files, opened if needed; -1 or LATER as in `FileQueue.submit()`."""
        return [self._fds[index] for index in indices]

    def end(self, indices: list[int]) -> None:
        """Handle the end of files, read or failed, which may then be closed."""

    def submit(self, indices: list[int], contexts: list[int]) -> list[int]:
        fds = self.open(indices)
        got = self.got[indices]
        memory = self._memory[indices] + got
        nbytes = np.minimum(self._rounded[indices] - got, _MOST)
        offsets = self._starts[indices] + got
        return self._queue.submit(contexts, fds, memory.tolist(), nbytes.tolist(), offsets.tolist())

    def complete(self, indices: IntArray, results: IntArray, statuses: Statuses) -> list[int]:
        got = self.got[indices] + results  # 0 for reads that failed
        self.got[indices] = got
        if not statuses.any() and (got == self._sizes[indices]).all():
            self.end(indices.tolist())
            return []
        failed = statuses != 0
        for index, status in zip(indices[failed].tolist(), statuses[failed].tolist(), strict=True):
            self.errors[index], _ = describe_status(status, self._queue.io)
        # A short read is not always the end of the file, except within a unit.
        more = ~failed & (results > 0) & (got < self._sizes[indices]) & (got % self._unit == 0)
        self.end(indices[~more].tolist())
        again: list[int] = indices[more].tolist()
        return again

    def reject(self, index: int, error: int) -> None:
        self.errors[index] = error
        self.end([index])
