"""The contract of a backend: what it is told, and what it owes.

A backend is one class, a `Reader`. It is given a catalog (which samples there are) and does one
thing: it fills memory with the bytes of the samples it is told to. Everything that two backends
would both have to write lives above it: listing, labels, order, shuffling, epochs, batches, buffers
and their lifetimes, threads, reading ahead, DALI's types.

For the implementer:

* `__init__(self, catalog, *, option=default, ...)` opens everything or raises, leaving nothing
  open. Options are keyword-only; an unknown one is refused before the class is called.
* `sizes()` and `read()` are called from up to `lanes` threads at once, each `read()` with a lane
  number of its own. Neither is called after `close()`, and `close()` is never called while one is
  under way.
* `read()` returns only when no one writes to the buffer any more, also when it raises: the memory
  is given to another batch at once.
* Errors are those a Python user knows: `OSError(errno, strerror, path)` naming the sample's path.
* A wait (a system call, a queue) must not hold the interpreter lock.

A storage that knows by itself which samples it holds says so in `tree()`; then a user need not name
a directory. What is chosen from it, and the labels, are not its business either.

For the caller: sample numbers are indices into the catalog, and may repeat within a batch.
"""

from __future__ import annotations

import contextlib
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ._types import Buffer, IntArray

if TYPE_CHECKING:
    from .catalog import Catalog, Tree


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Which samples to read, and where their bytes go. The reader borrows it for one `read()`.

    Attributes:
        samples: int64[n], catalog indices, in the order of the batch.
        sizes: int64[n], bytes: exact, as `Reader.sizes()` gave them.
        offsets: int64[n], bytes into `buffer`, multiples of `Reader.alignment`; the ranges do not
            overlap.
        buffer: 1-D uint8 memory from `Reader.allocate()`.
    """

    samples: IntArray
    sizes: IntArray
    offsets: IntArray
    buffer: Buffer


class Reader(ABC):
    """Fills memory with the bytes of samples; the one thing that a backend is.

    Attributes:
        alignment: bytes, a power of two. Offsets are multiples of it, and a sample may be written
            up to its size rounded up to it; the bytes after the size are of no meaning.
        lanes: how many `read()` calls may be under way at once, numbered 0 to lanes - 1.
        cooperative: False (the default): all lanes run concurrently; right for readers that mostly
            block on I/O. True: only `copying_lanes` lanes run at a time, and a lane calls
            `yield_turn()` before it blocks; right for readers that may be CPU-bound, for example
            on a hot page cache.
        copying_lanes: for a cooperative reader, how many lanes may run at a time. None (the
            default): as many as DALI's threads leave processors over, at least one.
        yield_turn: set by the prefetcher that runs the reader. A cooperative reader calls it in
            `sizes()` or `read()` before it blocks on the storage, so that the next lane can run.
    """

    alignment: int = 1
    lanes: int = 1
    cooperative: bool = False
    copying_lanes: int | None = None
    yield_turn: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    def __init__(self, catalog: Catalog) -> None: ...

    @abstractmethod
    def sizes(self, samples: IntArray) -> IntArray:
        """The exact sizes of `samples` (int64[n]) in bytes, as int64[n].

        They may be remembered, until `read()` has found one to be wrong.

        Raises:
            OSError: a sample cannot be sized; names its path.
        """

    @abstractmethod
    def read(self, batch: Batch, lane: int) -> None:
        """Fill `batch.buffer`; return when every byte of every sample is there.

        Raises:
            SampleSizeChanged: samples are no longer of `batch.sizes`; from now on `sizes()` gives
                their new ones.
            OSError: a sample cannot be read; names its path. Of several that fail in the same way,
                it is the first of the batch.
        """

    def allocate(self, nbytes: int) -> Buffer:
        """At least `nbytes` of memory, at an address that is a multiple of `alignment`.

        Freed when the last reference to it dies. The default is page-aligned host memory, in huge
        pages where the kernel has them: their addresses are cheaper to look up, and there are fewer
        of them to fault in.
        """
        # Private, because what is shared between processes comes in small pages only.
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, np.uint8)

    @abstractmethod
    def close(self) -> None:
        """Give back everything the constructor opened. Closing twice is fine."""

    @classmethod
    def tree(cls, **options: Any) -> Tree | None:
        """The samples that the storage itself knows, for when the user names no directory.

        Args:
            options: those that the constructor will be given.

        Returns:
            None from a storage that does not know.

        Raises:
            ValueError, TypeError, OSError: an option is wrong, or what it names cannot be read.
        """
        return None

    @classmethod
    def unavailable(cls) -> str | None:
        """Why this backend cannot work on this machine and what would help; None if it can."""
        return None

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
