"""Samples in memory: the model of a backend, and the upper limit in a benchmark."""

import os

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.errors import ContainerChangedError
from ..contract.ranges import Ranges
from ..contract.reader import Batch, Reader


class MemoryReader(Reader):
    """Reads every file when it is opened, and copies from memory afterwards.

    For data sets that fit in memory several times. Later changes to the files are not noticed.
    """

    reads_ranges = True

    def __init__(self, catalog: Catalog) -> None:
        """Read all files of `catalog`.

        Raises:
            OSError: a file cannot be read; names its path.
            ContainerChangedError: a file ends before one of its ranges.
        """
        files = np.arange(catalog.file_count)
        self._contents = [_contents(path) for path in catalog.file_paths(files)]
        self._sizes = np.array([content.size for content in self._contents], np.int64)
        if catalog.ranges is not None:
            _require_within(catalog, catalog.ranges, self._sizes)

    def sizes(self, samples: IntArray) -> IntArray:
        return self._sizes[samples]

    def read(self, batch: Batch, lane: int) -> None:
        if (spans := batch.spans) is None:
            for sample, start in zip(batch.samples.tolist(), batch.offsets.tolist(), strict=True):
                content = self._contents[sample]
                batch.buffer[start : start + content.size] = content
            return
        columns = spans.files, spans.starts, spans.sizes, spans.offsets
        for file, start, size, offset in zip(*(it.tolist() for it in columns), strict=True):
            batch.buffer[offset : offset + size] = self._contents[file][start : start + size]

    def close(self) -> None:
        self._contents = []


def _require_within(catalog: Catalog, ranges: Ranges, sizes: IntArray) -> None:
    if (sample := ranges.first_outside(sizes)) is not None:
        nbytes = sizes[ranges.files_of(np.array([sample]))[0]]
        what = f"{catalog.where(sample)}, but the file has {nbytes:,} bytes"
        raise ContainerChangedError(catalog.path(sample), f"{what}; make its index anew")


def _contents(path: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    with open(os.fsdecode(path), "rb") as file:
        return np.frombuffer(file.read(), np.uint8)
