"""Whether the data of ranges is still where the map says.

Only the extents of the spans that were read are asked for. What the file system reports of them is
turned into reads, and these must equal the planned ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bmap_tools import fiemap

from ..._types import IntArray
from ...ranges import Spans
from .plan import Reads


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSpans:
    """The spans of a batch and the reads that a map led to.

    Attributes:
        spans: the spans.
        files: int64[k], the file of the map of each span.
        ends: int64[k], where the last block of that file ends, bytes. What is reserved behind it
            does not matter.
        reads: the planned reads, not coalesced.
        owners: the span of each read.
        address: of the buffer in memory.
        start: where the file system begins on the device, bytes.
    """

    spans: Spans
    files: IntArray
    ends: IntArray
    reads: Reads
    owners: IntArray
    address: int
    start: int

    def moved(self, files: IntArray, fds: Sequence[int]) -> Iterator[int]:
        """Indices of those of some different files, open as `fds`, whose data is elsewhere now."""
        order = np.argsort(files)
        which = order[np.searchsorted(files, self.files, sorter=order) % files.size]
        mine = np.flatnonzero(files[which] == self.files)
        found, owners = self._reads_now(mine, [fds[index] for index in which[mine].tolist()])

        def differ(chosen: npt.NDArray[np.bool_]) -> bool:
            now = found[np.flatnonzero(chosen[owners])].coalesced()
            return not now.equals(self.reads[np.flatnonzero(chosen[self.owners])].coalesced())

        is_mine = np.zeros(len(self.spans), bool)
        is_mine[mine] = True
        if differ(is_mine):
            yield from (i for i in range(files.size) if differ(is_mine & (which == i)))

    def _reads_now(self, chosen: IntArray, fds: Sequence[int]) -> tuple[Reads, IntArray]:
        """The reads of some spans by what the file system says now, and the span of each."""
        starts, ends = (
            self.spans.starts[chosen],
            self.spans.starts[chosen] + self.spans.sizes[chosen],
        )
        lengths = np.minimum(ends, self.ends[chosen]) - starts
        ranges, extents = fiemap.extents_of_ranges(fds, starts, lengths)
        logical, physical, length = extents.T
        memory = logical + (self.address + self.spans.offsets[chosen] - starts)[ranges]
        return Reads(physical + self.start, memory, length), chosen[ranges]
