"""The backend contract: the inputs and the guarantees of a `Reader`.

A backend is one class with one job. Its constructor gets a catalog, the list of samples; its
`read()` fills memory with the bytes of a batch of samples. The framework does the rest: listing
files, labels, order, shuffling, epochs, buffers and their lifetimes, threads, reading ahead, and
DALI's types.

For implementers:

* **Opening.** `__init__(self, catalog, *, option=default, ...)` opens everything, or raises and
  leaves nothing open. Options are keyword-only. Unknown options are refused before the class is
  called.
* **Threads.** `sizes()` and `read()` are only called in lanes: worker threads, never the main
  thread, so a Ctrl-C does not interrupt them. Up to `lanes` threads call them at the same time.
  Running calls have different lane numbers, so state per lane needs no lock. Neither method is
  called after `close()`, and `close()` is never called while one of them runs; `cancel()` may be.
  The constructor and `close()` usually run in the main thread.
* **Views.** A reader with samples in host memory, held or mapped, may return their place by
  `views()`; then nothing is copied. `views()` is called in lanes, except for `hot()` samples: for
  these, in the thread that asks for batches. Outputs of operators that might write to them are
  copied; if all outputs are such, the batch is read by `read()` instead. `views()` of a base class
  is not used for a subclass that overrides `read()` only.
* **Memory.** After `read()` returns or raises, nothing may write to the buffer: the next batch may
  reuse the memory at once.
* **Blocking.** Blocking calls must release the interpreter lock.
* **Taking turns.** The lanes of a cooperative reader (`cooperative = True`) share `copying_lanes`
  turns. A lane holds a turn when `sizes()` or `read()` is called, and calls `yield_turn()` before
  blocking; then another lane starts. A lane does not get the turn back within the same batch.
  Without this call, a lane keeps its turn and reads the next batch, too.
* **Errors.** An unreadable sample is an `OSError(errno, strerror, path)`. A missing library, device
  or permission is a `BackendUnavailable`.
* **Ranges.** A reader that sets `reads_ranges` also reads catalogs whose samples are ranges of
  files. Their sizes are known, so `sizes()` is not called. Each span in `Batch.spans` is one
  contiguous read and fills all ranges in the span. A batch may ask for parts of ranges only, unless
  `reads_parts` is False; `starts` and `sizes` then describe the parts. A container shorter than its
  ranges, or written or replaced since the reader first opened the file, is a
  `ContainerChangedError`, raised before any byte of the container is delivered.
* **Objects.** A class with `schemes`, a tuple of some of `objects.SCHEMES`, reads objects, named by
  URLs with these schemes such as `s3://bucket/key`; other URLs never reach the reader. If the
  catalog has `sizes` and `versions`, an object whose size or version differs is an
  `ObjectReplacedError`. Otherwise each object is compared with its first state seen by the reader.

Some readers can do more. The framework asks for these methods when it opens a reader, and `Reader`
has none of them: `views()` and `hot()` (`SupportsViews`, `SupportsHotViews`); and of the class,
`remote()` to list objects (`SupportsRemote`), and `unavailable()` and `devices()` to report on the
machine (`SupportsStatus`, `SupportsDevices`).

For callers: samples are indices into the catalog, and a batch may contain the same sample more than
once.

Storage with its own list of samples, such as an extent map, offers them as a `tree()`; users then
need not name a directory.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import numpy as np

from . import stages
from ._types import Buffer, IntArray, address_of
from .catalog import Catalog, Tree
from .errors import LIMITS
from .options import Choice
from .ranges import GAP, Spans

if TYPE_CHECKING:
    from .remote import Remote


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The samples to read, and the place of their bytes in a buffer. Valid during one `read()`.

    Attributes:
        samples: int64[n], catalog indices, in the order of the batch.
        starts: int64[n], bytes; the start of each sample, or of the wanted part, in its file.
        sizes: int64[n], bytes of each sample or part. Whole files: exactly as `Reader.sizes()`
            returned them.
        offsets: int64[n], bytes; the start of each sample in `buffer`. Whole files start at
            multiples of `Reader.alignment` and do not overlap. Ranges may overlap, and start within
            their spans: congruent to `starts` modulo `Reader.unit`.
        buffer: memory from `Reader.allocate()`.
        spans: the reads that fill the samples. A whole file is one span.
    """

    samples: IntArray
    starts: IntArray
    sizes: IntArray
    offsets: IntArray
    buffer: Buffer
    spans: Spans

    @property
    def addresses(self) -> IntArray:
        """int64[n], the address of each sample in memory."""
        return address_of(self.buffer) + self.offsets


def copying_lanes(processors: int) -> Choice[int]:
    """Return the default of `Reader.copying_lanes`."""
    # Measured on 2 and 16: more compete for the interpreter lock, whatever DALI's threads do.
    return Choice(1 if processors < 4 else 2 if processors < 8 else 3, f"{processors} processors")


