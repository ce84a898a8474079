"""The backend contract: what a `Reader` is given and what it must guarantee.

A backend is one class with one job. It gets a catalog, which lists the samples, and fills memory
with the bytes of those in a batch. The rest is done elsewhere: listing files, labels, order,
shuffling, epochs, buffers and their lifetimes, threads, reading ahead, and DALI's types.

For implementers:

* **Opening.** `__init__(self, catalog, *, option=default, ...)` opens everything or raises and
  leaves nothing open. Options are keyword-only. Unknown options are refused before the class is
  called.
* **Threads.** `sizes()` and `read()` are only called in lanes: threads that are never the main
  thread, so that no Ctrl-C interrupts them. Up to `lanes` threads call them at the same time. Each
  call has a lane number that no other running call has, so whatever belongs to a lane needs no
  lock. After `close()` neither is called, and `close()` is never called while one of them runs;
  `cancel()` may be. The constructor and `close()` usually run in the main thread.
* **Views.** A reader that holds samples in host memory, or maps them, may say where they are by
  `views()`, which is called in lanes, too. Nothing is copied then. Only of samples that are `hot()`
  they are taken in the thread that asks for batches. Where outputs go to operators that might write
  to them, the batch is copied: by `read()`, if that holds for all outputs. A subclass that has its
  own `read()` and no `views()` is read.
* **Memory.** When `read()` returns or raises, nothing may write to the buffer any more: the next
  batch may use it at once.
* **Blocking.** A call that blocks must release the interpreter lock.
* **Taking turns.** The lanes of a cooperative reader (`cooperative = True`) share `copying_lanes`
  turns. A lane holds a turn when `sizes()` or `read()` is called, and passes it on by
  `yield_turn()` before it blocks; then another lane starts. It gets no turn back within the same
  batch. A lane that never calls `yield_turn()` keeps its turn and reads the next batch, too.
* **Errors.** A sample that cannot be read is an `OSError(errno, strerror, path)`. What is missing
  on the machine is a `BackendUnavailable`.
* **Ranges.** A reader that sets `reads_ranges` also reads catalogs whose samples are ranges of
  files. Their sizes are known, so `sizes()` is not called, and each span in `Batch.spans` is one
  contiguous read that fills all ranges in it. A batch may want parts of ranges only; its `starts`
  and `sizes` are those of the parts. A container that is shorter than its
  ranges, or that has been written or replaced since the reader first saw it, is a
  `ContainerChangedError`, raised before a byte of it is delivered.
* **Objects.** A reader that sets `schemes` reads objects that URLs with these schemes name, such as
  `s3://bucket/key`; no other URLs reach it. It finds them by a `remote()`. If the catalog has
  `sizes` and `versions`, an object with another of either is an `ObjectReplacedError`. Otherwise
  it is compared with what it was when the reader first saw it.

For callers: samples are indices into the catalog, and a batch may contain one more than once.

Storage that knows its samples without a directory listing, such as an extent map, offers them as a
`tree()`; users then need not name a directory.
"""

from __future__ import annotations

import contextlib
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ._types import Buffer, IntArray, address_of
from .catalog import Catalog, Tree
from .devices import DeviceStatus
from .errors import BackendUnavailable
from .histogram import Times
from .objects import Remote
from .ranges import GAP, Spans
from .views import Views


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Which samples to read, and where in a buffer their bytes go. Valid during one `read()`.

    Attributes:
        samples: int64[n], catalog indices, in the order of the batch.
        starts: int64[n], where in its file each sample starts, or the part of it that is wanted.
        sizes: int64[n], bytes of each: of whole files exactly as `Reader.sizes()` returned them.
        offsets: int64[n], where each sample starts in `buffer`: bytes. Whole files start at
            multiples of `Reader.alignment` and do not overlap. Ranges may, and start within their
            spans: congruent to `starts` modulo `Reader.unit`.
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
        """int64[n], where each sample starts in memory."""
        return address_of(self.buffer) + self.offsets


