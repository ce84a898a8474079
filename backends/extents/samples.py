"""Reads of batches of mapped samples: plan, submission, retries, errors, holes and checks.

A backend adds only the `Submit` function of its engine, called once per batch and attempt.
"""

import os
import warnings
from collections.abc import Callable
from typing import NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt

from ...contract._types import IntArray, address_of
from ...contract.catalog import Catalog
from ...contract.errors import (
    BackendUnavailable,
    ContainerChangedError,
    MapNotChecked,
    named,
    os_error,
)
from ...contract.reader import Batch
from ...contract.stages import enter
from ..files.containers import changed_error
from ..files.opening import open_files, open_missing, regular_sizes
from ..linux.storage import Storage
from . import device
from .containers import MappedContainers
from .freshness import Freshness
from .map import LoadedMap, directory_of, files_of, kind_of_files
from .plan import DeviceReads, Extents
from .read_only import ReadOnly, watch

_PAGE = 4096  # bytes; smaller reads save nothing


Failures: TypeAlias = dict[int, tuple[int, str]]
"""Errno and text for each read that failed or was short, by its index."""

Submit: TypeAlias = Callable[[DeviceReads], Failures]
"""Performs reads; returns when none of them is in flight any more."""


class MappedSamples:
    """The samples of a catalog, read by the extents of a map.

    Attributes:
        sizes: int64[n], bytes of every file.
        alignment: bytes, as in `Reader`.
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
        lanes: int,
    ) -> None:
        """Find every sample in the map, and compare map and files if these are mounted.

        The mapped file system begins at `start` (bytes) of the storage. A failed read is submitted
        again `retries` times. `lanes` batches are read at once. For the other options, see
        `BlockReader`.
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
        not_mounted = self._why_not_mounted()
        self._freshness: Freshness | None = None
        self._read_only: ReadOnly | None = None
        self._containers: MappedContainers | None = None
        if not not_mounted:
            freshness = Freshness(loaded)
            # Even without the check, another directory with the same names is refused.
            freshness.check(self._files[:1], [catalog.file_path(0)])
            if check:
                self._compare_all(freshness)
                self._freshness = freshness
                if catalog.ranges is not None:
                    files = self._files
                    self._containers = MappedContainers(catalog, loaded, freshness, files, lanes)
        self._is_unmapped = self._find_unmapped(not_mounted)
        self._require_within(not_mounted)
        self._require_as_found()
        if check and not_mounted:
            what = f"whether files have changed since they were mapped ({self._map.created})"
            where = f"the file system of {storage.path} is not mounted: {not_mounted}"
            warnings.warn(f"cannot check {what}: {where}", MapNotChecked, stacklevel=2)

    def read(self, batch: Batch, lane: int, submit: Submit) -> None:
        """Read a batch, or raise the error of the first sample that fails or is stale."""
        files = self._files[batch.spans.files]
        planned, owners = self._extents.reads(batch, files)
        commands = planned.coalesced().split(self._max_transfer)
        if failures := submit(commands):
            failed, reasons = commands[np.array([*failures])], [*failures.values()]
            self._retry(batch, planned, owners, failed, reasons, submit)
        self._extents.zero_holes(batch, files)
        for index in np.flatnonzero(self._is_unmapped[files]).tolist():
            self._read_as_file(batch, index)
        # After the reads: bytes that were read before a file was changed are right.
        enter("checking")
        if self._containers is not None:
            self._containers.check(batch.spans, lane)
        elif self._freshness is not None:
            self._check(self._freshness, batch.spans.files)

    def compared(self) -> str:
        """Describe how often samples are compared with the map."""
        if self._read_only is not None and self._read_only.holds:
            return "once while their file system is read-only"
        return "never" if self._freshness is None else "at every read"

    def _compare_all(self, freshness: Freshness) -> None:
        if self._catalog.ranges is None:
            # Before the comparison, so that a write during it ends the period.
            self._read_only = watch(self._catalog)
        try:
            freshness.check_all(self._files, self._catalog.file_paths)
        except BaseException:
            self.close()
            raise
        if self._read_only is not None:  # files whose data can move were not compared
            self._read_only.compared[~freshness.can_move[self._files]] = 1

    def _check(self, freshness: Freshness, files: IntArray) -> None:
        """Compare files of the catalog, unless no write was possible since the last comparison."""
        # Asked before the comparison, so that a write during it begins another period.
        period = 0 if self._read_only is None else self._read_only.period()
        if self._read_only is not None and period:
            # A file without extents may be on another file system.
            due = self._read_only.compared[files] != period
            due |= self._read_only.linked[files] | self._is_unmapped[self._files[files]]
            files = files[due]
        freshness.check(self._files[files], self._catalog.file_paths(files))
        if self._read_only is not None and period:
            self._read_only.compared[files] = period

    def close(self) -> None:
        """Close the containers. Closing twice is fine."""
        if self._containers is not None:
            self._containers.close()
        if self._read_only is not None:
            self._read_only.close()

    def _why_not_mounted(self) -> str:
        """The reason why the mapped file system is not mounted; empty if mounted from here."""
        root = directory_of(self._catalog)
        on = device.mounted_device(self._map, root)
        if not isinstance(on, str):
            device.require_mounted_from(on, root, self._storage, self._loaded)
            return ""
        first = self._catalog.file_path(0)
        if os.path.lexists(first):
            raise self._loaded.stale(first, f"this is not the mapped file: {on}")
        return on

    def _find_unmapped(self, not_mounted: str) -> npt.NDArray[np.bool_]:
        """bool[files of the map]: true for files without extents, to be read as files."""
        unmapped = np.zeros(len(self._map), bool)
        unmapped[list(self._map.unmapped)] = True
        found = np.flatnonzero(unmapped[self._files])
        if found.size and not_mounted:
            path = os.fsdecode(self._catalog.file_path(int(found[0])))
            reason = self._map.unmapped[int(self._files[found[0]])]
            kind = kind_of_files(self._catalog)
            what = f"{found.size} {kind} can only be read as files, such as {path!r} ({reason})"
            where = f"their file system is not mounted: {not_mounted}"
            raise BackendUnavailable(f"{what}, and {where}")
        return unmapped

    def _require_within(self, not_mounted: str) -> None:
        """Refuse a range outside of its file: the map is stale, or the range is wrong."""
        ranges = self._catalog.ranges
        if ranges is None or (sample := ranges.first_outside(self.sizes)) is None:
            return
        file, path = ranges.files_of(np.array([sample])), self._catalog.path(sample)
        size = int(self.sizes[file[0]])
        what = f"{self._catalog.where(sample)}, but the mapped file has {size:,} bytes"
        if not_mounted:
            raise self._loaded.stale(path, what)
        Freshness(self._loaded).check(self._files[file], [path])
        raise ContainerChangedError(path, f"{what}; rebuild its index")

    def _require_as_found(self) -> None:
        """Refuse a container that changed after its samples were found."""
        if (found := self._catalog.states) is None or self._catalog.ranges is None:
            return
        times = np.divmod(self._map.mtimes_ns[self._files], 10**9)
        mapped = np.stack((self._map.inodes[self._files], self.sizes, *times), axis=1)
        differs = (mapped != found).any(axis=1) & found.any(axis=1)
        for file in np.flatnonzero(differs)[:1].tolist():
            path = self._catalog.file_path(file)
            Freshness(self._loaded).check(self._files[[file]], [path])  # the map may be stale
            raise changed_error(path)

    def _retry(
        self,
        batch: Batch,
        planned: DeviceReads,
        owners: IntArray,
        failed: DeviceReads,
        reasons: list[tuple[int, str]],
        submit: Submit,
    ) -> None:
        """Retry failed reads, one command at a time."""
        # A command may serve several samples, and the kernel merges neighbouring commands and fails
        # them together. Only a command submitted alone shows which sample cannot be read.
        for index in planned.overlapping(failed).tolist():
            read, owner = planned[index : index + 1], int(owners[index])
            own = failed.within(read)[:1]
            if own.size and not self._retries:
                self._fail(batch, owner, failed[own], *reasons[int(own[0])])
            parts = read.split(self._max_transfer)
            for part in (parts[number : number + 1] for number in range(len(parts))):
                for _ in range(max(self._retries, 1)):
                    if not (failures := submit(part)):
                        break
                else:
                    self._fail(batch, owner, part, *failures[0])

    def _fail(
        self, batch: Batch, owner: int, read: DeviceReads, number: int, what: str
    ) -> NoReturn:
        """Raise the OSError of a failed read (one) for a span of the batch."""
        lba = int(read.offsets[0]) // (self._storage.logical_block_size or self._storage.alignment)
        # The first sample that overlaps the read; none if the read lies between samples.
        spans, memory, starts = batch.spans, int(read.memory[0]), batch.addresses
        hit = (starts < memory + read.lengths[0]) & (starts + batch.sizes > memory)
        sample = int(batch.samples[np.argmax(hit) if hit.any() else spans.slots[owner]])
        within = memory - address_of(batch.buffer) - int(spans.offsets[owner])
        logical, file = within + int(spans.starts[owner]), int(self._files[spans.files[owner]])
        first, last = self._map.extent_offsets[file : file + 2].tolist()
        extents = self._map.extents[first:last]
        index = int(np.searchsorted(extents[:, 0], logical, "right")) - 1
        start, physical, length = extents[index].tolist()
        extent = f"extent {index}, logical {start}, physical {physical}, length {length}"
        where = f"at LBA {lba} of {self._storage.path} ({extent})"
        if of_sample := self._catalog.where(sample):
            what = f"{of_sample}: {what}"
        raise os_error(number, self._catalog.path(sample), f": {what} {where}")

    def _read_as_file(self, batch: Batch, owner: int) -> None:
        """Fill a span of a file without extents, such as one inside its inode."""
        spans = batch.spans
        file, start = int(spans.files[owner]), int(spans.starts[owner])
        nbytes, offset = int(spans.needed[owner]), int(spans.offsets[owner])
        path, size = self._catalog.file_path(file), int(self.sizes[file])
        content = np.empty(nbytes, np.uint8)  # the buffer may be memory of a GPU
        rest = content.data
        with open_files() as fds:
            fds.append(-1)
            open_missing(fds, [path], os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
            whole = int(regular_sizes(fds, [path], local=False)[0]) == size
            while whole and rest.nbytes:
                with named(path):
                    got = os.preadv(fds[0], [rest], start + nbytes - rest.nbytes)
                whole, rest = got > 0, rest[got:]
        if not whole:
            what = f"the file has changed since it was mapped: its size was {size}"
            raise self._loaded.stale(path, what)
        batch.buffer[offset : offset + nbytes] = content
