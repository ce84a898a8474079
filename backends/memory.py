"""Samples in memory: the model of a backend, and the upper limit in a benchmark."""

import os
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np

from ..contract._types import HostBuffer, IntArray
from ..contract.catalog import Catalog
from ..contract.errors import ContainerChangedError
from ..contract.options import Option, check_options
from ..contract.reader import Batch, Reader

_Contents: TypeAlias = Annotated[Sequence[HostBuffer] | None, Option("arrays of uint8")]


class MemoryReader(Reader):
    """Reads every file when it is opened, and copies from memory afterwards.

    For data sets that fit in memory several times. Later changes to the files are not noticed.
    """

    reads_ranges = True

    @check_options("memory")
    def __init__(self, catalog: Catalog, *, contents: _Contents = None) -> None:
        """Read all files of `catalog`, unless their contents are given.

        Args:
            catalog: the samples.
            contents: the bytes of each file of the catalog, which are neither read nor copied.

        Raises:
            OSError: a file cannot be read; names its path.
            ContainerChangedError: a file ends before one of its ranges.
        """
        files = np.arange(catalog.file_count)
        if contents is None:
            contents = [_contents(path) for path in catalog.file_paths(files)]
        self._contents = contents
        self._sizes = np.array([content.size for content in self._contents], np.int64)
        ranges = catalog.ranges
        if ranges is not None and (sample := ranges.first_outside(self._sizes)) is not None:
            nbytes = self._sizes[ranges.files_of(np.array([sample]))[0]]
            what = f"{catalog.where(sample)}, but the file has {nbytes:,} bytes"
            raise ContainerChangedError(catalog.path(sample), f"{what}; make its index anew")

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return self._sizes[samples]

    def read(self, batch: Batch, lane: int) -> None:
        spans = batch.spans
        columns = spans.files, spans.starts, spans.sizes, spans.offsets
        for file, start, size, offset in zip(*(it.tolist() for it in columns), strict=True):
            batch.buffer[offset : offset + size] = self._contents[file][start : start + size]

    def close(self) -> None:
        self._contents = []


def _contents(path: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    with open(os.fsdecode(path), "rb") as file:
        return np.frombuffer(file.read(), np.uint8)
