"""A batch of mapped samples: planned, submitted, retried, blamed, filled and checked.

A backend adds only how its engine reads: a `Submit`, called once per batch and attempt.
"""

import warnings
from collections.abc import Callable
from typing import NoReturn, TypeAlias

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import MapNotChecked, os_error
from ...contract.reader import Batch
from ..linux.storage import Storage
from .checks import find_unmapped, require_within, why_not_mounted
from .containers import MappedContainers
from .fallback import read_file
from .freshness import Freshness
from .map import LoadedMap, files_of
from .plan import DeviceReads, Extents

_PAGE = 4096  # bytes; smaller reads save nothing


Failures: TypeAlias = dict[int, tuple[int, str]]
"""Of each read that failed or was short, by its index: errno, what happened, and its bytes."""

Submit: TypeAlias = Callable[[DeviceReads], Failures]
"""Makes reads; returns when none of them is under way any more."""


class MappedSamples:
    """The samples of a catalog, read by the extents of a map.

    Attributes:
        sizes: int64[n], bytes of every file.
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
        lanes: int,
    ) -> None:
        """Find every sample in the map, and compare map and files if these are mounted.

        The mapped file system begins at `start` (bytes) of the storage. A failed read is submitted
        again `retries` times. `lanes` batches are read at once. The other options are those of
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
        ranges = catalog.ranges is not None
        self._extents = Extents(self._map, start, self.alignment, ranges=ranges)
        self.sizes = self._extents.sizes[self._files]
        not_mounted = why_not_mounted(catalog, loaded, storage)
        self._freshness: Freshness | None = None
        self._containers: MappedContainers | None = None
        if not not_mounted:
            freshness = Freshness(loaded)
            # Even without the check, another directory with the same names is refused.
            freshness.check(self._files[:1], [catalog.file_path(0)])
            if check:
                freshness.check_all(self._files, catalog.file_paths)
                self._freshness = freshness
                if ranges:
                    files = self._files
                    self._containers = MappedContainers(catalog, loaded, freshness, files, lanes)
        self._is_unmapped = find_unmapped(catalog, loaded, self._files, not_mounted)
        require_within(catalog, loaded, self._files, not_mounted)
        if check and not_mounted:
            what = f"whether files have changed since they were mapped ({self._map.created})"
            where = f"the file system of {storage.path} is not mounted: {not_mounted}"
            warnings.warn(f"cannot check {what}: {where}", MapNotChecked, stacklevel=2)

    def read(self, batch: Batch, lane: int, submit: Submit) -> None:
        """Read a batch, or raise the error of the first sample that fails or is stale."""
        spans = batch.spans
        files = self._files[batch.samples if spans is None else spans.files]
        planned, owners = self._extents.reads(batch, files)
        commands = planned.coalesced().split(self._max_transfer)
        if failures := submit(commands):
            failed, reasons = commands[np.array([*failures])], [*failures.values()]
            self._retry(batch, planned, owners, failed, reasons, submit)
        self._extents.zero_holes(batch, files)
        for index in np.flatnonzero(self._is_unmapped[files]).tolist():
            self._read_as_file(batch, index)
        # After the reads: bytes that were read before a file was changed are right.
        if self._containers is not None and spans is not None:
            self._containers.check(spans, lane)
        elif self._freshness is not None:
            self._freshness.check(files, self._catalog.paths(batch.samples))

    def close(self) -> None:
        """Close the containers. Closing twice is fine."""
        if self._containers is not None:
            self._containers.close()

    def _retry(
        self,
        batch: Batch,
        planned: DeviceReads,
        owners: IntArray,
        failed: DeviceReads,
        reasons: list[tuple[int, str]],
        submit: Submit,
    ) -> None:
        """Read again what has failed, one command at a time.

        A command may be for several samples, and the kernel merges neighbouring commands and fails
        them together. So only a command that is submitted alone shows whose bytes cannot be read.
        """
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
        """Raise the OSError of a failed read (one) for a slot of the batch, or for a span."""
        lba = int(read.offsets[0]) // (self._storage.logical_block_size or self._storage.alignment)
        slot, start = owner, 0
        if batch.spans is not None:
            # The first sample with bytes that were to be read; none if these lie between samples.
            ends, end = batch.addresses + batch.sizes, read.memory[0] + read.lengths[0]
            hit = np.flatnonzero((batch.addresses < end) & (ends > read.memory[0]))
            slot = int(hit[0] if hit.size else batch.spans.slots[owner])
        sample = int(batch.samples[slot])
        if self._catalog.ranges is not None:
            start = int(self._catalog.ranges.starts[sample])
            what = f"{self._catalog.where(sample)}: {what}"
        extent = self._extent(sample, int(read.memory[0] - batch.addresses[slot]) + start)
        where = f"at LBA {lba} of {self._storage.path} ({extent})"
        raise os_error(number, self._catalog.path(sample), f": {what} {where}")

    def _extent(self, sample: int, logical: int) -> str:
        """The extent with an offset into the file of a sample."""
        file = int(self._files[self._catalog.files(np.array([sample]))[0]])
        first, last = self._map.extent_offsets[file : file + 2].tolist()
        extents = self._map.extents[first:last]
        index = int(np.searchsorted(extents[:, 0], logical, "right")) - 1
        start, physical, length = extents[index].tolist()
        return f"extent {index}, logical {start}, physical {physical}, length {length}"

    def _read_as_file(self, batch: Batch, owner: int) -> None:
        """Fill a slot of the batch, or a span, of a file without extents."""
        if batch.spans is None:
            file, start, offset = int(batch.samples[owner]), 0, int(batch.offsets[owner])
            nbytes = int(batch.sizes[owner])
        else:
            spans = batch.spans
            file, start = int(spans.files[owner]), int(spans.starts[owner])
            nbytes, offset = int(spans.needed[owner]), int(spans.offsets[owner])
        path, size = self._catalog.file_path(file), int(self.sizes[file])
        content = read_file(path, start, nbytes, size)
        if content is None:
            what = f"the file has changed since it was mapped: its size was {size}"
            raise self._loaded.stale(path, what)
        batch.buffer[offset : offset + nbytes] = content
