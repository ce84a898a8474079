"""The callable that DALI calls for every batch."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from nvidia.dali.tensors import TensorCPU, TensorListCPU
from nvidia.dali.types import BatchInfo

from .catalog import Catalog, Tree
from .order import Order, OrderOptions, reader_meta
from .prefetch import LoadedBatch, Prefetcher
from .reader import Reader


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """What a source has to know of the pipeline it is in.

    Attributes:
        batch_size: samples a batch.
        seed: the seed for a reader that was given none.
        checkpointing: whether the pipeline makes checkpoints.
        num_threads: threads of DALI's own, which want processors too.
    """

    batch_size: int
    seed: int
    checkpointing: bool
    num_threads: int


class Source:
    """Gives DALI one full batch after the other, without end: `(data, labels)`, two TensorListCPU.

    The index that DALI passes is believed once, at the first call: that is how a pipeline restored
    from a checkpoint says where it was. From then on the source moves when DALI *takes* a batch.
    DALI asks all sources of a pipeline in turn, and when one of them fails or ends its epoch, drops
    what the others gave; they must give it again, or two readers of one pipeline would part
    company.

    Nothing of DALI closes a source, so the reader and its threads end when the source is collected.
    """

    def __init__(
        self,
        *,
        name: str | None,
        tree: Callable[[], Tree | None],
        discover: Callable[[Tree | None], Catalog],
        open_reader: Callable[[Catalog], Reader],
        order: OrderOptions,
        deal_seed: bool,
        depth: int,
        settings: Callable[[Source], PipelineSettings],
    ) -> None:
        """Nothing is opened before `open()`, the first batch, or the first look at `meta`.

        Args:
            name: the reader's name in `pipe.reader_meta()`; None for a generated one.
            tree: gives the samples that the storage knows by itself, where they are asked for.
            discover: makes the catalog.
            open_reader: opens the backend.
            order: shards and shuffles; what the pipeline has to say of them is filled in later.
            deal_seed: whether the user has left the seed to the pipeline.
            depth: batches to read ahead of DALI.
            settings: tells of the pipeline that this source has become a part of; asked at the
                first batch.
        """
        self.name = name
        self.wants_seed = deal_seed
        self._tree = tree
        self._discover = discover
        self._open_reader = open_reader
        self._order = order
        self._depth = depth
        self._settings = settings
        self._process = os.getpid()
        self._position = 0
        self._opened: tuple[Catalog, Reader] | None = None
        self._prefetcher: Prefetcher | None = None
        self._finalizer: weakref.finalize[..., Any] | None = None

    def open(self) -> tuple[Catalog, Reader]:
        """Find the samples and open the backend, unless it is done; raises what these raise."""
        if self._opened is None:
            # Kept until the reader is open, which then need not load again what both are made of.
            tree = self._tree()
            catalog = self._discover(tree)
            reader_meta(len(catalog), self._order)  # refuses more shards than samples
            reader = self._open_reader(catalog)
            self._close_when_collected(reader.close)
            self._opened = catalog, reader
        return self._opened

    @property
    def meta(self) -> dict[str, int]:
        """What `pipe.reader_meta(name)` says of this reader."""
        catalog, _ = self.open()
        return reader_meta(len(catalog), self._order)

    def __call__(self, info: BatchInfo) -> tuple[Any, Any]:
        """The next batch, or the error of its first sample that cannot be read."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"{self}: its threads and files belong to process {self._process}, not to its fork "
                f"{os.getpid()}; build the pipeline in the process that runs it"
            )
        prefetcher = self._prefetcher or self._start(info)
        position = self._position
        batch = prefetcher.get(position)
        return _Delivery(self._to_dali(batch), lambda: self._move_to(position + 1))

    def __repr__(self) -> str:
        return f"dali_storage.readers.file(name={self.name!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self} cannot be pickled: it has open files and threads; build it where it is used"
        )

    def _move_to(self, position: int) -> None:
        self._position = position

    def _start(self, info: BatchInfo) -> Prefetcher:
        if info.epoch_idx:
            raise RuntimeError(
                f"{self}: the checkpoint is of epoch {info.epoch_idx} of another source of this "
                "pipeline, and does not tell how many batches the epochs before it had"
            )
        catalog, reader = self.open()
        settings = self._settings(self)
        seed = settings.seed if self.wants_seed else self._order.seed
        options = replace(self._order, seed=seed, checkpointing=settings.checkpointing)
        order = Order(len(catalog), settings.batch_size, options)
        self._prefetcher = Prefetcher(
            catalog, reader, order, self._depth, dali_threads=settings.num_threads
        )
        self._close_when_collected(self._prefetcher.close)
        self._position = info.iteration
        return self._prefetcher

    def _to_dali(self, batch: LoadedBatch) -> tuple[Any, Any]:
        """For DALI: uint8 1-D samples that share the leased buffer, int32 labels of shape (1,)."""
        catalog, _ = self.open()
        # A ready list of tensors costs 1.2 us a sample; of arrays, DALI would make one at 2.4 us.
        # It is made here and not in a lane: with a hot page cache the lane is the bottleneck.
        data = TensorListCPU([TensorCPU(content) for content in batch.contents], contiguous=False)
        return data, TensorListCPU(catalog.labels[batch.samples].reshape(-1, 1))

    def _close_when_collected(self, close: Callable[[], None]) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = weakref.finalize(self, _close_in, self._process, close)


def _close_in(process: int, close: Callable[[], None]) -> None:
    """Not in a fork: its files are open in the parent as well, and its threads are not there."""
    if os.getpid() == process:
        close()


class _Delivery(tuple[Any, Any]):
    """`(data, labels)`; says so when DALI takes one of them out to feed it to the pipeline."""

    _when_taken: Callable[[], None]

    def __new__(cls, outputs: tuple[Any, Any], when_taken: Callable[[], None]) -> _Delivery:
        self = super().__new__(cls, outputs)
        self._when_taken = when_taken
        return self

    def __getitem__(self, output: Any) -> Any:
        self._when_taken()
        return super().__getitem__(output)
