"""Files read through the operating system, on any file system."""

from __future__ import annotations

import errno
import os
import stat
import warnings
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from ..contract._types import IntArray, address_of
from ..contract.catalog import Catalog
from ..contract.errors import BackendUnavailable, NotMapped
from ..contract.options import Choice, Option, check_options
from ..contract.ranges import Spans
from ..contract.reader import Batch, Reader
from ..contract.reader import copying_lanes as default_copying_lanes
from ..contract.stages import enter
from ..contract.views import FindViews
from ..runtime.machine import processors
from .files.opening import open_files
from .files.samples import FILES_AT_ONCE, SampleFiles
from .linux import engines, uring
from .linux.libc import make_iovecs
from .linux.transfers import LARGE, Transfers

if TYPE_CHECKING:
    from ..contract.devices import DeviceStatus
    from .files.mapped import MappedFiles
    from .files.spans import ContainerBatches

_NAME = "python-file"
_FAR_LANES = 16  # where each request has to wait for a network
_Io: TypeAlias = engines.Io | Literal["read", "mmap"]


class PythonFileReader(Reader):
    """A reader of whole files, or ranges of containers, through the page cache or around it.

    Up to 256 whole files are opened, read and closed by one submission of io_uring; or up to 64 are
    opened, read by one of kernel AIO and closed. Containers stay open, and are checked for changes
    after the reads of every batch.

    Containers on a local file system are mapped, so that batches are views, if all samples fit the
    page cache.

    Attributes:
        io: the way to read files that are not mapped, "io_uring", "aio" or "preadv".
    """

    cooperative = True
    lanes = 3
    reads_ranges = True
    views: FindViews | None = None

    @check_options(_NAME)
    def __init__(
        self,
        catalog: Catalog,
        *,
        direct: Annotated[bool | None, Option((True, False))] = None,
        lanes: Annotated[int | None, Option(range(1, 65))] = None,
        io: Annotated[_Io | None, Option((*get_args(engines.Io), "read", "mmap"))] = None,
        copying_lanes: Annotated[int | None, Option(range(1, 65))] = None,
    ) -> None:
        """Open no file yet: files are opened by reads.

        Args:
            catalog: the samples.
            direct: read around the page cache (O_DIRECT): if the memory is needed elsewhere. Needs
                less CPU per byte, but every epoch reads from the disk. None: only what does not fit
                into the page cache, of a data set on a local disk.
            lanes: batches read at once while blocked on the disk. None: 3 on local file systems, 16
                on all others, or fewer if `buffer_bytes` of the reader does not hold so many.
            io: "io_uring": many small whole files by one system call. "aio": many reads by one call
                of kernel AIO. "preadv": one read after the other, slower. "read": the first that
                works, "preadv" with a RuntimeWarning. "mmap": maps of containers
                (docs/containers.md), or "read" with a `NotMapped` warning. None: "mmap" for
                containers on local disks that fit the page cache, else "read".
            copying_lanes: how many lanes may copy out of the page cache at the same time. None,
                whole files: 1 on up to 3 processors, 3 from 8 on, else 2; ranges: all processors.

        Raises:
            ValueError, TypeError: a wrong option; "io_uring" for ranges; "mmap" with `direct`, for
                whole files, or for more containers than a quarter of vm.max_map_count.
            OSError: `direct` on a file system without O_DIRECT.
            BackendUnavailable: `io` does not work on this machine.
        """
        if io == "mmap" and direct:
            what = "io='mmap' and direct=True exclude each other"
            raise ValueError(f"{_NAME}: {what}; leave out one of them")
        self._whole = catalog.ranges is None
        if io == "io_uring" and not self._whole:
            what = "io='io_uring' is for whole files: kernel AIO reads open containers faster"
            raise ValueError(f"{_NAME}: {what}; leave out io")
        engine = None if io in ("mmap", "read") else cast(engines.Io | None, io)
        self.io, self._engine = engines.choose(_NAME, engine, FILES_AT_ONCE, whole=self._whole)
        self._catalog = catalog
        self.choices = self._chosen = chosen = dict[str, Choice[Any]]()
        if io is None:
            what = "whole files" if self._whole else "containers"
            chosen["io"] = Choice(self.io, f"the first that works for {what}")
        if copying_lanes is None and self._whole:
            chosen["copying_lanes"] = default_copying_lanes(processors())
        elif copying_lanes is None:
            # These lanes seldom need the interpreter lock, and copy while DALI's threads wait for
            # them: 1.3 to 1.5 times as fast on two processors as one lane.
            copying_lanes = processors()
            chosen["copying_lanes"] = Choice(copying_lanes, "all processors copy ranges")
        self.copying_lanes = copying_lanes
        around = False if io == "mmap" else direct
        self._files = SampleFiles(catalog, direct=around, by_ring=self.io == "io_uring")
        if direct is None and io != "mmap":
            share = self._files.share
            chosen["direct"] = Choice(share.value < 1, share.why)
        if lanes is None:
            local = Choice(self.lanes, "a local file system")
            far = Choice(_FAR_LANES, "not a known local one")
            chosen["lanes"] = local if self._files.local else far
            lanes = chosen["lanes"].value
        self.lanes = lanes
        self.alignment = self._files.alignment
        self.unit = self._files.unit
        # Shared by all lanes, because nobody looks at these bytes.
        self._overflow = self.allocate(self._files.unit)
        self._spans = None if self._whole else self._open_spans()
        self._mapped, self._must_map = None, io == "mmap"
        try:
            self._mapped = self._map(io, direct)
        except BackendUnavailable as problem:
            self.without_views(str(problem))
        if self._mapped is not None:
            self.views = self._mapped.views

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        # The constructor falls back on preadv.
        return engines.missing("preadv", FILES_AT_ONCE) and engines.missing("aio", FILES_AT_ONCE)

    @classmethod
    def devices(cls) -> Iterable[DeviceStatus]:
        from ..contract.devices import DeviceStatus
        from .linux import mapping

        return (
            DeviceStatus("io='io_uring'", "files in one system call", uring.unavailable()),
            DeviceStatus("io='mmap'", "maps of containers", mapping.missing()),
        )

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return self._files.sizes(samples, lane)

    def read(self, batch: Batch, lane: int) -> None:
        if self._spans is not None:
            self._spans.fill(batch, lane, partial(self._transfer, batch))
            return
        found = self._by_ring(batch, lane)
        # Whatever is not as expected is read again: that gives the error, or the new size.
        left = np.flatnonzero(found != batch.sizes)
        while left.size:
            got = self._by_descriptors(batch, left[:FILES_AT_ONCE], lane)
            found[left[: got.size]] = got
            left = left[got.size :]
        self._files.require_sizes(batch, found)

    def hot(self, samples: IntArray) -> bool:
        return self._mapped is not None and self._mapped.hot(samples)

    def without_views(self, why: str) -> None:
        if not self._must_map:
            self._chosen["io"] = Choice(self.io, f"containers are read: {why}")
            return
        what = f"{_NAME}: batches are copied despite io='mmap': {why}"
        warnings.warn(f"{what}; leave out io to silence this warning", NotMapped, stacklevel=4)

    def close(self) -> None:
        self._files.close()
        if self._spans is not None:
            self._spans.close()
        if self._mapped is not None:
            self._mapped.close()

    # Imported where they are needed: whole files need neither.

    def _open_spans(self) -> ContainerBatches:
        from .files.spans import ContainerBatches

        return ContainerBatches(self._catalog, self._files, self.lanes)

    def _map(self, io: _Io | None, direct: bool | None) -> MappedFiles | None:
        """Return the maps; None if containers are to be read. Raises BackendUnavailable if not."""
        if io != "mmap" and (io is not None or self._whole):
            return None
        from .files.mapped import MappedFiles

        if io == "mmap":
            return MappedFiles(self._catalog, self._spans)
        if direct is not None:
            raise BackendUnavailable("the option direct is given")
        if self._files.share.value < 1:
            raise BackendUnavailable(self._files.share.why)
        try:
            mapped = MappedFiles(self._catalog, self._spans, or_read=True)
        except ValueError as problem:
            raise BackendUnavailable(str(problem)) from None
        self._chosen["io"] = Choice("mmap", "containers on local disks, in the page cache")
        return mapped

    def _transfer(self, batch: Batch, spans: Spans, fds: IntArray) -> tuple[IntArray, IntArray]:
        """See `spans.Transfer`."""
        iovecs = make_iovecs((address_of(batch.buffer) + spans.offsets, spans.sizes))
        transfers = Transfers(self._engine, fds, iovecs, spans.starts, spans.needed, self.unit)
        transfers.complete(cached_first=self._files.cached(spans.files, spans.starts))
        return transfers.got, transfers.errors

    def _iovecs(self, batch: Batch, part: IntArray | slice) -> npt.NDArray[np.void]:
        """The memory of some files of a batch, and behind it one byte or block more for each.

        So a grown file shows without another system call.
        """
        addresses = address_of(batch.buffer) + batch.offsets[part]
        behind = address_of(self._overflow), self.unit
        return make_iovecs((addresses, batch.spans.sizes[part]), behind)

    def _by_ring(self, batch: Batch, lane: int) -> IntArray:
        """Open, read and close the files that are not large by io_uring, without descriptors.

        Returns the bytes read of each file, int64[n]; negative if not read.
        """
        found = np.full_like(batch.sizes, -1)
        if not self._files.by_ring or self._files.keeps(lane) or (ring := uring.ring()) is None:
            return found
        small = np.flatnonzero(batch.sizes < LARGE)
        samples, iovecs = batch.samples[small], self._iovecs(batch, small)
        paths, flags = self._catalog.paths(samples), self._files.flags_of(samples)
        for start in range(0, small.size, ring.files):
            part = slice(start, start + ring.files)
            found[small[part]] = ring.read_files(paths[part], flags[part], iovecs[part])
        return found

    def _by_descriptors(self, batch: Batch, part: IntArray, lane: int) -> IntArray:
        """Read the files at some places of the batch, as many as can be open at once.

        Returns the bytes read of each of k files, int64[k]: more than the size of a grown file.
        """
        samples = batch.samples[part]
        with open_files() as fds:
            enter("opening")
            self._files.open(fds, samples, lane)
            enter("reading")
            part = part[: len(fds)]
            iovecs, starts = self._iovecs(batch, part), batch.spans.starts[part]
            sizes = batch.sizes[part]
            transfers = Transfers(self._engine, fds, iovecs, starts, sizes, self.unit, to_end=True)
            transfers.complete(cached_first=self._files.cached(samples[: len(fds)]))
            for failed in transfers.errors.nonzero()[0][:1].tolist():
                is_directory = stat.S_ISDIR(os.fstat(fds[failed]).st_mode)  # AIO reports EINVAL
                number = errno.EISDIR if is_directory else int(transfers.errors[failed])
                raise self._files.read_error(number, int(samples[failed]))
            return transfers.got
