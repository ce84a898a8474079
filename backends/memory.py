"""Samples in memory: the model of a backend, and the upper limit in a benchmark."""

import os

import numpy as np

from .._types import IntArray
from ..catalog import Catalog
from ..reader import Batch, Reader


class MemoryReader(Reader):
    """Reads every file when it is opened, and copies from memory afterwards.

    For data sets that fit in memory several times. Later changes to the files are not noticed.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Read all files of `catalog`.

        Raises:
            OSError: a file cannot be read; names its path.
        """
        self._contents = {sample: _contents(catalog.path(sample)) for sample in range(len(catalog))}
        self._sizes = np.array([content.size for content in self._contents.values()], np.int64)

    def sizes(self, samples: IntArray) -> IntArray:
        return self._sizes[samples]

    def read(self, batch: Batch, lane: int) -> None:
        for sample, start in zip(batch.samples.tolist(), batch.offsets.tolist(), strict=True):
            content = self._contents[sample]
            batch.buffer[start : start + content.size] = content

    def close(self) -> None:
        self._contents = {}


def _contents(path: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    with open(os.fsdecode(path), "rb") as file:
        return np.frombuffer(file.read(), np.uint8)
