"""Files read through the xNVMe file API: asynchronous reads of many files, by libxnvme."""

import os
from functools import partial
from typing import Annotated

import numpy as np

from ..contract._types import Buffer, IntArray, address_of
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable
from ..contract.options import Flag, Lanes, Option, check_options
from ..contract.ranges import Spans
from ..contract.reader import Batch, Reader
from .files.opening import close_all
from .files.samples import SampleFiles
from .files.spans import ContainerBatches
from .xnvme import availability
from .xnvme.device import XnvmeDevice
from .xnvme.file_queue import IOS, LATER, FileQueue, FileReads, open_anonymous
from .xnvme.library import load
from .xnvme.queue import QueueDepth

_NAME = "xnvme-file"


class XnvmeFileReader(Reader):
    """A reader of whole files, or ranges of containers, up to the queue depth of a lane at once.

    libxnvme has a queue per file, which is slow to create. Here one queue reads all files, see
    `FileQueue`. libxnvme allocates the buffers (xnvme_buf_alloc).
    """

    reads_ranges = True

    @check_options(_NAME)
    def __init__(
        self,
        catalog: Catalog,
        *,
        io: Annotated[str, Option(IOS)] = "io_uring",
        queue_depth: QueueDepth = 64,
        direct: Flag = False,
        lanes: Lanes = 3,
        copying_lanes: Annotated[int | None, Option(range(1, 65))] = None,
    ) -> None:
        """Load libxnvme and create the queues. Files are opened by reads.

        Args:
            catalog: the samples.
            io: the asynchronous implementation of libxnvme. "io_uring" is the fastest, but many
                Docker containers forbid it. "libaio" is asynchronous with `direct` only. "thrpool"
                has four threads per lane. "emu" reads one file after the other.
            queue_depth: files in flight at once in a lane.
            direct: read around the page cache (O_DIRECT). Not for "emu" and "thrpool", which report
                an error at the end of a file.
            lanes: batches read at once while blocked on the disk.
            copying_lanes: how many lanes may copy out of the page cache at the same time. None:
                1 on up to 3 processors, 3 from 8 on, else 2.

        Raises:
            ValueError, TypeError: a wrong option.
            OSError: `direct` on a file system without O_DIRECT.
            BackendUnavailable: libxnvme is missing, or does not offer `io` on this machine.
        """
        if direct and io not in ("io_uring", "libaio"):
            raise ValueError(f"xnvme-file: direct needs io='io_uring' or 'libaio', not {io!r}")
        self.lanes = lanes
        self.copying_lanes = copying_lanes
        # The other implementations block inside a submission, where the turn cannot be yielded.
        self.cooperative = io in ("io_uring", "thrpool") and not direct
        self._queues: list[FileQueue] = []
        self._allocator: XnvmeDevice | None = None
        library = load()
        self._whole = catalog.ranges is None
        self._files = SampleFiles(catalog, direct=direct)
        self._spans = ContainerBatches(catalog, self._files, lanes)
        self.alignment = self._files.alignment
        self.unit = self._files.unit
        try:
            self._allocator = open_anonymous(library, io)
            for _ in range(lanes):
                self._queues.append(FileQueue(library, io, queue_depth, direct=direct))
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            limit = availability.limit_reached(error)
            raise limit or availability.not_offered(library, io, error) from None

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        return availability.unavailable()

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return self._files.sizes(samples, lane)

    def read(self, batch: Batch, lane: int) -> None:
        queue = self._queues[lane]
        if not self._whole:
            self._spans.fill(batch, lane, partial(self._transfer, queue, batch))
            return
        reads = _SampleReads(queue, self._files, batch, lane)
        try:
            queue.run(reads, batch.buffer)
        finally:
            reads.close()
        for failed in np.flatnonzero(reads.errors)[:1].tolist():
            number, sample = int(reads.errors[failed]), int(batch.samples[failed])
            raise self._files.read_error(number, sample)
        self._files.require_sizes(batch, reads.got)

    def allocate(self, nbytes: int) -> Buffer:
        if self._allocator is None:
            raise ValueError("xnvme-file: the reader is closed; open a new one")
        return self._allocator.allocate(nbytes)

    def close(self) -> None:
        for queue in self._queues:
            queue.close()
        if self._allocator is not None:
            self._allocator.close()
        self._files.close()
        self._spans.close()

    def _transfer(
        self, queue: FileQueue, batch: Batch, spans: Spans, fds: IntArray
    ) -> tuple[IntArray, IntArray]:
        """See `spans.Transfer`."""
        reads = FileReads(
            queue,
            fds.tolist(),
            address_of(batch.buffer) + spans.offsets,
            spans.needed,
            self.unit,
            starts=spans.starts,
        )
        queue.run(reads, batch.buffer)
        return reads.got, reads.errors


class _SampleReads(FileReads):
    """The reads of a batch. A file is opened for the submission of its read, closed afterwards."""

    def __init__(self, queue: FileQueue, files: SampleFiles, batch: Batch, lane: int) -> None:
        super().__init__(queue, [], batch.addresses, batch.sizes, files.unit)
        self._samples = batch.samples
        self._files = files
        self._lane = lane
        self._open: dict[int, int] = {}  # slot in the batch -> descriptor

    def open(self, slots: list[int]) -> list[int]:
        new = [slot for slot in slots if slot not in self._open]
        while new:
            found = self._open_files(new)
            opened, new = new[: found.size], new[found.size :]
            # A file that is empty, or of an unexpected size, need not be read.
            for index in np.flatnonzero((found == 0) | (found != self._sizes[opened])).tolist():
                self.got[opened[index]] = found[index]
                self.end([opened[index]])
            if self._open:  # the others can wait until one of these is read
                break
        return [self._open.get(slot, LATER if slot in new else -1) for slot in slots]

    def end(self, slots: list[int]) -> None:
        for slot in slots:
            if self.errors[slot] and os.fstat(self._open[slot]).st_size != self._sizes[slot]:
                # The read has failed because the file has become shorter, as with "emu".
                self.errors[slot], self.got[slot] = 0, -1
        close_all(map(self._open.pop, slots))

    def close(self) -> None:
        """Close files still open."""
        close_all(self._open.values())
        self._open.clear()

    def _open_files(self, slots: list[int]) -> IntArray:
        """Open the first k files, at least one if none is open; int64[k], their sizes in bytes."""
        samples, wait = self._samples[slots], not self._open
        fds: list[int] = []
        try:
            paths = self._files.open(fds, samples, self._lane, wait=wait)
            return self._files.sizes_now(fds, paths)
        finally:
            self._open.update(zip(slots, fds, strict=False))
