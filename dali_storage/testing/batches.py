"""Reading samples without a prefetcher."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from .._types import IntArray
from ..reader import Batch, Reader


def make_batch(
    reader: Reader,
    samples: IntArray,
    *,
    gap: int = 0,
    buffer: npt.NDArray[np.uint8] | None = None,
) -> Batch:
    """A batch of `samples` with `gap` bytes before each, in `buffer` or a new one."""
    sizes = reader.sizes(samples)
    slots = -(-sizes // reader.alignment) * reader.alignment + gap
    offsets = np.cumsum(slots) - slots + gap
    if buffer is None:
        buffer = reader.allocate(int(slots.sum()) + gap)
    return Batch(samples, sizes, offsets, buffer)


def make_known_batch(reader: Reader, samples: IntArray) -> Batch:
    """The same for samples that were read before, so that none of their files is open."""
    read(reader, samples)
    return make_batch(reader, samples)


def read(
    reader: Reader,
    samples: IntArray,
    *,
    lane: int = 0,
    buffer: npt.NDArray[np.uint8] | None = None,
) -> list[bytes]:
    """The bytes of `samples`, read as a prefetcher does."""
    batch = make_batch(reader, samples, buffer=buffer)
    reader.read(batch, lane)
    ends = batch.offsets + batch.sizes
    pieces = zip(batch.offsets.tolist(), ends.tolist(), strict=True)
    return [batch.buffer[start:end].tobytes() for start, end in pieces]


def names_path(error: OSError, path: bytes) -> bool:
    """Whether an error has this path as its `filename`."""
    return isinstance(error.filename, str) and os.fsencode(error.filename) == path
