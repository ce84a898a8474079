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

    `batch()` returns the same batch until `position` moves on. If one source of a
    pipeline fails, DALI drops the batches of the others, which must then return them again.
    Otherwise two readers of one pipeline would get out of step.

    The reader, its files and its threads are closed by `close()`, or when the source is
    garbage-collected.

    Attributes:
        position: where it is.
        resumed: whether `resume()` has moved it.
        restored: whether `restore()` has moved it.
        rest: what is left of the epoch that it was moved into, if others began it; else None.
        ended: why `batch()` refuses to go on, after `close()` or `end()`; None before.
        fmt: makes the outputs of a batch.
        on_error: what is done about bad samples.
        pinned: whether batches are in page-locked host memory; known after `start()`.
        recent: what DALI was given of the last batches; empty after `close()`. DALI drops its
            references in a thread of its own, and waits for the interpreter lock if one is the
            last. These outlive them and are dropped in the thread that asks for batches.
        stream: where DALI must queue its copies of batches in GPU memory. Their buffers are used
            again when these copies are done. None for batches in host memory.
        replacement: the bad samples, after `start()`; None if these are errors.
    """

    _remedy = "make the pipeline anew"

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
        """The samples and the open backend; opened by the first call, which raises its errors.

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
        """Whether `configure()` has succeeded."""
        return self._batch_size > 0 and (self._resume is None or self.resumed)

    def configure(
        self, *, batch_size: int, seed: int | None, checkpointing: bool, shared_seed: bool = True
    ) -> None:
        """Take what the pipeline decides about the order; before `start()`, states and checkpoints.

        A `seed` replaces the reader's own. `shared_seed` says that it is the same on all ranks.

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
        """What `pipe.reader_meta(name)` returns for this reader."""
        catalog, _ = self.open()
        size = catalog.delivered if self._samples is None else self._samples.epoch_size
        return reader_meta(size, self._order)

    def require_gpu(self, device_id: int | None) -> None:
        """Open the backend; refuse a pipeline on this GPU, or on none, if it cannot serve it."""
        _, reader = self.open()
        if reader.gpu is not None and reader.gpu != device_id:
            has = "no GPU" if device_id is None else f"GPU {device_id}"
            raise ValueError(
                f"{self}: the reader uses GPU {reader.gpu}, and the pipeline has {has}; give both "
                "the same: 'gpu' in backend_options, device_id of the pipeline"
            )
        if self._opening.pinned and reader.device == "gpu":
            raise ValueError(f"{self}: pinned=True is for host memory, and device='gpu' has none")
        if self._opening.pinned and device_id is None:
            raise ValueError(f"{self}: pinned=True needs a pipeline with a GPU: give it device_id")

    def start(
        self,
        *,
        num_threads: int,
        device_id: int | None,
        gate: Gate | None = None,
        views: Collection[int] = (),
    ) -> None:
        """Open the backend, unless it is open; then `batch()` may be called.

        The arguments are those of the pipeline; its readers share the `gate`. `views`: the
        numbers of the outputs of the format that nobody can write to, so they may be memory of the
        backend, unless batches are page-locked.
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
        """Begin to read the batch at the position, and those after it; do not wait for them."""
        assert self._prefetcher is not None, "start() comes first"
        self._prefetcher.read_ahead(self.position.next, self.position.successor)

    def checkpoint(self, pending: int) -> dict[str, Any]:
        """For a checkpoint, when `pending` batches were taken and not yet delivered to the user."""
        return self.ordering.saved.checkpoint(
            self.position.delivered(pending), self.rest, self._resume
        )

    def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Move to the position of a checkpoint.

        Raises:
            ValueError: it is damaged, or of another data set or order, or the reader was given
                `resume`, too.
        """
        if self._resume is not None:
            either = "give the pipeline checkpoint=, or the reader resume="
            raise ValueError(f"{self}: it cannot begin at two places: {either}")
        saved = self.ordering.saved.read_checkpoint(checkpoint)
        if saved["resumed"] is not None:
            self.resume(saved["resumed"])
        self.ordering.replay(saved["changes"])
        self.position.seek(saved["batches"])
        self.restored = True

    def state(self, pending: int) -> dict[str, Any]:
        """For `resume()`; the same on all ranks that have been given equally many batches.

        Its seed is None if every rank may have another one.

        Raises:
            ValueError: the reader does not pad its last batches.
        """
        return self.ordering.saved.state(self.position.delivered(pending), self.rest)

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on where `state()` was called, with any number of ranks and batch size.

        After `configure()` and before `start()`. Each sample of the epoch that is left is given
        once, by one of the ranks; then whole epochs follow. `rest` says which batches these are.

        Raises:
            TypeError, ValueError: it is damaged, or of another data set or order; names it.
            RuntimeError: it has begun to read.
        """
        if self._prefetcher is not None:
            raise RuntimeError(f"{self} has begun to read; resume it before the first batch")
        position, self.rest, self._resume = self.ordering.saved.read_state(state)
        self.ordering.replay(self._resume.get("changes", []))
        self.resumed = True
        self.position.seek(position)

    def set_weights(self, weights: Mapping[Any, Any], at: int | None) -> int:
        """Mix by other weights from a position of the stream on; returns it.

        By default from the first batch that DALI has not taken.

        Raises:
            ValueError, TypeError: the weights are wrong; batches from `at` on have been taken; or
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
        """Refuse what `set_weights()` does; returns the position."""
        self.ordering.mixture.with_weights(weights, 0)
        require_integer("set_weights", "at", position := operator.index(at), range(2**62))
        if position < (least := self.place_of(self.position.next)):
            what = f"at must be at least {least}, not {position}"
            raise ValueError(f"{self}: {what}: DALI has taken the batches before")
        return position

    def place_of(self, index: int) -> int:
        """The position in the stream of the samples at which a global batch starts."""
        return self.ordering.dealt(self.rest).start(index)

    def progress(self, pending: int) -> dict[Any, tuple[int, int]]:
        """How many samples each source has given in all, and how many whole passes."""
        position = self.place_of(self.position.delivered(pending))
        return self.ordering.mixture.progress(position)

    @cached_property
    def ordering(self) -> Ordering:
        """The order of the samples, after `configure()`."""
        settings = self._order, self._batch_size, self._shared_seed
        return Ordering(repr(self), self.open()[0], self._samples, *settings)

    def batch(self) -> LoadedBatch:
        """The batch at the position; blocks until it has been read. After an error, tries again."""
        self._refuse_fork()
        self._refuse_ended()
        assert self._prefetcher is not None, "start() comes first"
        return self._prefetcher.get(self.position.next, self.position.successor)

    @property
    def statistics(self) -> ReaderStatistics:
        """Of the batches until now, also after `close()`; zeros before `start()`."""
        return ReaderStatistics() if self._prefetcher is None else self._prefetcher.statistics

    @property
    def tally(self) -> Tally | None:
        """The counters, also after `close()`; None before `start()`."""
        return None if self._prefetcher is None else self._prefetcher.tally

    def close(self) -> None:
        """Wait for running reads; close the reader, its files and its threads. Twice is fine.

        `meta`, `statistics`, `labels()` and `samples()` go on; `batch()` raises `RuntimeError`.
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
        """int64[n], the delivered samples of any batch, for messages: a jump in a shuffle is slow.

        Raises:
            RuntimeError: `start()` has not been called, so the size of batches is not known.
        """
        if self._prefetcher is None:
            raise RuntimeError(f"{self}: batches are known when the pipeline has taken the first")
        return self.ordering.make(self.rest).batch(position)

    def labels(self, batch: LoadedBatch) -> NDArray[np.int32]:
        """int32[n], the labels of the batch's samples; owned by the caller."""
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
                f"{os.getpid()}; make the reader in the process that runs it"
            )

    def _close_when_collected(self, close: Callable[[], None]) -> None:
        before = self._finalizer
        assert self._watched is not None, "open() sets it first"
        closing = self._process, close, self._watched
        self._finalizer = weakref.finalize(self, _close_in, *closing)
        if before is not None:
            before.detach()  # not before: a Ctrl-C in between would leave nothing that closes


def _close_in(process: int, close: Callable[[], None], watched: stalls.Watched) -> None:
    """Skip a fork: it shares its files with the parent and has none of the threads."""
    if os.getpid() == process:
        try:
            close()  # which may hang, too
        except Exception:
            stalls.WATCHDOG.forget(watched)
            raise
        stalls.WATCHDOG.forget(watched)
