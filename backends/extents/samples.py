"""A batch of mapped samples: planned, submitted, retried, blamed, filled and checked.

A backend adds only how its engine reads: a `Submit`, called once per batch and attempt.
"""

import os
import warnings
from collections.abc import Callable
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from bmap_tools.extent_map import Device

from ..._types import IntArray
from ...catalog import Catalog
from ...errors import BackendUnavailable, MapNotChecked, named, os_error
from ...reader import Batch
from ..files.opening import open_files, open_missing, regular_sizes
from ..linux.storage import Storage
from . import device
from .freshness import Freshness
from .map import LoadedMap, files_of
from .plan import Extents, Reads

_PAGE = 4096  # bytes; smaller reads save nothing


Failures: TypeAlias = dict[int, tuple[int, str]]
"""Of each read that failed or was short, by its index: errno, what happened, and its bytes."""

Submit: TypeAlias = Callable[[Reads], Failures]
"""Makes reads; returns when none of them is under way any more."""


class MappedSamples:
    """The samples of a catalog, read by the extents of a map.

    Attributes:
        sizes: int64[n], bytes of every sample.
        alignment: bytes, as of a `Reader`.
    """

    def __init__(
        self,
        catalog: Catalog,
        loaded: LoadedMap,
        storage: Storage,
        start: int,
        *,
        max_transfer: int,
        retries: int,
        check: bool,
    ) -> None:
        """Find every sample in the map, and compare map and files if these are mounted.

        The mapped file system begins at `start` (bytes) of the storage. A failed read is submitted
        again `retries` times. The other options are those of `BlockReader`.
        """
        self.alignment = max(_PAGE, storage.alignment)
        self._catalog = catalog
        self._loaded = loaded
        self._map = loaded.map
        self._storage = storage
        self._max_transfer = max_transfer
        self._retries = retries
        self._files = files_of(catalog, loaded)
        self._extents = Extents(self._map, start, self.alignment)
        self.sizes = self._extents.sizes[self._files]
        not_mounted = self._find_mount()
        self._freshness: Freshness | None = None
        if not not_mounted:
            freshness = Freshness(loaded)
            # Even without the check, another directory with the same names is refused.
            freshness.check(self._files[:1], [catalog.path(0)])
            if check:
                freshness.check_all(self._files, catalog.paths)
                self._freshness = freshness
        self._is_unmapped = self._find_unmapped(not_mounted)
        if check and not_mounted:
            what = f"whether files have changed since they were mapped ({self._map.created})"
            where = f"the file system of {storage.path} is not mounted: {not_mounted}"
            warnings.warn(f"cannot check {what}: {where}", MapNotChecked, stacklevel=2)

    def read(self, batch: Batch, submit: Submit) -> None:
        """Read a batch, or raise the error of the first sample that fails or is stale."""
        files = self._files[batch.samples]
        planned, slots = self._extents.reads(batch, files)
        commands = planned.coalesced().split(self._max_transfer)
        if failures := submit(commands):
            failed, reasons = commands[np.array([*failures])], [*failures.values()]
            self._retry(batch, planned, slots, failed, reasons, submit)
        self._extents.zero_holes(batch, files)
        for slot in np.flatnonzero(self._is_unmapped[files]).tolist():
            self._read_as_file(batch, slot)
        # After the reads: bytes that were read before a file was changed are right.
        if self._freshness is not None:
            self._freshness.check(files, self._catalog.paths(batch.samples))

    def _retry(
        self,
        batch: Batch,
        planned: Reads,
        slots: IntArray,
        failed: Reads,
        reasons: list[tuple[int, str]],
        submit: Submit,
    ) -> None:
        """Read again what has failed, one command at a time.

        A command may be for several samples, and the kernel merges neighbouring commands and fails
        them together. So only a command that is submitted alone shows whose bytes cannot be read.
        """
        for index in planned.overlapping(failed).tolist():
            read, slot = planned[index : index + 1], int(slots[index])
            own = failed.within(read)[:1]
            if own.size and not self._retries:
                self._fail(batch, slot, failed[own], *reasons[int(own[0])])
            parts = read.split(self._max_transfer)
            for part in (parts[number : number + 1] for number in range(len(parts))):
                for _ in range(max(self._retries, 1)):
                    if not (failures := submit(part)):
                        break
                else:
                    self._fail(batch, slot, part, *failures[0])

    def _fail(self, batch: Batch, slot: int, read: Reads, number: int, what: str) -> NoReturn:
        """Raise the OSError of a failed read (one) for the sample in a slot of the batch."""
        lba = int(read.offsets[0]) // (self._storage.logical_block_size or self._storage.alignment)
        logical = int(read.memory[0] - batch.addresses[slot])
        where = f"at LBA {lba} of {self._storage.path} ({self._extent(batch, slot, logical)})"
        path = self._catalog.path(int(batch.samples[slot]))
        raise os_error(number, path, f": {what} {where}")

    def _extent(self, batch: Batch, slot: int, logical: int) -> str:
        """The extent with an offset into the sample of a slot."""
        file = int(self._files[batch.samples[slot]])
        first, last = self._map.extent_offsets[file : file + 2].tolist()
        extents = self._map.extents[first:last]
        index = int(np.searchsorted(extents[:, 0], logical, "right")) - 1
        start, physical, length = extents[index].tolist()
        return f"extent {index}, logical {start}, physical {physical}, length {length}"

    def _find_mount(self) -> str:
        """Why the mapped file system is not mounted; empty if it is, and from this storage."""
        root = directory_of(self._catalog)
        on = device.mounted_device(self._map, root)
        if isinstance(on, Device):
            device.require_mounted_from(on, root, self._storage, self._loaded)
            return ""
        first = self._catalog.path(0)
        if os.path.lexists(first):
            raise self._loaded.stale(first, f"this is not the file that was mapped: {on}")
        return on

    def _find_unmapped(self, not_mounted: str) -> npt.NDArray[np.bool_]:
        """bool[files]: which files of the map have no extents and are read as files."""
        unmapped = np.zeros(len(self._map), bool)
        unmapped[list(self._map.unmapped)] = True
        samples = np.flatnonzero(unmapped[self._files])
        if samples.size and not_mounted:
            path = os.fsdecode(self._catalog.path(int(samples[0])))
            reason = self._map.unmapped[int(self._files[samples[0]])]
            what = f"{samples.size} samples can only be read as files, {path!r} first ({reason})"
            where = f"their file system is not mounted: {not_mounted}"
            raise BackendUnavailable(f"{what}, and {where}")
        return unmapped

    def _read_as_file(self, batch: Batch, slot: int) -> None:
        path = self._catalog.path(int(batch.samples[slot]))
        size, start = int(batch.sizes[slot]), int(batch.offsets[slot])
        with open_files() as fds:
            fds.append(-1)
            open_missing(fds, [path], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            whole = int(regular_sizes(fds, [path], local=False)[0]) == size
            content = np.empty(size, np.uint8)
            rest = content.data
            while whole and rest.nbytes:
                with named(path):
                    got = os.readv(fds[0], [rest])
                whole, rest = got > 0, rest[got:]
        if not whole:
            what = f"the file has changed since it was mapped: its size was {size}"
            raise self._loaded.stale(path, what)
        batch.buffer[start : start + size] = content


def directory_of(catalog: Catalog) -> bytes:
    """The directory of a catalog."""
    return catalog.root or os.path.dirname(catalog.path(0)) or b"."
