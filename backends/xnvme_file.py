"""Files through the xNVMe file API: asynchronous reads of many files at once, by libxnvme."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import numpy as np

from .._types import Buffer, IntArray
from ..catalog import Catalog
from ..errors import BackendUnavailable, SampleSizeChanged, os_error
from ..options import require_flag, require_integer
from ..reader import Batch, Reader
from .files.opening import close_all
from .files.samples import SampleFiles
from .xnvme.device import Device
from .xnvme.file_queue import IOS, FileQueue, FileReads, open_anonymous
from .xnvme.implementations import refusal, shortage, unavailable
from .xnvme.library import load
from .xnvme.queue import require_depth

_CACHE_LINE = 64  # bytes; the kernel copies to such an address a fifth faster than to any other
_DIRECT_ALIGNMENT = 4096  # bytes; a multiple of the logical block of every disk


class XnvmeFileReader(Reader):
    """Reads each sample's file whole, with as many files under way at once as a queue is deep.

    libxnvme keeps a queue for each file, which is costly to make; here one queue reads them all,
    see `FileQueue`. Buffers are libxnvme's (xnvme_buf_alloc).
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        io: str = "io_uring",
        queue_depth: int = 64,
        direct: bool = False,
        lanes: int = 3,
    ) -> None:
        """Load libxnvme and make its queues; files are opened when they are read.

        Args:
            catalog: the samples; their paths are opened as they are when they are read.
            io: libxnvme's asynchronous implementation. "io_uring", the fastest, is forbidden in
                many containers. "libaio" is asynchronous with `direct` only. "thrpool" has four
                threads a lane. "emu" reads one file after the other.
            queue_depth: files under way at once in a lane: a power of two from 1 to 2048.
            direct: read around the page cache (O_DIRECT). Not with "emu" and "thrpool", which take
                the end of a file for an error.
            lanes: batches read at once, 1 to 64, when the disk is waited for.

        Raises:
            ValueError, TypeError: a wrong option.
            OSError: `direct` on a file system that has no O_DIRECT.
            BackendUnavailable: no libxnvme, or it does not offer `io` here; says what it offers.
        """
        _check_options(io, queue_depth, direct, lanes)
        self.lanes = lanes
        self.alignment = _DIRECT_ALIGNMENT if direct else _CACHE_LINE
        # The others wait inside of a submission, where nothing can be told.
        self.cooperative = io in ("io_uring", "thrpool") and not direct
        self._catalog = catalog
        self._unit = _DIRECT_ALIGNMENT if direct else 1
        flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | (os.O_DIRECT if direct else 0)
        self._files = SampleFiles(catalog, flags)
        self._queues: list[FileQueue] = []
        self._allocator: Device | None = None
        library = load()
        if direct and len(catalog):
            self._files.require_direct()
        try:
            self._allocator = open_anonymous(library, io)
            for _ in range(lanes):
                self._queues.append(FileQueue(library, io, queue_depth, direct=direct))
        except OSError as error:
            self.close()
            raise shortage(error) or refusal(library, io, error) from None
        except BaseException:
            self.close()
            raise

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        return unavailable()

    def sizes(self, samples: IntArray) -> IntArray:
        return self._files.sizes(samples, self.yield_turn)

    def read(self, batch: Batch, lane: int) -> None:
        queue = self._queues[lane]
        reads = _SampleReads(queue, self._files, self._catalog, batch, self._unit, self.yield_turn)
        try:
            queue.run(reads, batch.buffer)
        finally:
            reads.close()
        for failed in np.flatnonzero(reads.errors)[:1].tolist():
            number, path = int(reads.errors[failed]), self._catalog.path(int(batch.samples[failed]))
            hint = "; the xnvme-file option direct=False reads it through the page cache"
            direct = self._unit > 1 and number == errno.EINVAL
            raise os_error(number, path, hint if direct else "")
        changed = batch.samples[reads.got != batch.sizes]
        if changed.size:
            self._files.forget(changed)
            raise SampleSizeChanged(changed)

    def allocate(self, nbytes: int) -> Buffer:
        if self._allocator is None:
            raise ValueError("xnvme-file: the reader is closed")
        return self._allocator.allocate(nbytes)

    def close(self) -> None:
        for queue in self._queues:
            queue.close()
        if self._allocator is not None:
            self._allocator.close()
        self._files.close()


class _SampleReads(FileReads):
    """The reads of a batch. Each file is opened when its turn comes, and closed when it is read."""

    def __init__(
        self,
        queue: FileQueue,
        files: SampleFiles,
        catalog: Catalog,
        batch: Batch,
        unit: int,
        waiting: Callable[[], None],
    ) -> None:
        super().__init__(queue, batch.buffer.ctypes.data + batch.offsets, batch.sizes, unit)
        self._samples = batch.samples
        self._files = files
        self._catalog = catalog
        self._waiting = waiting
        self._open: dict[int, int] = {}  # number, descriptor

    def open(self, numbers: list[int]) -> list[int]:
        new = [number for number in numbers if number not in self._open]
        if new:
            found = self._open_files(new)
            # Where nothing is to be read it is done: the file is empty, or not what is expected.
            for place in np.flatnonzero((found == 0) | (found != self._sizes[new])).tolist():
                self.got[new[place]] = found[place]
                self.end([new[place]])
        return [self._open.get(number, -1) for number in numbers]

    def end(self, numbers: list[int]) -> None:
        for number in numbers:
            if self.errors[number] and self._has_changed(number):
                self.errors[number], self.got[number] = 0, -1
        close_all(map(self._open.pop, numbers))

    def waiting(self) -> None:
        self._waiting()

    def close(self) -> None:
        """Close what is still open."""
        close_all(self._open.values())
        self._open.clear()

    def _open_files(self, numbers: list[int]) -> IntArray:
        """Open files; their sizes in bytes, int64[k]."""
        samples = self._samples[numbers]
        paths = self._catalog.paths(samples)
        fds: list[int] = []
        opened = zip(numbers, fds, strict=False)  # those that are there when it is used
        try:
            fds += self._files.take(samples)
            if not self._files.open_cached(fds, paths):
                self._waiting()
                self._files.open_missing(fds, paths)
            return self._files.sizes_now(fds, paths)
        finally:
            self._open |= opened  # one instruction: Ctrl-C comes before it or after it

    def _has_changed(self, number: int) -> bool:
        """Whether a read has failed because the file is shorter now; "emu" says it like this."""
        return os.fstat(self._open[number]).st_size != int(self._sizes[number])


def _check_options(io: str, queue_depth: int, direct: bool, lanes: int) -> None:
    if io not in IOS:
        raise ValueError(f"xnvme-file: io must be one of {', '.join(IOS)}, not {io!r}")
    require_flag("xnvme-file", "direct", direct)
    if direct and io not in ("io_uring", "libaio"):
        raise ValueError(f"xnvme-file: direct needs the io io_uring or libaio, not {io!r}")
    require_depth("xnvme-file", queue_depth)
    require_integer("xnvme-file", "lanes", lanes, range(1, 65))
