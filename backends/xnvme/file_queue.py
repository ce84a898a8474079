"""Files through the xNVMe file API, all of them by one queue."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
from abc import abstractmethod
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import numpy.typing as npt

from ..._types import IntArray
from ...errors import BackendUnavailable
from ..linux import libc
from .commands import NOTHING_TO_DO, Commands
from .device import Device
from .library import Library
from .queue import Queue
from .status import describe_status

IOS = ("io_uring", "libaio", "emu", "thrpool")
"""The asynchronous implementations of libxnvme that read files."""

LATER = -2
"""In the place of a descriptor: the file is to be opened when others are closed."""

_MOST = 1 << 30  # bytes that one command asks for; the kernel reads no more than 2 GiB at once
_PER_COMMAND = ("emu", "thrpool")  # read from the file of the command; the others, of the queue
_NOEXEC_SEAL = 0x8  # <linux/memfd.h>, since Linux 6.3; some systems insist on it


class FileQueue:
    """A queue that reads any open file. For one thread at a time; `with` or `close()` ends it.

    libxnvme has a queue for each file. To make one takes 0.1 ms with io_uring and 33 ms with
    libaio, far more than to read a file from the page cache. So a handle and its queue are made
    once, on an empty file, and then the descriptor of the handle is moved: dup3(2) makes it mean
    the next file. A command holds on to the file that it was submitted with. io_uring and libaio
    read from the file of the queue, and submit each command before the descriptor moves on; the
    others read later, from the file of the command: there, each context has a handle of its own.
    Whether libxnvme reads from where the descriptor was moved to, is tried when the queue is made.
    """

    def __init__(self, library: Library, io: str, depth: int, *, direct: bool = False) -> None:
        """Make it.

        Args:
            library: libxnvme.
            io: one of IOS.
            depth: reads under way at once, see `_xnvme_queue.require_depth`.
            direct: the files are opened with O_DIRECT.

        Raises:
            OSError: libxnvme does not offer this implementation here.
            BackendUnavailable: it reads from elsewhere.
        """
        self.io = io
        # They were opened with O_NONBLOCK, which io_uring before Linux 5.15 takes at its word.
        self._clears_nonblock = io == "io_uring" and _kernel() < (5, 15)
        self._flags = os.O_DIRECT if direct else 0
        self._handles: list[Device] = []
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
        """Run reads that are for this queue, as `Queue.run()`."""
        try:
            # The other handles are kept with the memory: their threads may still read.
            self._opened_queue().run(reads, (memory, self._handles))
        finally:
            for target in self._moved:  # or it would keep the last file from being deleted
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
        """Submit reads; what they are of, may be closed when this returns.

        Args:
            contexts: k free contexts.
            fds: k open files; LATER, or -1 where nothing is to be read.
            memory: k addresses.
            nbytes: k lengths.
            offsets: k numbers of bytes into the files.

        Returns:
            For each, UNDER_WAY, NOTHING_TO_DO or -errno: of LATER, -EAGAIN.
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
                    raise OSError(errno.EBADF, "a descriptor has been closed by somebody else")
                code = pread(queue.pointers[context], address, length, offset)
                if self.io == "io_uring":
                    queue.poll()  # submits it
            codes.append(code)
        return codes

    def close(self) -> None:
        """Close everything. Twice is fine."""
        if self._queue is not None:
            self._queue.close()
            if self._queue.device.lost:
                return  # what is under way needs its files
        for handle in self._handles:
            handle.close()
        home, self._home = self._home, -1
        if home >= 0:
            os.close(home)
        self._queue, self._handles = None, []

    def __enter__(self) -> FileQueue:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _opened_queue(self) -> Queue:
        if self._queue is None:
            raise ValueError("the queue is closed")
        return self._queue

    def _try_out(self, library: Library) -> None:
        contents = [b"one file", b"other 1!"]
        fds = [_anonymous_file(content) for content in contents]
        memory = np.zeros((2, 8), np.uint8)
        try:
            self.run(_Trial(self, fds, memory), memory)
        finally:
            for fd in fds:
                os.close(fd)
        if [row.tobytes() for row in memory] != contents:
            raise BackendUnavailable(
                f"{library.path} with {self.io!r} does not read the files that its descriptors are "
                "moved to; this is not known of 0.7.5 and main"
            )