class Reader(ABC):
    """Fills memory with the bytes of samples.

    Attributes:
        alignment: bytes, a power of two. Samples start at multiples of it. The reader may write up
            to the next multiple after a sample's end; those extra bytes have no meaning.
        unit: bytes, a power of two that divides `alignment`: spans start and end at multiples of it
            in their file.
        gap: bytes; ranges of a file that follow each other within it are in one span. To read what
            is between them should cost less than another read.
        reads_ranges: whether it reads catalogs with `ranges`. Others are refused before it is
            opened.
        schemes: of the URLs that it reads, a part of `remote.SCHEMES`; none (default): only files.
        lanes: how many `read()` calls may run at the same time. They are numbered from 0 to
            lanes - 1.
        cooperative: False (default): all lanes run concurrently; right for readers that mostly
            block on I/O. True: lanes take turns; right for readers that may be CPU-bound, for
            example on a hot page cache.
        device: where `allocate()` allocates: "cpu" (default) or "gpu".
        gpu: the number of the GPU that the reader uses; None (default) if it uses none.
        pinned: whether `allocate()` returns page-locked host memory (default: False).
        copying_lanes: how many turns there are. None (default): as many as DALI's threads leave
            processors over, at least one.
        has_views: whether `views()` may say where samples are (default: False).
        times: durations of its own for the statistics, such as of requests; None (default): none.
        yield_turn: set by the prefetcher; does nothing until then, nor if it is called again.
    """

    alignment: int = 1
    unit: int = 1
    gap: int = GAP
    reads_ranges: ClassVar[bool] = False
    schemes: ClassVar[tuple[str, ...]] = ()
    lanes: int = 1
    cooperative: bool = False
    copying_lanes: int | None = None
    device: str = "cpu"
    gpu: int | None = None
    pinned: bool = False
    has_views: bool = False
    times: Times | None = None
    yield_turn: Callable[[], None] = staticmethod(lambda: None)

    @abstractmethod
    def __init__(self, catalog: Catalog) -> None: ...

    @classmethod
    def open(cls, catalog: Catalog, remote: Remote | None, /, **options: Any) -> Reader:
        """Open the catalog that `remote` has found, if there is one: calls the constructor.

        A class whose `remote()` has connections may override it, to use them further.
        """
        return cls(catalog, **options)

    @abstractmethod
    def sizes(self, samples: IntArray, lane: int) -> IntArray:
        """The exact sizes in bytes, int64[n], of `samples`, int64[n].

        The same lane reads them next, so what was opened may be kept for it. Sizes may be cached
        until `read()` raises `SampleSizeChanged` for a sample. Not called for ranges.

        Raises:
            OSError: a sample has no size, for example because its file is missing; names its path.
        """

    @abstractmethod
    def read(self, batch: Batch, lane: int) -> None:
        """Fill `batch.buffer`. Blocks until every byte of every sample is there.

        Raises:
            SampleSizeChanged: some samples no longer have their `batch.sizes`. From now on,
                `sizes()` returns their new ones.
            ContainerChangedError: the file of a range is too short or has changed; names its path.
            OSError: a sample cannot be read; names its path. If several fail in the same way, it is
                the first of the batch.
        """

    def views(self, samples: IntArray, lane: int) -> Views | None:
        """Where `samples` are in host memory that nobody writes to any more; None: read them.

        It takes the place of `sizes()` and `read()`, and raises their errors. The memory stays as
        it is while a slice of it is referred to, also after `close()`.
        """
        return None

    def hot(self, samples: IntArray) -> bool:
        """Whether `views()` of these samples is not None and does not block.

        If so, both are called in the thread that asks for batches, usually the main thread, where a
        Ctrl-C may interrupt them; `lane` is then the number of lanes.
        """
        return False

    def without_views(self, why: str) -> None:  # noqa: B027  (most readers need not know)
        """Called before the first batch if `views()` will not be; `why` may be told to the user."""

    def allocate(self, nbytes: int) -> Buffer:
        """Allocate at least `nbytes` at an address that is a multiple of `alignment`.

        The memory is freed when the last reference to it dies. By default it is host memory,
        aligned to a page, in huge pages where the kernel has them: fewer page faults.
        """
        # Private, because the kernel gives shared mappings small pages only.
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a kernel without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, np.uint8)

    def cancel(self) -> None:  # noqa: B027  (most readers have nothing to do)
        """Have the calls that are under way end soon, with any result or error. May do nothing.

        Called from another thread before `close()`; nothing is read after it.
        """

    @abstractmethod
    def close(self) -> None:
        """Release everything the constructor acquired. Closing twice is fine."""

    @classmethod
    def tree(cls, **options: Any) -> Tree | None:
        """The samples that the storage itself knows, for users who name no directory, or None.

        `options` are those of the constructor, which raises the same errors.
        """
        return None

    @classmethod
    def remote(cls, **options: Any) -> Remote | None:
        """What lists objects and reads indexes of containers, or None. `options` as in `tree()`.

        Without it, a backend with `schemes` reads only the objects that `files` or `file_list`
        names.
        """
        return None

    @classmethod
    def unavailable(cls) -> BackendUnavailable | None:
        """Why this backend cannot work on this machine, with the remedy; None if it can."""
        return None

    @classmethod
    def devices(cls) -> Iterable[DeviceStatus]:
        """The devices of this machine that this backend could read or read into, for the doctor.

        An option that needs more than every machine has may be listed, too. Devices are opened
        read-only for a moment, if at all.
        """
        return ()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
