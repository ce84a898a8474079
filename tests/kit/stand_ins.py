"""A reader without storage, which records, blocks and fails on request."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dali_storage.contract._types import Buffer, IntArray
from dali_storage.contract.catalog import Catalog
from dali_storage.contract.errors import SampleSizeChanged
from dali_storage.contract.reader import Batch, Reader


class Unpickled:
    """It fails the test if it is unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("the file was unpickled",)


def content(sample: int) -> bytes:
    """The bytes of a sample of a `Recorder`."""
    return bytes([sample % 256]) * (sample + 1)


class Recorder(Reader):
    """Sample i is i + 1 bytes of value i. It may be changed at any time, by its attributes.

    Attributes:
        broken: the samples that cannot be read.
        growths: how often the size of a sample is yet to change while it is read.
        go: reads wait until it is set, as it is at first.
        before: called at the start of each read with the batch, in its lane.
        read_batches: the samples of each batch that was read, in the order of their reads.
        under_way: the lanes that read now.
        most_at_once: how many lanes have been reading at the same time.
        allocated: the buffers.
        closed: how often it was closed.
    """

    alignment = 16

    def __init__(self, catalog: Catalog, *, lanes: int = 2) -> None:
        self.lanes = lanes
        self.broken: set[int] = set()
        self.growths: dict[int, int] = {}
        self.go = threading.Event()
        self.go.set()
        self.before: Callable[[Batch], object] = lambda batch: None
        self.read_batches: list[list[int]] = []
        self.under_way: set[int] = set()
        self.most_at_once = 0
        self.allocated: list[weakref.ref[Buffer]] = []
        self.closed = 0

    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        return samples + 1

    def read(self, batch: Batch, lane: int) -> None:
        assert lane not in self.under_way, "one lane, two reads"
        assert not self.closed
        self.under_way.add(lane)
        self.most_at_once = max(self.most_at_once, len(self.under_way))
        try:
            self.go.wait()
            self.before(batch)
            self._fill(batch)
        finally:
            self.under_way.remove(lane)

    def _fill(self, batch: Batch) -> None:
        self.read_batches.append(batch.samples.tolist())
        for sample, start in zip(batch.samples.tolist(), batch.offsets.tolist(), strict=True):
            if sample in self.broken:
                raise FileNotFoundError(2, "gone", f"path/{sample}")
            if self.growths.get(sample, 0):
                self.growths[sample] -= 1
                raise SampleSizeChanged(np.array([sample]))
            batch.buffer[start : start + sample + 1] = sample % 256

    def allocate(self, nbytes: int) -> Buffer:
        buffer = super().allocate(nbytes)
        self.allocated.append(weakref.ref(buffer))
        return buffer

    def close(self) -> None:
        self.closed += 1


def backend(change: Callable[[Any], object], base: type[Reader] = Recorder) -> type[Reader]:
    """A backend whose readers are given to `change` when they are open."""

    class Changed(base):  # type: ignore[misc, valid-type]
        def __init__(self, catalog: Catalog, **options: Any) -> None:
            super().__init__(catalog, **options)
            change(self)

    return Changed