class Durations(Protocol):
    """Durations by their names, such as `dali_storage.runtime.histogram.Times`."""

    def merged(self) -> dict[str, Any]:
        """Return a histogram of nanoseconds for each name."""

    def reset(self) -> None:
        """Forget all durations."""


class Reader(ABC):
    """Base class of storage backends: fills memory with the bytes of samples.

    Attributes:
        alignment: bytes, a power of two. Samples start at multiples of it. The reader may write up
            to the next multiple after the end of a sample; these extra bytes have no meaning.
        unit: bytes, a power of two, a divisor of `alignment`. Spans start and end at multiples of
            the unit in their file.
        gap: bytes; ranges of a file with at most this distance are read as one span. Reading the
            bytes in between should cost less than another read.
        reads_ranges: True if the reader reads catalogs with `ranges`. Otherwise such catalogs are
            refused before the reader is opened.
        reads_parts: True (default) if a batch may ask for parts of ranges. False: only for whole
            ones, as for a reader that caches them.
        lanes: the greatest number of concurrent `read()` calls. Lanes are numbered from 0 to lanes
            - 1.
        cooperative: False (default): all lanes run concurrently; right for readers limited by I/O.
            True: lanes take turns; right for possibly CPU-bound readers, for example on a hot page
            cache.
        device: the kind of memory from `allocate()`: "cpu" (default) or "gpu".
        gpu: the number of the GPU in use; None (default): no GPU.
        pinned: True if `allocate()` returns page-locked host memory (default: False).
        copying_lanes: the number of turns. None (default): that of the function `copying_lanes()`.
        choices: the options that were not given and were chosen by a rule, by name.
        times: the reader's own durations for the statistics, such as request times; None (default):
            none.
    """

    alignment: int = 1
    unit: int = 1
    gap: int = GAP
    reads_ranges: ClassVar[bool] = False
    reads_parts: bool = True
    lanes: int = 1
    cooperative: bool = False
    copying_lanes: int | None = None
    choices: Mapping[str, Choice[Any]] = {}
    device: str = "cpu"
    gpu: int | None = None
    pinned: bool = False
    times: Durations | None = None
    yield_turn: Callable[[], None] = staticmethod(stages.yield_turn)

    @abstractmethod
    def __init__(self, catalog: Catalog) -> None: ...

    @classmethod
    def open(cls, catalog: Catalog, remote: Remote | None, /, **options: Any) -> Reader:
        """Open the catalog by calling the constructor; `remote` listed its objects, or is None.

        A class whose `remote()` holds connections may override this method to reuse them.
        """
        return cls(catalog, **options)

    @abstractmethod
    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        """Return the exact sizes in bytes, int64[n], of `samples`, int64[n].

        The same lane reads these samples next, so open files may be kept for the read. Sizes may be
        cached until `read()` raises `SampleSizeChanged` for a sample. Not called for ranges.

        Raises:
            OSError: a sample has no size, for example because its file is missing; names its path.
        """

    @abstractmethod
    def read(self, batch: Batch, lane: int) -> None:
        """Fill `batch.buffer`. Block until every byte of every sample has arrived.

        Raises:
            SampleSizeChanged: the sizes of some samples differ from `batch.sizes`. From now on,
                `sizes()` returns the new sizes.
            ContainerChangedError: the file of a range is too short or has changed; names its path.
            OSError: a sample cannot be read; names its path. If several fail in the same way, the
                path is the one of the first in the batch.
        """

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate at least `nbytes` at an address that is a multiple of `alignment`.

        The memory is freed with the last reference to it. By default: page-aligned host memory, in
        huge pages where the kernel has them, for fewer page faults.

        Raises:
            MemoryError: there is not so much memory; has the number of bytes.
        """
        try:
            # Private, because the kernel gives shared mappings small pages only.
            memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            what = f"{error.strerror}: a buffer of {nbytes:,} bytes; make batches smaller"
            raise MemoryError(f"{what}, or {LIMITS[errno.ENOMEM]}") from None
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, np.uint8)

    def without_views(self, why: str) -> None:  # noqa: B027  (few readers need it)
        """Learn before the first batch that `views()` is not used; may warn the user."""

    def cancel(self) -> None:  # noqa: B027  (few readers need it)
        """Make the running calls end soon, with any result or error. May do nothing.

        Called from another thread before `close()`; no read follows.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything the constructor acquired. Closing twice is fine."""

    @classmethod
    def tree(cls, **options: Any) -> Tree | None:
        """Return the storage's own list of samples, or None.

        Used when the user names no directory. `options` are the constructor's; wrong ones raise the
        same errors.
        """
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.choices.items())})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled or copied: open another one")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