class _Trial(Commands):
    """The beginnings of files."""

    def __init__(self, queue: FileQueue, fds: list[int], memory: npt.NDArray[np.uint8]) -> None:
        """`memory`: uint8[n, k], for k bytes of each."""
        self.count = len(fds)
        self._queue = queue
        self._fds = fds
        self._memory = memory

    def submit(self, numbers: list[int], contexts: list[int]) -> list[int]:
        fds = [self._fds[number] for number in numbers]
        memory = [self._memory[number].ctypes.data for number in numbers]
        lengths = [self._memory.shape[1]] * len(numbers)
        return self._queue.submit(contexts, fds, memory, lengths, [0] * len(numbers))

    def complete(
        self, numbers: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        return []

    def reject(self, number: int, error: int) -> None:
        raise OSError(error, os.strerror(error))

    def will_wait(self) -> None:
        pass


def open_anonymous(library: Library, io: str, home: int | None = None) -> Device:
    """A handle on an empty file that has no name; `home` is such a file, where there is one.

    Raises:
        OSError: libxnvme does not offer the asynchronous implementation `io`.
    """
    if home is None:
        home = _anonymous_file(b"")
        try:
            return open_anonymous(library, io, home)
        finally:
            os.close(home)
    return Device(library, b"/proc/self/fd/%d" % home, io=io, sync="psync", file=True)


def _anonymous_file(content: bytes) -> int:
    try:
        fd = os.memfd_create("dali_storage", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        fd = os.memfd_create("dali_storage", os.MFD_CLOEXEC)
    os.pwrite(fd, content, 0)
    return fd


def _descriptor(handle: Device, home: int) -> int:
    """The descriptor of a handle on `home`, if libxnvme keeps it where 0.7.5 and main do."""
    fd = handle.descriptor
    try:
        if os.path.sameopenfile(fd, home) and fd != home:
            return fd
    except OSError:  # not open
        pass
    raise BackendUnavailable(
        f"{handle.library.path} keeps its descriptors in another way than 0.7.5 and main do"
    )


def _kernel() -> tuple[int, int]:
    major, minor = platform.release().split(".")[:2]
    return int(major), int("".join(takewhile(str.isdigit, minor)))


class FileReads(Commands):
    """Reads of n files from the beginning to an expected size. Where they come from is to be added.

    Attributes:
        got: int64[n], bytes that have come of each so far.
        errors: int64[n], errno of each, 0 where there is none.
    """

    def __init__(self, queue: FileQueue, memory: IntArray, sizes: IntArray, unit: int = 1) -> None:
        """Begin nothing yet.

        Args:
            queue: what will run them.
            memory: int64[n], addresses.
            sizes: int64[n], bytes.
            unit: bytes, what offsets and lengths must be multiples of.
        """
        self.count = sizes.size
        self.got = np.zeros_like(sizes)
        self.errors = np.zeros_like(sizes)
        self._queue = queue
        self._memory = memory
        self._rounded = -(-sizes // unit) * unit
        self._sizes = sizes
        self._unit = unit

    @abstractmethod
    def open(self, numbers: list[int]) -> list[int]:
        """The descriptors of files, open already or not; -1 or LATER as in `FileQueue.submit()`.

        LATER is for files that cannot be opened before another one is closed.
        """

    @abstractmethod
    def end(self, numbers: list[int]) -> None:
        """Learn that files need not be open any longer: they are read, or have failed."""

    def submit(self, numbers: list[int], contexts: list[int]) -> list[int]:
        fds = self.open(numbers)
        got = self.got[numbers]
        memory = self._memory[numbers] + got
        nbytes = np.minimum(self._rounded[numbers] - got, _MOST)
        return self._queue.submit(contexts, fds, memory.tolist(), nbytes.tolist(), got.tolist())

    def complete(
        self, numbers: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        got = self.got[numbers] + results  # 0 of what failed
        self.got[numbers] = got
        if not statuses.any() and (got == self._sizes[numbers]).all():
            self.end(numbers.tolist())
            return []
        failed = statuses != 0
        for place in np.flatnonzero(failed).tolist():
            self.errors[numbers[place]], _ = describe_status(int(statuses[place]), self._queue.io)
        # A read that gives little is not yet the end; one that gives part of a unit is.
        more = ~failed & (results > 0) & (got < self._sizes[numbers]) & (got % self._unit == 0)
        self.end(numbers[~more].tolist())
        again: list[int] = numbers[more].tolist()
        return again

    def reject(self, number: int, error: int) -> None:
        self.errors[number] = error
        self.end([number])
