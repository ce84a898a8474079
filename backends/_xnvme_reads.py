"""Whole files, and those of the samples of a batch, for a `FileQueue` to read."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..catalog import Catalog
from ..reader import Batch, IntArray
from ._files import close_all
from ._open_files import SampleFiles
from ._xnvme_files import FileQueue
from ._xnvme_queue import Work
from ._xnvme_status import explain

_MOST = 1 << 30  # bytes that one command asks for; the kernel reads no more than 2 GiB at once


class FileReads(Work):
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
        """The descriptors of files, which may be open already; -1 where nothing is to be read."""

    @abstractmethod
    def end(self, numbers: list[int]) -> None:
        """Learn that files need not be open any longer: they are read, or have failed."""

    def submit(self, numbers: list[int], contexts: list[int]) -> list[int]:
        fds = self.open(numbers)
        got = self.got[numbers]
        memory = self._memory[numbers] + got
        nbytes = np.minimum(self._rounded[numbers] - got, _MOST)
        return self._queue.submit(contexts, fds, memory.tolist(), nbytes.tolist(), got.tolist())

    def finish(
        self, numbers: IntArray, results: IntArray, statuses: npt.NDArray[np.uint16]
    ) -> list[int]:
        got = self.got[numbers] + results  # 0 of what failed
        self.got[numbers] = got
        if not statuses.any() and (got == self._sizes[numbers]).all():
            self.end(numbers.tolist())
            return []
        failed = statuses != 0
        for place in np.flatnonzero(failed).tolist():
            self.errors[numbers[place]], _ = explain(int(statuses[place]), self._queue.io)
        # A read that gives little is not yet the end; one that gives part of a unit is.
        more = ~failed & (results > 0) & (got < self._sizes[numbers]) & (got % self._unit == 0)
        self.end(numbers[~more].tolist())
        again: list[int] = numbers[more].tolist()
        return again

    def refuse(self, number: int, error: int) -> None:
        self.errors[number] = error
        self.end([number])


class SampleReads(FileReads):
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
