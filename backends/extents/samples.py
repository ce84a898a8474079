"""The samples of a catalog by an extent map: a batch is planned, submitted, checked, given out.

What a backend adds is how reads are submitted: a `Submit`, which is called for a whole batch.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable
from typing import NoReturn, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from bmap_tools.extent_map import Device

from ...catalog import Catalog
from ...errors import BackendUnavailable, MapNotChecked, os_error
from ...reader import Batch
from ..files.opening import close_all, open_missing, regular_sizes
from . import device
from .device import Storage
from .freshness import Freshness
from .map import LoadedMap, files_of
from .plan import Extents, Reads


class Completions(Protocol):
    """What came of n reads, when none of them is under way any more."""

    def failed(self) -> npt.NDArray[np.bool_]:
        """bool[n]: which of them failed, or came short."""

    def reason(self, number: int) -> tuple[int, str]:
        """Of one that failed: an errno, and what happened."""


Submit: TypeAlias = Callable[[Reads], Completions]
"""Makes reads and returns when none of them is under way any more."""


class MappedSamples:
    """The samples of a catalog, read by the extents of a map from a storage.

    Attributes:
        sizes: int64[n], bytes of every sample.
    """

    def __init__(
        self,
        catalog: Catalog,
        loaded: LoadedMap,
        storage: Storage,
        *,
        unit: int,
        max_transfer: int,
        retries: int,
        check: bool,
    ) -> None:
        """Find every sample in the map, and compare map and files while these are mounted.

        Args:
            catalog: the samples.
            loaded: the map.
            storage: the device, which stays the caller's.
            unit: bytes, as in `Extents`.
            max_transfer: bytes, the most that one read asks for.
            retries: how often a read that failed is submitted again.
            check: compare samples with the map while the file system is mounted.

        Raises:
            StaleMapError: samples are not in the map, or not as they were mapped; the directory of
                the catalog is not what was mapped.
            BackendUnavailable: some samples can be read as files only, and are not there.
        """
        self._catalog = catalog
        self._loaded = loaded
        self._map = loaded.map
        self._storage = storage
        self._max_transfer = max_transfer
        self._retries = retries
        self._files = files_of(catalog, loaded)
        self._extents = Extents(self._map, storage.start, unit)
        self.sizes = self._extents.sizes[self._files]
        obstacle = self._look_for_mount(storage)
        self._freshness: Freshness | None = None
        if not obstacle:
            freshness = Freshness(loaded)
            # Another directory of the same names must be found out even by those who do not check.
            freshness.check(self._files[:1], [catalog.path(0)])
            if check:
                freshness.check_all(self._files, catalog.paths)
                self._freshness = freshness
        self._as_files = self._find_unmapped(obstacle)
        if check and obstacle:
            warnings.warn(
                f"whether files were changed after they were mapped ({self._map.created}) cannot "
                f"be checked: the file system of {storage.path} is not mounted: {obstacle}",
                MapNotChecked,
                stacklevel=2,
            )

    def read(self, batch: Batch, submit: Submit) -> None:
        """Read a batch, and refuse samples that are stale by now.

        Raises:
            StaleMapError, OSError: the first sample that cannot be given out; names its path.
        """
        files = self._files[batch.samples]
        pieces, places = self._extents.reads(batch, files)
        bad, reasons = self._submit(pieces.merged().split(self._max_transfer), submit)
        for number in pieces.touched_by(bad).tolist():
            piece = pieces[number : number + 1]
            own = bad.within(piece)[:1]
            if own.size:
                self._fail(batch, int(places[number]), bad[own], *reasons[int(own[0])])
            # The read is for several samples. Whose bytes are bad, each of them alone tells.
            alone, why = self._submit(piece.split(self._max_transfer), submit)
            if why:
                self._fail(batch, int(places[number]), alone[:1], *why[0])
        self._extents.fill_gaps(batch, files)
        for place in np.flatnonzero(self._as_files[files]).tolist():
            self._read_as_file(batch, place)
        # When the reads are done: what was read before a file was changed is right.
        if self._freshness is not None:
            self._freshness.check(files, self._catalog.paths(batch.samples))

    def _submit(self, reads: Reads, submit: Submit) -> tuple[Reads, list[tuple[int, str]]]:
        """Make reads, again those that fail; which of them have failed for good, and why."""
        reasons: list[tuple[int, str]] = []
        for _ in range(1 + self._retries):
            done = submit(reads)
            failed = np.flatnonzero(done.failed())
            reasons = [done.reason(number) for number in failed.tolist()]
            reads = reads[failed]
            if not reasons:
                break
        return reads, reasons

    def _fail(self, batch: Batch, place: int, read: Reads, number: int, what: str) -> NoReturn:
        """Raise the OSError of a failed read (one) for the sample at `place` in the batch."""
        position = int(read.positions[0])
        logical = int(read.memory[0]) - batch.buffer.ctypes.data - int(batch.offsets[place])
        hint = (
            f": {what}, {int(read.lengths[0])} bytes at LBA {position // self._storage.block} of "
            f"{self._storage.path}, in {self._extent(batch, place, logical)}"
        )
        raise os_error(number, self._catalog.path(int(batch.samples[place])), hint)

    def _extent(self, batch: Batch, place: int, logical: int) -> str:
        file = int(self._files[batch.samples[place]])
        first, last = self._map.extent_offsets[file : file + 2].tolist()
        extents = self._map.extents[first:last]
        number = int(np.searchsorted(extents[:, 0], logical, "right")) - 1
        start, physical, length = extents[number].tolist()
        return f"extent {number} (logical {start}, physical {physical}, length {length})"

    def _look_for_mount(self, storage: Storage) -> str:
        """Why the mapped file system is not there; empty if it is, mounted from this storage."""
        root = directory_of(self._catalog)
        on = device.mounted_device(self._map, root)
        if isinstance(on, Device):
            device.require_same(on, root, storage, self._loaded)
            return ""
        first = self._catalog.path(0)
        if os.path.lexists(first):
            raise self._loaded.stale(first, f"this is not the file that was mapped: {on}")
        return on

    def _find_unmapped(self, obstacle: str) -> npt.NDArray[np.bool_]:
        unmapped = np.zeros(len(self._map), bool)
        unmapped[list(self._map.unmapped)] = True
        samples = np.flatnonzero(unmapped[self._files])
        if samples.size and obstacle:
            path = os.fsdecode(self._catalog.path(int(samples[0])))
            reason = self._map.unmapped[int(self._files[samples[0]])]
            raise BackendUnavailable(
                f"{samples.size} samples can only be read as files, {path!r} first ({reason}), and "
                f"their file system is not mounted: {obstacle}"
            )
        return unmapped

    def _read_as_file(self, batch: Batch, place: int) -> None:
        path = self._catalog.path(int(batch.samples[place]))
        size, start = int(batch.sizes[place]), int(batch.offsets[place])
        fds = [-1]
        try:
            open_missing(fds, [path], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            whole = int(regular_sizes(fds, [path], local=False)[0]) == size
            memory = batch.buffer.data[start : start + size]
            while whole and memory.nbytes:
                got = _readv(fds[0], memory, path)
                whole, memory = got > 0, memory[got:]
        finally:
            close_all(fds)
        if not whole:
            what = f"the file has changed since it was mapped: its size was {size}"
            raise self._loaded.stale(path, what)


def directory_of(catalog: Catalog) -> bytes:
    """The directory of a catalog."""
    return catalog.root or os.path.dirname(catalog.path(0)) or b"."


def _readv(fd: int, memory: memoryview, path: bytes) -> int:
    try:
        return os.readv(fd, [memory])
    except OSError as error:
        raise os_error(error.errno or errno.EIO, path) from None
