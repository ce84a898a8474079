"""Batches of ranges: containers are opened, read by a backend's engine, and checked."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import ContainerChangedError
from ...contract.ranges import Spans
from ...contract.reader import Batch
from ...contract.stages import enter
from .containers import Containers, changed_error, outside_error
from .samples import SampleFiles

_PIECE = 256 << 10  # bytes, a multiple of every unit; several keep a disk busier than a long read

Transfer: TypeAlias = Callable[[Spans, IntArray], tuple[IntArray, IntArray]]
"""Takes k spans from their descriptors, int64[k]. Returns the bytes read of each span, and the
errno of each, 0 if none: both int64[k]."""


class ContainerBatches:
    """Fills batches out of the containers of a catalog, by the engine of a backend.

    Attributes:
        containers: shared by all lanes.
    """

    def __init__(self, catalog: Catalog, files: SampleFiles, lanes: int) -> None:
        """Open nothing yet; `files` has the flags for opening, `lanes` batches are read at once."""
        self._catalog = catalog
        self._files = files
        self.containers = Containers(catalog, files, lanes)

    def fill(self, batch: Batch, lane: int, transfer: Transfer) -> None:
        """As `Reader.read()`, by `transfer`."""
        spans = batch.spans.split(_PIECE)
        # In the order of the batch: of several failed files, the error names the first.
        handles = self._handles(spans)
        files = list(dict.fromkeys(handles[np.argsort(spans.slots)].tolist()))
        failed: list[tuple[int, int, int]] = []  # slot, errno, bytes read
        start = 0
        try:
            while start < len(files):
                part = files[start : start + self.containers.at_once]
                enter("opening")
                fds = self.containers.open(part, lane)
                start += len(fds)
                opened = dict(zip(part, fds, strict=False))
                some, where = _from(spans, handles, opened)
                enter("reading")
                got, errors = transfer(some, where)
                if failures := _failures(some, got, errors):
                    # Read each sample again, by itself, to find the failed one.
                    each = self._each(batch, some[got < some.needed]).split(_PIECE)
                    # A piece may begin in another region than its span, and be read as that was.
                    either = {~handle: fd for handle, fd in opened.items()} | opened
                    _, where = _from(each, self._handles(each), either)
                    found = _failures(each, *transfer(each, where))
                    # If all succeed alone, the first failure of the batch stands.
                    failed += found or [(int(each.slots.min()), *min(failures)[1:])]
                # After the reads: a write during them is noticed, too.
                enter("checking")
                for changed in self.containers.changed(part[: len(fds)])[:1]:
                    raise changed_error(self._catalog.file_path(changed))
        finally:
            self.containers.release(lane)
        # Only now: a change of the container is the better explanation.
        if failed:
            raise self._error(batch, *min(failed))

    def close(self) -> None:
        """Close the containers. Closing twice is fine."""
        self.containers.close()

    def _handles(self, spans: Spans) -> IntArray:
        """The handle of each span in `containers`: int64[k]."""
        if self._files.share.value in (0, 1):
            return spans.files
        return np.where(self._files.cached(spans.files, spans.starts), ~spans.files, spans.files)

    def _each(self, batch: Batch, spans: Spans) -> Spans:
        """The samples of a batch with bytes in these spans, each as a span of its own."""
        files, starts = self._catalog.files(batch.samples), batch.starts
        ends, unit = starts + batch.sizes, self._files.unit
        touches = (files[:, None] == spans.files) & (starts[:, None] < spans.starts + spans.needed)
        slots = np.flatnonzero((touches & (ends[:, None] > spans.starts)).any(axis=1))
        low = starts[slots] & -unit
        needed = ends[slots] - low
        offsets = batch.offsets[slots] - (starts[slots] - low)
        return Spans(files[slots], low, needed + unit - 1 & -unit, needed, offsets, slots)

    def _error(self, batch: Batch, slot: int, number: int, got: int) -> OSError:
        """The error for a failed span of an unchanged container; `slot`: of its first sample."""
        samples = batch.samples
        files = self._catalog.files(samples)
        size = self.containers.size(int(files[slot]))
        ends = np.where(files == files[slot], batch.starts + batch.sizes, 0)
        for beyond in samples[ends > size][:1].tolist():
            return outside_error(self._catalog, beyond, size)
        sample = int(samples[slot])
        if number:
            return self._files.read_error(number, sample)
        what = f"{self._catalog.where(sample)}: the read ended after {got:,} bytes"
        return ContainerChangedError(self._catalog.path(sample), f"{what}; try again")


def _from(spans: Spans, handles: IntArray, fds: dict[int, int]) -> tuple[Spans, IntArray]:
    """The spans with handles that have a descriptor in `fds`, and the descriptor of each span."""
    where = np.array([fds.get(handle, -1) for handle in handles.tolist()], np.int64)
    if where.min(initial=0) >= 0:
        return spans, where
    return spans[where >= 0], where[where >= 0]


def _failures(spans: Spans, got: IntArray, errors: IntArray) -> list[tuple[int, int, int]]:
    """Slot, errno and bytes read of each failed span."""
    short = got < spans.needed
    columns = spans.slots[short], errors[short], got[short]
    return [*zip(*(column.tolist() for column in columns), strict=True)]
