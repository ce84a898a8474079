"""The place of samples in the memory of a batch, in columns: most work is done once a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ._types import Buffer, HostBuffer, IntArray

SMALL = 4096
"""Bytes; copying up to this size costs less than a DALI tensor."""

Contents: TypeAlias = Sequence[Buffer] | NDArray[Any]
"""The samples of a batch: one memory object or array for each, or the rows of one array.

Arrays are contiguous in C's order and in the byte order of the machine.
"""


class Views(NamedTuple):
    """Parts of one buffer, in any order; parts may overlap.

    Attributes:
        buffer: memory of the host or of a GPU; unchanged while it is referenced.
        offsets: int64[n], the start of each part: bytes.
        sizes: int64[n], bytes of each part.
    """

    buffer: Buffer
    offsets: IntArray
    sizes: IntArray

    def every(self, step: int, first: int) -> Views:
        """Select each `step`-th part, beginning with number `first`: one piece of every sample."""
        return Views(self.buffer, self.offsets[first::step], self.sizes[first::step])

    def contents(self) -> Contents:
        """Return the parts: slices, which keep the buffer alive, or the rows of one array.

        The array is a view if parts of one size lie side by side in host memory, from the beginning
        of the buffer; else a copy, if the parts are small.
        """
        count, size = self.sizes.size, int(self.sizes[0])
        # The first comparison is cheap, and usually fails.
        is_even = int(self.sizes[-1]) == size and bool((self.sizes == size).all())
        if not is_even or not isinstance(self.buffer, np.ndarray):
            return self.slices()
        nbytes = count * size
        adjoin = int(self.offsets[-1]) == nbytes - size  # also cheap
        if not size or (adjoin and np.array_equal(self.offsets, np.arange(0, nbytes, size))):
            return self.buffer[:nbytes].reshape(count, size)
        return self.gather(size) if size <= SMALL else self.slices()

    def slices(self) -> Sequence[Any]:
        """Return a slice of the buffer for each part, in host memory a memoryview."""
        # Slicing a memoryview costs a sixth of slicing an array, and keeps the lease as well.
        buffer = self.buffer
        memory: Any = buffer.data if isinstance(buffer, np.ndarray) else buffer
        ends = (self.offsets + self.sizes).tolist()
        return [memory[at:end] for at, end in zip(self.offsets.tolist(), ends, strict=True)]

    def gather(self, size: int) -> HostBuffer:
        """Copy the first `size` bytes of each part, all of this size: uint8[n, size]."""
        # Every range of this size as one element, which starts at its index. Numpy copies it whole,
        # so to gather records costs what it costs to copy them: 0.5 us for 3,072 bytes.
        memory: Any = self.buffer
        shape = (max(memory.nbytes - size + 1, 0),)
        every = np.ndarray(shape, np.dtype(f"V{size}"), memory, strides=(1,))
        return every[self.offsets].view(np.uint8).reshape(self.offsets.size, size)


FindViews: TypeAlias = Callable[[IntArray, int], Views | None]
"""Returns views of samples, given a lane, or None: the samples must be read. See `Reader`."""


@runtime_checkable
class SupportsViews(Protocol):
    """A reader with samples in immutable host memory, held or mapped."""

    @property
    def views(self) -> FindViews | None:
        """Finds samples in memory; None if there are none with these options.

        Replaces `sizes()` and `read()`, and raises the same errors. The memory must stay unchanged
        while a slice of it is referenced, also after `close()`.
        """


@runtime_checkable
class SupportsHotViews(SupportsViews, Protocol):
    """A reader whose views may need no lane."""

    def hot(self, samples: IntArray) -> bool:
        """Return True if the views of these samples are not None and finding them does not block.

        If so, this and `views()` are called in the thread that asks for batches, usually the main
        thread, and a Ctrl-C may interrupt them; `lane` is then the number of lanes.
        """


def views_of(reader: object) -> FindViews | None:
    """Return what finds samples in the memory of a reader; None if there are none."""
    return reader.views if isinstance(reader, SupportsViews) else None


def copied(contents: Contents) -> Contents:
    """Copy the samples to new memory."""
    if isinstance(contents, np.ndarray):
        return contents.copy()
    return [np.array(memoryview(item)) for item in contents]  # type: ignore[arg-type]
