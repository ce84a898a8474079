"""Samples in memory: a model for backends, and the upper limit in a benchmark."""

import os
from collections.abc import Sequence
from typing import Annotated, TypeAlias

import numpy as np

from ..contract._types import HostBuffer, IntArray
from ..contract.catalog import Catalog, state_of
from ..contract.errors import ContainerChangedError
from ..contract.options import Option, check_options
from ..contract.reader import Batch, Reader
from ..contract.views import FindViews, Views

_Contents: TypeAlias = Annotated[Sequence[HostBuffer] | None, Option("arrays of uint8")]


class MemoryReader(Reader):
    """A reader that loads every file when opened, and copies from memory afterwards.

    For data sets that fit in memory several times. Later changes to the files go unnoticed.
    """

    reads_ranges = True

    @check_options("memory")
    def __init__(self, catalog: Catalog, *, contents: _Contents = None) -> None:
        """Read all files of `catalog`, unless their contents are given.

        Args:
            catalog: the samples.
            contents: the bytes of each file of the catalog; no file is then read, nothing copied.

        Raises:
            OSError: a file cannot be read; names its path.
            ContainerChangedError: a file ends before one of its ranges, or has changed since the
                samples were found.
        """
        if contents is None:
            whole, self._sizes = _load(catalog)
        else:
            whole, self._sizes = None, np.array([each.size for each in contents], np.int64)
        self._whole: HostBuffer | None = whole  # all files, one after another
        self._at = np.cumsum(self._sizes) - self._sizes
        self._contents = contents or ([] if whole is None else np.split(whole, self._at[1:]))
        self._ranges = ranges = catalog.ranges
        if ranges is not None and (sample := ranges.first_outside(self._sizes)) is not None:
            nbytes = self._sizes[ranges.files_of(np.array([sample]))[0]]
            what = f"{catalog.where(sample)}, but the file has {nbytes:,} bytes"
            raise ContainerChangedError(catalog.path(sample), f"{what}; rebuild its index")

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return self._sizes[samples]

    def read(self, batch: Batch, lane: int) -> None:
        spans = batch.spans
        columns = spans.files, spans.starts, spans.sizes, spans.offsets
        for file, start, size, offset in zip(*(it.tolist() for it in columns), strict=True):
            batch.buffer[offset : offset + size] = self._contents[file][start : start + size]

    @property
    def views(self) -> FindViews | None:
        return None if self._whole is None else self._find

    def _find(self, samples: IntArray, lane: int) -> Views | None:
        if (whole := self._whole) is None:
            return None
        if (ranges := self._ranges) is None:
            return Views(whole, self._at[samples], self._sizes[samples])
        offsets = self._at[ranges.files_of(samples)] + ranges.starts[samples]
        return Views(whole, offsets, ranges.sizes[samples].astype(np.int64))

    def hot(self, samples: IntArray) -> bool:
        return self._whole is not None

    def close(self) -> None:
        self._contents, self._whole = [], None


def _load(catalog: Catalog) -> tuple[HostBuffer, IntArray]:
    """Load the contents of files, one after another, and their sizes."""
    paths, states = catalog.file_paths(np.arange(catalog.file_count)), catalog.states
    contents, sizes = bytearray(), np.zeros(len(paths), np.int64)
    for number, path in enumerate(paths):
        with open(os.fsdecode(path), "rb", buffering=0) as file:
            contents += (content := file.readall())
            sizes[number] = len(content)
            known = [0] if states is None else states[number].tolist()
            is_other = any(known) and known != state_of(os.fstat(file.fileno()))
            if is_other or catalog.altered([number]):
                what = "the file was written or replaced after samples were found in it"
                raise ContainerChangedError(path, f"{what}; create a new reader")
    return np.frombuffer(contents, np.uint8), sizes
