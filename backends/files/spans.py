"""The reads of a batch of ranges: opened, read by a backend's engine, and checked."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ..._types import IntArray
from ...catalog import Catalog
from ...errors import ContainerChangedError
from ...ranges import Spans
from ...reader import Batch
from .containers import Containers, changed_error
from .samples import FILES_AT_ONCE, SampleFiles

ReadSpans: TypeAlias = Callable[[IntArray, IntArray], tuple[IntArray, IntArray]]
"""Reads k spans, given by their indices, from their descriptors, both int64[k]. Returns how many
bytes of each have arrived, and the errno of each, 0 if it has not failed: both int64[k]."""


class SpanReads:
    """Reads batches out of the containers of a catalog, by the engine of a backend."""

    def __init__(self, catalog: Catalog, files: SampleFiles) -> None:
        """Open nothing yet; `files` tells how."""
        self._catalog = catalog
        self._files = files
        self._containers = Containers(catalog, files)

    def read(
        self,
        batch: Batch,
        spans: Spans,
        lane: int,
        yield_turn: Callable[[], None],
        read_spans: ReadSpans,
    ) -> None:
        """As `Reader.read()`; calls `yield_turn` before it blocks to open a container."""
        got, errors = np.zeros_like(spans.sizes), np.zeros_like(spans.sizes)
        files, ranks = _by_slot(spans)
        opened = 0
        try:
            while opened < files.size:
                part = files[opened : opened + FILES_AT_ONCE]
                fds = self._containers.open(part.tolist(), lane, yield_turn)
                place = np.full(files.size, -1)
                place[opened : opened + len(fds)] = fds
                fd = place[ranks]
                indices = np.flatnonzero(fd >= 0)
                self._require_within(batch, spans, indices)
                got[indices], errors[indices] = read_spans(indices, fd[indices])
                opened += len(fds)
        finally:
            self._containers.release(lane)
        for changed in self._containers.changed(files)[:1].tolist():
            raise changed_error(self._catalog.file_path(changed))
        self._require_read(batch, spans, got, errors)

    def close(self) -> None:
        """Close the containers. Closing twice is fine."""
        self._containers.close()

    def _require_within(self, batch: Batch, spans: Spans, indices: IntArray) -> None:
        """Refuse samples that reach beyond the ends of their containers, which are open."""
        ends = spans.starts[indices] + spans.needed[indices]
        beyond = indices[ends > self._containers.sizes(spans.files[indices])]
        if beyond.size:
            raise self._beyond(batch, spans.files[beyond])

    def _require_read(self, batch: Batch, spans: Spans, got: IntArray, errors: IntArray) -> None:
        """Refuse spans that have not been read whole."""
        failed = np.flatnonzero((errors > 0) | (got < spans.needed))
        if failed.size:
            first = failed[np.argmin(spans.slots[failed])]
            sample = int(batch.samples[spans.slots[first]])
            if errors[first]:
                raise self._files.read_error(int(errors[first]), sample)
            raise changed_error(self._catalog.path(sample), self._catalog.where(sample))

    def _beyond(self, batch: Batch, files: IntArray) -> ContainerChangedError:
        """The error of the first sample of the batch beyond the end of one of `files`."""
        ranges, samples = self._catalog.ranges, batch.samples
        assert ranges is not None
        of = ranges.files_of(samples)
        sizes = self._containers.sizes(of)
        slot = np.argmax(np.isin(of, files) & (ranges.starts[samples] + batch.sizes > sizes))
        where = self._catalog.where(int(samples[slot]))
        what = f"{where} ends behind the container, which has {sizes[slot]:,} bytes"
        remedy = "it was truncated, or the index is of another one: restore it, or index it anew"
        return ContainerChangedError(self._catalog.path(int(samples[slot])), f"{what}; {remedy}")


def _by_slot(spans: Spans) -> tuple[IntArray, IntArray]:
    """The files of spans in the order of the batch, int64[k], and for each span its index there."""
    starts = np.flatnonzero(np.diff(spans.files, prepend=-1))
    if not starts.size:
        return spans.files, spans.files
    order = np.argsort(np.minimum.reduceat(spans.slots, starts))
    ranks = np.empty_like(order)
    ranks[order] = np.arange(order.size)
    return spans.files[starts[order]], np.repeat(ranks, np.diff(starts, append=len(spans)))
