"""The batches of one reader for one pipeline: opening and closing. No DALI here."""

import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.errors import MemoryIsShort
from ..contract.views import views_of
from ..order import OrderOptions, reader_meta
from ..order.ordering import Remainder
from ..order.sequence import Batches
from .buffers import Room, make_room
from .lanes import Gate
from .loading import LoadedBatch, Loading
from .opening import Opened, Opening
from .position import Position
from .prefetch import Prefetcher
from .slots import Memory, Observer, Substitute

_RECENT = 4  # batches; with a prefetch queue of 2, DALI itself holds 2 to 3 of them


class BatchStream:
    """An endless stream of full batches.

    It goes through three steps, each made from the one before: `open()` finds the samples and opens
    the backend, `configure()` sets the order, `start()` begins to read.

    `batch()` returns the same batch until `position` moves on.

    The reader, its files and its threads are closed by `close()`, or when the source is
    garbage-collected.

    Attributes:
        opening: how to open, and how to read.
        fmt: makes the outputs of a batch.
        options: the arguments of the order, with the pipeline's part after `configure()`.
        batch_size: of the pipeline; 0 before `configure()`.
        shared_seed: True if all ranks have the seed of `options`.
        position: the position in the stream.
        rest: the part of a resumed epoch left by other ranks; else None.
        resumed: True if the stream was moved to a state.
        restored: True if the stream was moved to a checkpoint.
        saved: a place for the saver of positions, which is costly to make; None after
            `configure()`.
        substitute: the handling of bad samples; known after `start()`.
        observer: sees what the reader does.
        ledger: adds up the samples that reach the user.
        ended: the reason for `batch()` to refuse, after `close()` or `end()`; None before.
        memory: the memory of the batches; made by `start()`.
        recent: the outputs of the last batches given to DALI; empty after `close()`.
    """

    _remedy = "build a new pipeline"

    def __init__(self, name: str, opening: Opening) -> None:
        """Open nothing yet. `name` is for error messages."""
        self._name = name
        self.opening = opening
        self.fmt = opening.fmt
        self.options: OrderOptions = opening.order
        self.batch_size = 0
        self.shared_seed = True
        self.position = Position()
        self.rest: Remainder | None = None
        self.resumed = self.restored = False
        self.saved: object = None
        self.substitute = Substitute()
        self.observer: Observer = opening.observe(name, repr(self))
        self.ledger = opening.ledger()
        self.ended: str | None = None
        self.memory: Memory
        # DALI drops its references in a thread of its own, which waits for the interpreter lock if
        # one is the last. These outlive DALI's, and are dropped in the thread that asks for more.
        self.recent: deque[object] = deque(maxlen=_RECENT)
        self._process = os.getpid()
        self._opened: Opened | None = None
        self._prefetcher: Prefetcher | None = None
        self._finalizer: weakref.finalize[..., object] | None = None

    def open(self) -> Opened:
        """Return the samples, the open backend and the order; the first call opens them.

        After `close()` the backend is closed. Raises as `Opening.open()`.
        """
        if self._opened is None:
            self._refuse_ended()
            with self.observer.opening():
                opened = self.opening.open()
            self._close_when_collected(opened.reader.close)
            self._opened = opened
        return self._opened

    @property
    def configured(self) -> bool:
        """True after `configure()` has succeeded."""
        return self.batch_size > 0 and (self.opening.resume is None or self.resumed)

    def configure(
        self, *, batch_size: int, seed: int | None, checkpointing: bool, shared_seed: bool = True
    ) -> None:
        """Set the pipeline's part of the order; before `start()`, states and checkpoints.

        A `seed` replaces the reader's own. With `shared_seed`, the seed is the same on all ranks.
        Raises as `Opening.resume`.
        """
        seed = self.options.seed if seed is None else seed
        self.options = replace(self.options, seed=seed, checkpointing=checkpointing)
        self.batch_size, self.shared_seed, self.saved = batch_size, shared_seed, None
        if self.opening.resume is not None:
            self.opening.resume(self)

    def batches(self) -> Batches:
        """Make the order of the batches, after `configure()`; it is not thread-safe."""
        return self.open().ordering.make(self.options, self.batch_size, self.rest)

    @property
    def meta(self) -> dict[str, int]:
        """The result of `pipe.reader_meta(name)` for this reader."""
        return reader_meta(self.open().ordering.epoch_size, self.options)

    @property
    def has_begun(self) -> bool:
        """True after `start()`."""
        return self._prefetcher is not None

    def choose_memory(self, device_id: int | None) -> Callable[[Room], Memory]:
        """Open the backend; return what makes the memory for a pipeline on this GPU, or on none.

        Raises ValueError as `Opening.memory`.
        """
        return self.opening.memory(repr(self), self.open().reader, device_id)

    def start(
        self,
        *,
        device_id: int | None,
        gate: Gate | None = None,
        views: Collection[int] = (),
        held: int = 1,
    ) -> None:
        """Open the backend, unless already open; then `batch()` may be called.

        The arguments are the pipeline's; its readers share the `gate`, and its queue has up to
        `held` batches. `views`: the numbers of the format's outputs that nobody can write to; they
        may be memory of the backend, unless batches are page-locked.
        """
        self._refuse_fork()
        self._refuse_ended()
        make = self.choose_memory(device_id)
        catalog, reader, ordering = self.open()
        depth = max(self.opening.depth, reader.lanes)
        self.memory = make(make_room(depth, self.opening.buffer_bytes, held))
        if views_of(reader) and (why := self.memory.why_not_views(reader, views)):
            reader.without_views(f"{self}: {why}")
            views = ()
        on_error = self.opening.on_error
        kind = Loading if on_error is None else on_error.loading(catalog, ordering)
        fmt = self.ledger.counted(self.fmt, catalog, ordering)
        loading = kind(catalog, reader, fmt, self.memory.buffers, views)
        self.substitute = loading.substitute
        self._prefetcher = Prefetcher(
            loading,
            self.batches(),
            gate=gate,
            observer=self.observer,
            name=self._name,
        )
        # In place of the reader's `close()`: the lanes must end before the reader is closed.
        self._close_when_collected(self._prefetcher.close)

    def read_ahead(self) -> None:
        """Start reading the batch at the position, and its successors, without waiting."""
        assert self._prefetcher is not None, "start() comes first"
        try:
            self._prefetcher.read_ahead(self.position.next, self.position.successor)
        except Exception:
            self._refuse_ended()  # another thread has closed it meanwhile
            raise

    def change_order(self, stays: Callable[[int], bool]) -> None:
        """Make the order again after a change; batches read ahead stay where `stays(index)`."""
        if self._prefetcher is not None:
            self._prefetcher.change_order(self.batches(), stays)

    def batch(self) -> LoadedBatch:
        """Return the batch at the position; block until read. After an error, try again.

        Raises:
            MemoryError: there is not enough memory; names the reader and the batch.
        """
        self._refuse_fork()
        self._refuse_ended()
        assert self._prefetcher is not None, "start() comes first"
        room = self._prefetcher.room
        if not (spare := room.spare) and self.recent.maxlen and room.short:
            self._save_memory(room)
        while len(self.recent) > spare // 2:
            self.recent.popleft()
        try:
            # The position stays: if another source fails, DALI drops this batch and needs it again.
            batch = self._prefetcher.get(self.position.next, self.position.successor)
        except MemoryError as error:
            what = f"batch {self.position.next} of {self.batch_size} samples"
            raise MemoryError(f"{self}: {what}: {str(error) or 'no memory'}") from None
        except Exception:
            self._refuse_ended()  # another thread has closed it meanwhile
            raise
        self._refuse_ended()  # likewise: memory of a closed backend may be empty
        return batch

    def close(self) -> None:
        """Wait for running reads; close the reader, its files and its threads. Twice is fine.

        `meta`, `labels()`, `samples()` and the observer's figures still work; `batch()` raises
        `RuntimeError`.
        """
        self.ended = self.ended or f"{self} is closed; {self._remedy} to read again"
        if self._finalizer is not None and (todo := self._finalizer.peek()):
            _, close, arguments, _ = todo
            close(*arguments)
            self._finalizer.detach()  # not before: after a Ctrl-C there is more to close
        self.recent.clear()

    def end(self, error: Exception) -> None:
        """Refuse to go on after `error`, at which DALI has dropped the batch of another source."""
        self.ended = self.ended or (
            f"{self}: a read failed ({type(error).__name__}: {error}), and DALI dropped a batch of "
            f"another source of this pipeline; {self._remedy}, from a checkpoint to continue"
        )

    def samples(self, position: int) -> IntArray:
        """Return the samples of any batch, int64[n], for messages: a jump in a shuffle is slow.

        Raises:
            RuntimeError: `start()` has not been called, so the batch size is unknown.
        """
        if self._prefetcher is None:
            raise RuntimeError(f"{self}: batches are unknown until the pipeline has begun to read")
        return self.batches().batch(position)

    def labels(self, batch: LoadedBatch) -> NDArray[np.int32]:
        """Return the labels of the batch's samples: int32[n], owned by the caller."""
        return self.open().catalog.labels[batch.samples]

    def __repr__(self) -> str:
        return f"dali_storage.readers.{self.fmt.operator}(name={self._name!r})"

    def _save_memory(self, room: Room) -> None:
        """Keep no batch that was delivered, and say so."""
        self.recent = deque(maxlen=0)
        what = f"{self}: batches of {room.largest:,} bytes, the next ones and those in DALI's queue"
        short = f"{room.shortage}: none is read ahead"
        remedy = "give a smaller batch_size or prefetch_queue_depth of the pipeline"
        warnings.warn(f"{what}, {short}; {remedy}", MemoryIsShort, stacklevel=4)

    def _refuse_ended(self) -> None:
        if self.ended:
            raise RuntimeError(self.ended)

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self}: its files and threads belong to process {self._process}, not to its fork "
                f"{os.getpid()}; create the reader in the process that runs it"
            )

    def _close_when_collected(self, close: Callable[[], None]) -> None:
        before = self._finalizer
        closing = self._process, close, self.observer.closed
        self._finalizer = weakref.finalize(self, _close_in, *closing)
        if before is not None:
            before.detach()  # not before: a Ctrl-C in between would leave nothing that closes
        if self.ended:  # another thread has closed it meanwhile
            self.close()
            self._refuse_ended()


def _close_in(process: int, close: Callable[[], None], closed: Callable[[], None]) -> None:
    """Close, unless in a fork."""
    # A fork shares the files with its parent, and has none of the threads.
    if os.getpid() == process:
        try:
            # Watched until the end, because closing may hang, too.
            close()
        except Exception:
            closed()
            raise
        closed()
