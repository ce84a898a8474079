"""Files through the operating system: works wherever files can be opened."""

import errno
import mmap
import os
import stat
import warnings
from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from .._types import IntArray, address_of
from ..catalog import Catalog
from ..errors import BackendUnavailable
from ..reader import Batch, Reader
from .files.opening import open_files
from .files.samples import FILES_AT_ONCE, SampleFiles, require_file_options
from .linux import aio, preadv
from .linux.libc import IOVEC

_Read: TypeAlias = Callable[[npt.ArrayLike, npt.NDArray[np.void], npt.ArrayLike, int], IntArray]


class PythonFileReader(Reader):
    """Reads whole files, through the page cache or around it.

    It opens up to 64 files, reads them by one submission of kernel AIO, closes them, and goes on
    with the next. Each read asks for one byte (or one block) more than the file had when it was
    sized. Its result then shows whether the size still holds, without another system call.

    Through the page cache, the reads are submitted twice. The first submission must not block
    (RWF_NOWAIT): it reads what is cached, and makes the kernel read ahead in all files at once. The
    second one may block and reads the rest.

    Attributes:
        io: how files are read, "aio" or "preadv".
    """

    cooperative = True

    def __init__(
        self,
        catalog: Catalog,
        *,
        direct: bool = False,
        lanes: int = 3,
        io: Literal["aio", "preadv"] | None = None,
        copying_lanes: int | None = None,
    ) -> None:
        """Open no file yet: files are opened when they are read.

        Args:
            catalog: the samples.
            direct: read around the page cache (O_DIRECT): for data sets larger than memory, or if
                the memory is needed elsewhere. It takes less CPU per byte, but every epoch reads
                from the disk.
            lanes: how many batches are read at once while they block on the disk, from 1 to 64.
            io: "aio" submits many reads at once to the kernel's asynchronous I/O. "preadv" reads
                one file after the other in each lane; it is slower, above all with `direct`, and
                gains from more `lanes`. None: "aio" where it works, otherwise "preadv" with a
                RuntimeWarning.
            copying_lanes: how many lanes may copy out of the page cache at once, from 1 to 64.
                None: as many as DALI's threads leave processors over, at least one.

        Raises:
            ValueError, TypeError: a wrong option.
            OSError: `direct` on a file system that does not support O_DIRECT.
            BackendUnavailable: `io` does not work on this machine.
        """
        require_file_options("python-file", direct, lanes, copying_lanes)
        if io not in (None, "aio", "preadv"):
            raise ValueError(f"python-file: io must be one of aio, preadv, not {io!r}")
        self.io = _choose_io(io)
        self._read: _Read = partial(aio.read, FILES_AT_ONCE) if self.io == "aio" else preadv.read
        self.lanes = lanes
        self.copying_lanes = copying_lanes
        self._files = SampleFiles(catalog, direct=direct)
        self.alignment = self._files.alignment
        self._direct = direct
        self._overflow = self.allocate(self._files.unit)

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        return _missing("preadv") and _missing("aio")  # the constructor falls back on preadv

    def sizes(self, samples: IntArray) -> IntArray:
        return self._files.sizes(samples, self.yield_turn)

    def read(self, batch: Batch, lane: int) -> None:
        found, start = np.empty_like(batch.sizes), 0
        while start < found.size:
            got = self._read_files(batch, start)
            found[start : start + got.size] = got
            start += got.size
        self._files.require_sizes(batch, found)

    def close(self) -> None:
        self._files.close()

    def _read_files(self, batch: Batch, start: int) -> IntArray:
        """Read files from slot `start` of the batch on, as many as can be open at once.

        Returns the bytes that each of k files had, int64[k]: more than its size if it has grown.
        """
        samples = batch.samples[start : start + FILES_AT_ONCE]
        with open_files() as fds:
            self._files.open(fds, samples, self.yield_turn)
            part = slice(start, start + len(fds))
            iovecs = self._iovecs(batch, part)
            reads = _Reads(self._read, fds, iovecs, batch.sizes[part], self._files.unit)
            if not self._direct:
                reads.read_cached()
            if not reads.done.all():
                self.yield_turn()
                reads.read_rest()
            for failed in np.flatnonzero(reads.errors)[:1].tolist():
                is_directory = stat.S_ISDIR(os.fstat(fds[failed]).st_mode)  # AIO reports EINVAL
                number = errno.EISDIR if is_directory else int(reads.errors[failed])
                raise self._files.read_error(number, int(samples[failed]))
            return reads.got

    def _iovecs(self, batch: Batch, part: slice) -> npt.NDArray[np.void]:
        """IOVEC[n, 2]: the memory of each sample, and one unit more to see if it has grown."""
        unit = self._files.unit
        iovecs = np.empty((batch.sizes[part].size, 2), IOVEC)
        iovecs["base"][:, 0] = batch.addresses[part]
        iovecs["len"][:, 0] = -(-batch.sizes[part] // unit) * unit
        iovecs["base"][:, 1] = address_of(self._overflow)  # its contents are never used
        iovecs["len"][:, 1] = unit
        return iovecs


def _choose_io(io: Literal["aio", "preadv"] | None) -> Literal["aio", "preadv"]:
    missing = _missing(io or "aio")
    if missing is None:
        return io or "aio"
    if io is None and _missing("preadv") is None:
        what = f"python-file: reading by preadv, which is slower: {missing}"
        warnings.warn(what, RuntimeWarning, stacklevel=3)
        return "preadv"
    other = "aio" if io == "preadv" else "preadv"
    remedy = f"{missing.remedy}; or use the python-file option io={other!r}"
    raise BackendUnavailable(missing.reason, remedy)


def _missing(io: str) -> BackendUnavailable | None:
    """Why `io` does not work here; None if it does."""
    return aio.unavailable(FILES_AT_ONCE) if io == "aio" else preadv.unavailable()


class _Reads:
    """The reads of n open files.

    Attributes:
        got: int64[n], bytes read of each so far.
        errors: int64[n], errno of each; 0 if it has not failed.
        done: bool[n], whether each has reached its current end, or has grown.
    """

    def __init__(
        self, read: _Read, fds: list[int], iovecs: npt.NDArray[np.void], sizes: IntArray, unit: int
    ) -> None:
        """`unit`: bytes; what offsets must be multiples of."""
        self.got = np.zeros_like(sizes)
        self.errors = np.zeros_like(sizes)
        self.done = np.zeros(sizes.shape, bool)
        self._by = read
        self._fds = np.array(fds)
        self._iovecs = iovecs
        self._sizes = sizes
        self._unit = unit

    def read_cached(self) -> None:
        """Read what is in the page cache, and make the kernel read ahead what is not."""
        self._read(np.flatnonzero(~self.done), os.RWF_NOWAIT)
        # The read stops at the first page that is not cached, and at the end of the file. It was
        # the end for certain if the next byte would be on the same page. Otherwise a read that may
        # block decides; it does not block at the end of a file.
        whole = self.got == self._sizes
        self.done |= (whole & (self._sizes % mmap.PAGESIZE != 0)) | (self.got > self._sizes)
        self._read(np.flatnonzero(whole & ~self.done), 0)

    def read_rest(self) -> None:
        """Read each file to its end. A short read need not be the end."""
        while (indices := np.flatnonzero(~self.done)).size:
            self._read(indices, 0)

    def _read(self, indices: IntArray, rw_flags: int) -> None:
        if not indices.size:
            return
        rest, got = self._iovecs[indices], self.got[indices]
        rest["base"][:, 0] += got.astype(np.uint64)
        rest["len"][:, 0] -= got.astype(np.uint64)
        more = self._by(self._fds[indices], rest, got, rw_flags)
        self.got[indices] = got = got + np.maximum(more, 0)
        if not rw_flags & os.RWF_NOWAIT:  # whatever failed without blocking is tried again
            self.errors[indices] = np.maximum(-more, 0)
            at_end = (more <= 0) | (got > self._sizes[indices]) | (got % self._unit != 0)
            self.done[indices] = at_end
