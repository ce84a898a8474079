"""Samples that an extent map tells the places of: what all readers of maps have in common."""

from __future__ import annotations

import errno
import os
import warnings
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from bmap_tools.extent_map import Device

from ..catalog import Catalog
from ..errors import BackendUnavailable, MapNotChecked, StaleMapError, os_error
from ..reader import Batch, IntArray
from . import _devices, _maps
from ._devices import Storage
from ._extents import Extents, Reads
from ._files import close_all, open_missing, regular_sizes
from ._freshness import Freshness
from ._maps import PathLike


class MappedSamples:
    """The samples of a catalog by a map: their sizes, their reads, and whether they are fresh.

    Attributes:
        map: the extent map.
        remedy: what a user is told to do about a stale map.
    """

    def __init__(self, catalog: Catalog, bmap: PathLike) -> None:
        """Load the map and find every sample in it. `attach()` makes it ready for batches.

        Raises:
            MapFormatError: the map cannot be believed.
            StaleMapError: there are samples that it does not have.
            OSError, TypeError: as `_maps.load()`.
        """
        self.map = _maps.load(bmap)
        self.remedy = _maps.renewal(self.map, bmap)
        self._catalog = catalog
        self._files = _maps.files_of(catalog, self.map, self.remedy)

    def attach(self, storage: Storage, unit: int, check: bool) -> None:
        """Say what the bytes are read from.

        Args:
            storage: the device, which stays the caller's.
            unit: bytes, as in `Extents`.
            check: compare samples with the map while the file system is mounted.

        Raises:
            StaleMapError: the directory of the catalog is not what was mapped.
            BackendUnavailable: some samples can be read as files only, and are not there.
        """
        self._storage = storage
        self._extents = Extents(self.map, storage.start, unit)
        obstacle = self._look_for_mount(storage)
        self._freshness: Freshness | None = None
        if not obstacle:
            freshness = Freshness(self.map, self.remedy)
            # Another directory of the same names must be found out even by those who do not check.
            freshness.check(self._files[:1], [self._catalog.path(0)])
            if check:
                freshness.check_all(self._files, self._catalog.paths)
                self._freshness = freshness
        self._as_files = self._find_unmapped(obstacle)
        if check and obstacle:
            warnings.warn(
                f"whether files were changed after they were mapped ({self.map.created}) cannot be "
                f"checked: the file system of {storage.path} is not mounted: {obstacle}",
                MapNotChecked,
                stacklevel=2,
            )

    @property
    def root(self) -> bytes:
        """The directory of the catalog."""
        return self._catalog.root or os.path.dirname(self._catalog.path(0)) or b"."

    def sizes(self, samples: IntArray) -> IntArray:
        """Their sizes in bytes, int64[n]."""
        return self._extents.sizes[self._files[samples]]

    def reads(self, batch: Batch) -> tuple[Reads, IntArray]:
        """What to read for a batch, and for which place in it: as `Extents.reads()`."""
        return self._extents.reads(batch, self._files[batch.samples])

    def finish(self, batch: Batch) -> None:
        """Fill in what is not read from the device, and refuse samples that are stale by now.

        To be called when the reads are done: what was read before a file was changed is right.

        Raises:
            StaleMapError, OSError: the first sample that cannot be given out; names its path.
        """
        files = self._files[batch.samples]
        self._extents.fill_gaps(batch, files)
        for place in np.flatnonzero(self._as_files[files]).tolist():
            self._read_as_file(batch, place)
        if self._freshness is not None:
            self._freshness.check(files, self._catalog.paths(batch.samples))

    def fail(self, batch: Batch, place: int, number: int, reads: Reads, what: str) -> NoReturn:
        """Raise the OSError of a failed read (one piece) of the sample at `place` in the batch."""
        position = int(reads.positions[0])
        logical = int(reads.memory[0]) - batch.buffer.ctypes.data - int(batch.offsets[place])
        hint = (
            f": {what}, {int(reads.lengths[0])} bytes at LBA {position // self._storage.block} of "
            f"{self._storage.path}, in {self._extent(batch, place, logical)}"
        )
        raise os_error(number, self._catalog.path(int(batch.samples[place])), hint)

    def _extent(self, batch: Batch, place: int, logical: int) -> str:
        file = int(self._files[batch.samples[place]])
        first, last = self.map.extent_offsets[file : file + 2].tolist()
        extents = self.map.extents[first:last]
        number = int(np.searchsorted(extents[:, 0], logical, "right")) - 1
        start, physical, length = extents[number].tolist()
        return f"extent {number} (logical {start}, physical {physical}, length {length})"

    def _look_for_mount(self, storage: Storage) -> str:
        """Why the mapped file system is not there; empty if it is, mounted from this storage."""
        on = _devices.mounted_device(self.map, self.root)
        if isinstance(on, Device):
            _devices.require_same(on, self.root, storage, self.remedy)
            return ""
        first = self._catalog.path(0)
        if os.path.lexists(first):
            raise StaleMapError(first, f"this is not the file that was mapped: {on}", self.remedy)
        return on

    def _find_unmapped(self, obstacle: str) -> npt.NDArray[np.bool_]:
        unmapped = np.zeros(len(self.map), bool)
        unmapped[list(self.map.unmapped)] = True
        samples = np.flatnonzero(unmapped[self._files])
        if samples.size and obstacle:
            path = os.fsdecode(self._catalog.path(int(samples[0])))
            reason = self.map.unmapped[int(self._files[samples[0]])]
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
            raise StaleMapError(path, what, self.remedy)


def _readv(fd: int, memory: memoryview, path: bytes) -> int:
    try:
        return os.readv(fd, [memory])
    except OSError as error:
        raise os_error(error.errno or errno.EIO, path) from None
