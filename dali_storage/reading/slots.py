"""The slots of a reader, with the least that works: they see, replace and count nothing.

A plug is a subclass: `observing.meter.Meter`, `bad_samples.replacement.Replacement`,
`receipts.ledger.Receipts`, those in `dali.gpu_memory`. The slot for the order is
`order.ordering.Ordering`. `readers.plugs` puts the plugs in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.format import Format
from ..contract.reader import Reader
from ..contract.views import Contents
from ..order.ordering import Ordering
from .buffers import BufferPool, Room


class Observer:
    """Sees what a reader does; this one sees nothing. `observing` has the one that users get.

    An observer must not refer to the reader's stream, which would then never be collected.
    """

    def opening(self) -> AbstractContextManager[object]:
        """The calling thread opens the reader in the block; after an error it is closed."""
        return nullcontext()

    def begin(self, reader: Reader, room: Room, bad: Sized) -> None:
        """The reader begins to read, as far ahead as `room` allows; `bad` are its bad samples."""

    def be_lane(self, lane: int) -> None:
        """The calling thread is this lane of the reader from now on."""

    def reading(self, lane: int, index: int, count: int) -> AbstractContextManager[object]:
        """The lane reads a batch in the block, or `count` at once, of which this is the first."""
        return nullcontext()

    def waiting(self, index: int, ready: int) -> AbstractContextManager[list[int]]:
        """The calling thread waits for a batch in the block, and appends the batch's bytes.

        When the batch was asked for, `ready` of the next ones had been read.
        """
        return nullcontext([])

    def closed(self) -> None:
        """The reader is closed. May be called twice."""


class Substitute:
    """Leaves bad samples errors. `bad_samples.replacement` delivers others in their place.

    Attributes:
        replaces: True if other samples are delivered.
        bad: the errors of the known bad samples.
        only: the samples of every batch, to find bad ones; None: as in the order.
    """

    replaces: ClassVar[bool] = False
    bad: Mapping[int, Exception] = {}
    only: IntArray | None = None

    @property
    def found(self) -> list[tuple[int, str, str]]:
        """Index, path and reason of the bad samples."""
        return []

    def chosen(self, samples: IntArray) -> IntArray:
        """Return `samples`, or a copy with other samples in place of known bad ones."""
        return samples

    def add(self, found: Mapping[int, Exception]) -> None:
        """Note bad samples and their errors, which the caller has found."""
        raise next(iter(found.values()))

    def handles(self, error: Exception) -> bool:
        """Return True if another sample may be delivered after this error."""
        return False


class Ledger:
    """Adds up the samples that reach the user; this one counts nothing. `receipts` has another.

    A ledger must not refer to the stream. The last `pending` batches have not reached the user.

    Attributes:
        notes: functions of the stream, the batch at its position and `pending`; each returns a
            function in C that notes the batch.
    """

    notes: Sequence[Callable[[Any, Any, int], Callable[[], object]]] = ()

    def counted(self, fmt: Format, catalog: Catalog, ordering: Ordering) -> Format:
        """Return a format with what is counted as one more output, or `fmt` itself."""
        return fmt

    def drop(self, pending: int) -> None:
        """Forget the last batches, which never reach the user."""

    def begin(self, stream: Any, saved: Any) -> None:
        """Begin at the position of the stream, with the receipts of a state; None: it has none."""

    def saved(self, stream: Any, pending: int) -> dict[str, Any]:
        """Return what a state or a checkpoint has of the ledger."""
        return {}

    def receipt(self, stream: Any, pending: int, epoch: int | None, source: Any) -> dict[str, Any]:
        """Return the receipt of an epoch, see `readers.receipt()`; ValueError: there is none."""
        raise ValueError(f"{stream} has no receipts: create it with receipt=")


class Memory:
    """The memory of batches: host memory, which DALI shares. `dali.gpu_memory` has that of GPUs.

    The last four are methods of a plug that has to do with a GPU; host memory has none of them.

    Attributes:
        buffers: the pool.
        kind: "cpu"; "pinned", page-locked host memory; or "gpu".
        current: makes a GPU (its number) the current one of the thread in a block.
        hold: returns what holds each batch for DALI's executor until a GPU has read it.
        page_locked: returns True if all samples are in page-locked memory.
        copied: returns the list of samples, the stream and the flag with which DALI copies them.
    """

    kind = "cpu"
    current: Callable[[int], AbstractContextManager[object]] | None = None
    hold: Callable[[Any, int], Callable[[Sequence[Contents]], object]] | None = None
    page_locked: Callable[[Contents], bool] | None = None
    copied: Callable[[Contents], tuple[Any, Any, bool]] | None = None

    def __init__(self, buffers: BufferPool) -> None:
        """Use the buffers of a pool."""
        self.buffers = buffers

    def why_not_views(self, reader: Reader, views: Collection[int]) -> str:
        """Explain why no output may be memory of the backend; empty if `views` may."""
        if _reads_anew(type(reader)):
            return f"{type(reader).__name__} has its own read() and no views()"
        if not views:
            return "operators other than decoders use its outputs, and might write to them"
        return ""


def _reads_anew(kind: type[Reader]) -> bool:
    """Return True if a class has its own `read()`, bypassed by the `views()` of a base class."""
    names = [name for base in kind.__mro__ for name in ("views", "read") if name in vars(base)]
    return names[0] == "read"
