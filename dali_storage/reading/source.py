"""The batches of one reader for one pipeline: opening and closing. No DALI here."""

import operator
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import cuda
from ..contract._types import IntArray
from ..contract.activity import Activities
from ..contract.catalog import Catalog
from ..contract.options import require_integer
from ..contract.reader import Reader
from ..order import reader_meta
from ..order.resume import Rest
from ..order.sampling.stream import SampleStream
from . import stalls
from .buffers import make_pool
from .lanes import Gate
from .opening import Opening
from .ordering import Ordering
from .position import Position
from .prefetch import LoadedBatch, Prefetcher
from .replacement import Replacement
from .statistics import OPEN, ReaderStatistics, Tally

_RECENT = 4  # batches; with a prefetch queue of 2, DALI itself holds 2 to 3 of them


class BatchStream:
    """An endless stream of full batches.

    `batch()` returns the same batch until `position` moves on. If one source of a pipeline fails,
    DALI drops the batches of the others, which must then return them again. Otherwise two readers
    of one pipeline would get out of step.

    The reader, its files and its threads are closed by `close()`, or when the source is
    garbage-collected.

    Attributes:
        position: the position in the stream.
        resumed: True after `resume()` has moved the stream.
        restored: True after `restore()` has moved the stream.
        rest: the part of a resumed epoch left by other ranks; else None.
        ended: the reason for `batch()` to refuse, after `close()` or `end()`; None before.
        fmt: makes the outputs of a batch.
        on_error: the handling of bad samples.
        pinned: True if batches are in page-locked host memory; known after `start()`.
        recent: the outputs of the last batches given to DALI; empty after `close()`. DALI drops its
            references in a thread of its own, and waits for the interpreter lock if a reference is
            the last. The references here outlive DALI's and are dropped in the thread that asks for
            batches.
        stream: the stream for DALI's copies of batches in GPU memory. Buffers are reused when these
            copies are done. None for batches in host memory.
        replacement: the bad samples, after `start()`; None if these are errors.
    """

    _remedy = "build a new pipeline"

    def __init__(self, name: str, opening: Opening) -> None:
        """Open nothing yet. `name` is for error messages."""
        self._name = name
        self._opening = opening
        self.position = Position()
        self.resumed = self.restored = False
        self.rest: Rest | None = None
        self._order = opening.order
        self._resume = opening.resume
        self._batch_size = 0  # until configure()
        self._shared_seed = True
        self.fmt, self.on_error = opening.fmt, opening.on_error
        self._process = os.getpid()
        self.pinned = False
        self.stream: cuda.CudaStream | None = None
        self.ended: str | None = None
        self.replacement: Replacement | None = None
        self.recent: deque[object] = deque(maxlen=_RECENT)
        self._opened: tuple[Catalog, Reader] | None = None
        self._samples: SampleStream | None = None  # None: in the order of DALI
        self._prefetcher: Prefetcher | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._watched: stalls.Watched | None = None

    def open(self) -> tuple[Catalog, Reader]:
        """Return the samples and the open backend; the first call opens them and raises its errors.

        After `close()` the backend is closed.
        """
        if self._opened is None:
            self._refuse_ended()
            watched = stalls.WATCHDOG.watch(repr(self), self._opening.stall_after)
            try:
                with watched.opening():
                    catalog, reader, self._samples = self._opening.open()
            except BaseException:
                stalls.WATCHDOG.forget(watched)
                raise
            self._watched = watched
            self._close_when_collected(reader.close)
            self._opened = catalog, reader
        return self._opened

    @property
    def configured(self) -> bool:
        """True after `configure()` has succeeded."""
        return self._batch_size > 0 and (self._resume is None or self.resumed)

    def configure(
        self, *, batch_size: int, seed: int | None, checkpointing: bool, shared_seed: bool = True
    ) -> None:
        """Set the pipeline's part of the order; before `start()`, states and checkpoints.

        A `seed` replaces the reader's own. With `shared_seed`, the seed is the same on all ranks.

        Raises:
            TypeError, ValueError: see `resume()`.
        """
        seed = self._order.seed if seed is None else seed
        self._order = replace(self._order, seed=seed, checkpointing=checkpointing)
        self._batch_size, self._shared_seed = batch_size, shared_seed
        vars(self).pop("ordering", None)  # of other settings
        if self._resume is not None:
            self.resume(self._resume)

    @property
    def meta(self) -> dict[str, int]:
        """The result of `pipe.reader_meta(name)` for this reader."""
        catalog, _ = self.open()
        size = catalog.delivered if self._samples is None else self._samples.epoch_size
        return reader_meta(size, self._order)

    def require_gpu(self, device_id: int | None) -> None:
        """Open the backend; refuse a pipeline with another GPU than the backend, or without one."""
        _, reader = self.open()
        if reader.gpu is not None and reader.gpu != device_id:
            has = "no GPU" if device_id is None else f"GPU {device_id}"
            raise ValueError(
                f"{self}: the reader uses GPU {reader.gpu}, and the pipeline has {has}; set 'gpu' "
                "in backend_options and the pipeline's device_id to the same GPU"
            )
        if self._opening.pinned and reader.device == "gpu":
            raise ValueError(
                f"{self}: pinned=True is for host memory; leave out pinned if device='gpu'"
            )
        if self._opening.pinned and device_id is None:
            raise ValueError(f"{self}: pinned=True needs a pipeline with a GPU; set its device_id")

    def start(
        self,
        *,
        num_threads: int,
        device_id: int | None,
        gate: Gate | None = None,
        views: Collection[int] = (),
    ) -> None:
        """Open the backend, unless already open; then `batch()` may be called.

        The arguments are the pipeline's; its readers share the `gate`. `views`: the numbers of the
        format's outputs that nobody can write to; they may be memory of the backend, unless batches
        are page-locked.
        """
        self._refuse_fork()
        self._refuse_ended()
        self.require_gpu(device_id)
        catalog, reader = self.open()
        pool = make_pool(repr(self), reader, device_id, self._opening.pinned)
        self.pinned, self.stream = pool.pinned, pool.stream
        if reader.has_views and (why := pool.why_not_views(reader, views)):
            reader.without_views(f"{self}: {why}")
            views = ()
        self._prefetcher = Prefetcher(
            catalog,
            reader,
            self.ordering.make(self.rest),
            self._opening.depth,
            pool=pool.buffers,
            dali_threads=num_threads,
            fmt=self.fmt,
            gate=gate,
            views=views,
            on_error=self.on_error,
            members=self.ordering.members,
            activities=Activities(self._name, reader.lanes),
        )
        self._prefetcher.on_close = OPEN.add(self._prefetcher.tally)
        if self._watched is not None:
            self._watched.read(self._prefetcher.tally)
        self.replacement = self._prefetcher.replacement
        self._close_when_collected(self._prefetcher.close)

    def read_ahead(self) -> None:
        """Start reading the batch at the position, and its successors, without waiting."""
        assert self._prefetcher is not None, "start() comes first"
        self._prefetcher.read_ahead(self.position.next, self.position.successor)

    def checkpoint(self, pending: int) -> dict[str, Any]:
        """Make a checkpoint, with `pending` batches given to DALI but not yet to the user."""
        return self.ordering.saved.checkpoint(
            self.position.delivered(pending), self.rest, self._resume
        )

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Move to the position of a checkpoint.

        Raises:
            ValueError: the checkpoint is damaged, or of another data set or order, or the reader
                has `resume`, too.
        """
        if self._resume is not None:
            either = "either checkpoint= to the pipeline or resume= to the reader"
            raise ValueError(f"{self} cannot begin at two places; pass {either}")
        saved = self.ordering.saved.read_checkpoint(checkpoint)
        if saved["resumed"] is not None:
            self.resume(saved["resumed"])
        self.ordering.replay(saved["changes"])
        self.position.seek(saved["batches"])
        self.restored = True

    def state(self, pending: int) -> dict[str, Any]:
        """Make a state for `resume()`; the same on all ranks after equally many batches.

        Its seed is None if the ranks may have different seeds.

        Raises:
            ValueError: the reader does not pad its last batches.
        """
        return self.ordering.saved.state(self.position.delivered(pending), self.rest)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where `state()` was called, with any number of ranks and batch size.

        After `configure()` and before `start()`. Each sample of the remaining epoch is delivered
        once, by one of the ranks; then whole epochs follow. `rest` describes the remaining batches.

        Raises:
            TypeError, ValueError: the state is damaged, or of another data set or order; names the
                reader.
            RuntimeError: the reader has begun to read.
        """
        if self._prefetcher is not None:
            raise RuntimeError(f"{self} has begun to read; resume it before the first batch")
        position, self.rest, self._resume = self.ordering.saved.read_state(state)
        self.ordering.replay(self._resume.get("changes", []))
        self.resumed = True
        self.position.seek(position)

    def set_weights(self, weights: Mapping[Any, Any], at: int | None) -> int:
        """Change the weights of the mixture from a position of the stream on; return the position.

        By default from the first batch that DALI does not have yet.

        Raises:
            ValueError, TypeError: the weights are wrong; DALI already has batches from `at` on; or
                the reader has no weights.
        """
        at = self.place_of(self.position.next) if at is None else at
        position = self.require_change(weights, at)
        self.ordering.set_weights(weights, position)
        if self._prefetcher is not None:
            order = self.ordering.dealt(self.rest)
            self._prefetcher.change_order(order, lambda index: order.start(index + 1) <= position)
        return position

    def require_change(self, weights: Mapping[Any, Any], at: int) -> int:
        """Refuse wrong arguments of `set_weights()`; return the position."""
        self.ordering.mixture.with_weights(weights, 0)
        require_integer("set_weights", "at", position := operator.index(at), range(2**62))
        if position < (least := self.place_of(self.position.next)):
            what = f"at must be at least {least}, not {position}"
            raise ValueError(f"{self}: {what}: DALI already has the batches before")
        return position

    def place_of(self, index: int) -> int:
        """Return the position of a global batch's start in the stream of samples."""
        return self.ordering.dealt(self.rest).start(index)

    def progress(self, pending: int) -> dict[Any, tuple[int, int]]:
        """Return, for each source, the samples delivered in all and the number of whole passes."""
        position = self.place_of(self.position.delivered(pending))
        return self.ordering.mixture.progress(position)

    @cached_property
    def ordering(self) -> Ordering:
        """The order of the samples, after `configure()`."""
        settings = self._order, self._batch_size, self._shared_seed
        return Ordering(repr(self), self.open()[0], self._samples, *settings)

    def batch(self) -> LoadedBatch:
        """Return the batch at the position; block until read. After an error, try again.

        Raises:
            MemoryError: there is not enough memory; names the reader and the batch.
        """
        self._refuse_fork()
        self._refuse_ended()
        assert self._prefetcher is not None, "start() comes first"
        try:
            return self._prefetcher.get(self.position.next, self.position.successor)
        except MemoryError as error:
            what = f"batch {self.position.next} of {self._batch_size} samples"
            raise MemoryError(f"{self}: {what}: {str(error) or 'no memory'}") from None

    @property
    def statistics(self) -> ReaderStatistics:
        """The statistics of the batches until now, also after `close()`; zeros before `start()`."""
        return ReaderStatistics() if self._prefetcher is None else self._prefetcher.statistics

    @property
    def tally(self) -> Tally | None:
        """The counters, also after `close()`; None before `start()`."""
        return None if self._prefetcher is None else self._prefetcher.tally

    def close(self) -> None:
        """Wait for running reads; close the reader, its files and its threads. Twice is fine.

        `meta`, `statistics`, `labels()` and `samples()` still work; `batch()` raises
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
        return self.ordering.make(self.rest).batch(position)

    def latest(self, pending: int) -> list[IntArray]:
        """Return the samples of the user's last batch, if any, and of the `pending` next ones."""
        order = self.ordering.make(self.rest)
        samples = [order.batch(index) for index in self.position.latest(pending)]
        return samples if self.replacement is None else [*map(self.replacement.chosen, samples)]

    def labels(self, batch: LoadedBatch) -> NDArray[np.int32]:
        """Return the labels of the batch's samples: int32[n], owned by the caller."""
        return self.open()[0].labels[batch.samples]

    def __repr__(self) -> str:
        return f"dali_storage.readers.{self.fmt.operator}(name={self._name!r})"

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
        assert self._watched is not None, "open() sets it first"
        closing = self._process, close, self._watched
        self._finalizer = weakref.finalize(self, _close_in, *closing)
        if before is not None:
            before.detach()  # not before: a Ctrl-C in between would leave nothing that closes


def _close_in(process: int, close: Callable[[], None], watched: stalls.Watched) -> None:
    """Close, except in a fork, which shares files with the parent and has none of the threads."""
    if os.getpid() == process:
        try:
            close()  # which may hang, too
        except Exception:
            stalls.WATCHDOG.forget(watched)
            raise
        stalls.WATCHDOG.forget(watched)
