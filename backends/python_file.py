"""Files through the operating system: works everywhere a file can be opened."""

from __future__ import annotations

import errno
import mmap
import os
import stat

import numpy as np
import numpy.typing as npt

from .._types import IntArray
from ..catalog import Catalog
from ..errors import BackendUnavailable, SampleSizeChanged, os_error
from ..options import require_flag, require_integer
from ..reader import Batch, Reader
from .files.opening import close_all
from .files.samples import FILES_AT_ONCE, SampleFiles
from .linux import aio
from .linux.libc import IOVEC

_CACHE_LINE = 64  # bytes; the kernel copies to such an address a fifth faster than to any other
_DIRECT_ALIGNMENT = 4096  # bytes; a multiple of the logical block of every disk


class PythonFileReader(Reader):
    """Reads each sample's file whole, through the page cache or around it.

    The files of a part of a batch are opened, read by one submission of kernel AIO, and closed. A
    read asks for one byte (or block) more than the file had when it was sized, so that its result
    tells whether the size is still right, and no file needs a system call for that.

    Through the page cache the submission is made twice: first for what is cached (RWF_NOWAIT),
    which also makes the kernel start reading what is not, of all files at once; then, waiting, for
    the rest.
    """

    cooperative = True

    def __init__(self, catalog: Catalog, *, direct: bool = False, lanes: int = 3) -> None:
        """Open nothing yet but the kernel's contexts; files are opened when they are read.

        Args:
            catalog: the samples; their paths are opened as they are when they are read.
            direct: read around the page cache (O_DIRECT): for data sets larger than memory, or
                memory needed elsewhere. Costs less CPU a byte, but every epoch reads the disk.
            lanes: batches read at once, 1 to 64, when the disk is waited for. What is cached, one
                lane reads.

        Raises:
            ValueError, TypeError: a wrong option.
            OSError: `direct` on a file system that has no O_DIRECT.
            BackendUnavailable: no kernel AIO.
        """
        require_flag("python-file", "direct", direct)
        require_integer("python-file", "lanes", lanes, range(1, 65))
        self.lanes = lanes
        self.alignment = _DIRECT_ALIGNMENT if direct else _CACHE_LINE
        self._catalog = catalog
        flags = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | (os.O_DIRECT if direct else 0)
        self._files = SampleFiles(catalog, flags)
        self._direct = direct
        self._overflow = self.allocate(_DIRECT_ALIGNMENT)
        if direct and len(catalog):
            self._files.require_direct()
        aio.require(FILES_AT_ONCE)

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        return aio.unavailable()

    def sizes(self, samples: IntArray) -> IntArray:
        return self._files.sizes(samples, self.yield_turn)

    def read(self, batch: Batch, lane: int) -> None:
        found = np.empty_like(batch.sizes)
        for start in range(0, batch.samples.size, FILES_AT_ONCE):
            part = slice(start, start + FILES_AT_ONCE)
            found[part] = self._read_files(batch, part)
        changed = batch.samples[found != batch.sizes]
        if changed.size:
            self._files.forget(changed)
            raise SampleSizeChanged(changed)

    def close(self) -> None:
        self._files.close()

    def _read_files(self, batch: Batch, part: slice) -> IntArray:
        """Read files whole; int64[n], how many bytes each gave: more than its size if it grew."""
        paths = self._catalog.paths(batch.samples[part])
        unit = self.alignment if self._direct else 1
        reads = _Reads(batch.sizes[part], self._iovecs(batch, part, unit), unit)
        fds = self._files.take(batch.samples[part])
        try:
            all_open = self._files.open_cached(fds, paths)
            if all_open and not self._direct:
                reads.read_cached(fds)
            if not reads.done.all():
                self.yield_turn()
                self._files.open_missing(fds, paths)
                if not all_open and not self._direct:
                    reads.read_cached(fds)
                reads.read_rest(fds)
            for failed in np.flatnonzero(reads.errors)[:1].tolist():
                raise self._failure(fds[failed], paths[failed], int(reads.errors[failed]))
        finally:
            close_all(fds)
        return reads.got

    def _iovecs(self, batch: Batch, part: slice, unit: int) -> npt.NDArray[np.void]:
        """Two pieces a sample: its place in the buffer, and one unit more, to see it grow."""
        iovecs = np.empty((batch.sizes[part].size, 2), IOVEC)
        iovecs["base"][:, 0] = batch.buffer.ctypes.data + batch.offsets[part]
        iovecs["len"][:, 0] = -(-batch.sizes[part] // unit) * unit
        iovecs["base"][:, 1] = self._overflow.ctypes.data  # what lands here is never looked at
        iovecs["len"][:, 1] = unit
        return iovecs

    def _failure(self, fd: int, path: bytes, number: int) -> OSError:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return os_error(errno.EISDIR, path)  # AIO calls it an invalid argument
        hint = "; the python-file option direct=False reads it through the page cache"
        return os_error(number, path, hint if self._direct and number == errno.EINVAL else "")


class _Reads:
    """Files on their way into memory.

    Attributes:
        got: int64[n], how many bytes have come from each so far.
        errors: int64[n], errno of each, 0 where there is none.
        done: bool[n], whether each is at its end, as it is now, or beyond the size it had.
    """

    def __init__(self, sizes: IntArray, iovecs: npt.NDArray[np.void], unit: int) -> None:
        """`unit`: what offsets must be multiples of, in bytes."""
        self.got = np.zeros_like(sizes)
        self.errors = np.zeros_like(sizes)
        self.done = np.zeros(sizes.shape, bool)
        self._sizes = sizes
        self._iovecs = iovecs
        self._unit = unit

    def read_cached(self, fds: list[int]) -> None:
        """Read what is in the page cache, and make the kernel fetch what is not."""
        self._read(fds, np.flatnonzero(~self.done), os.RWF_NOWAIT)
        # It stops at the first page that is not cached, as it does at the end of the file. That it
        # was the end is sure where the byte behind it would be on the same page. Elsewhere a read
        # that may wait tells; at the end of a file it does not wait.
        whole = self.got == self._sizes
        self.done |= (whole & (self._sizes % mmap.PAGESIZE != 0)) | (self.got > self._sizes)
        self._read(fds, np.flatnonzero(whole & ~self.done), 0)

    def read_rest(self, fds: list[int]) -> None:
        """Read until each file is at its end; a read that gives little is not yet the end."""
        while (places := np.flatnonzero(~self.done)).size:
            self._read(fds, places, 0)

    def _read(self, fds: list[int], places: IntArray, rw_flags: int) -> None:
        if not places.size:
            return
        rest, got = self._iovecs[places], self.got[places]
        rest["base"][:, 0] += got.astype(np.uint64)
        rest["len"][:, 0] -= got.astype(np.uint64)
        more = aio.read(FILES_AT_ONCE, np.array(fds)[places], rest, got, rw_flags)
        self.got[places] = got = got + np.maximum(more, 0)
        if not rw_flags & os.RWF_NOWAIT:  # what fails there will fail, or not, when waited for
            self.errors[places] = np.maximum(-more, 0)
            self.done[places] = (more <= 0) | (got > self._sizes[places]) | (got % self._unit != 0)
