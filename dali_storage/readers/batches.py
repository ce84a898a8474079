"""`readers.batches`: the batches of a reader without a pipeline. No DALI here."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.options import dali_flag, require_integer
from ..contract.views import Contents
from ..order.epochs import LAST_BATCH, Epochs, LastBatch
from ..reading.loading import LoadedBatch
from ..reading.source import BatchStream
from .arguments import Prepared, ReaderSpec

Arrays: TypeAlias = list[NDArray[Any]] | NDArray[Any]
"""The samples of a batch: an array for each, or the rows of one array."""

_OF_PIPELINES = "lazy_init", "pinned", "preserve", "source_info"


@dataclass(frozen=True, slots=True, eq=False)
class ReaderBatch:
    """The samples of a batch: numpy arrays in memory that is used again when all of them are gone.

    Attributes:
        outputs: what the reader returns in a pipeline, with the samples in place of each node: for
            `readers.file` the pair of data and labels. The samples are a list of arrays or, if they
            are small and of one size, the rows of one array. Labels and index are int32[n, 1] and
            int64[n, 1]. With backends that hold or map samples, arrays are read-only.
        data: the first of the outputs: for `readers.file` the bytes of the files, uint8.
        index: int64[n], the numbers of the samples in the catalog.
        valid: the number of samples before those that fill the batch, with last_batch="pad".
    """

    outputs: Any
    data: Arrays
    index: IntArray
    valid: int
    _labels: NDArray[np.int32] | None
    _catalog: Catalog

    def __len__(self) -> int:
        return self.index.size

    @property
    def labels(self) -> NDArray[np.int32]:
        """int32[n]; AttributeError if the reader has no labels, or has them as another output."""
        if self._labels is None:
            raise AttributeError("this reader has no labels beside its `outputs`")
        return self._labels

    @property
    def names(self) -> list[str]:
        """The names of the samples' files as found or given, as those below `file_root`."""
        catalog = self._catalog
        files = catalog.files(self.index * catalog.pieces)
        return [*map(os.fsdecode, catalog.file_names(files))]


class ReaderBatches:
    """The batches of a reader, see `readers.batches()`; each loop over this object is an epoch.

    An epoch begins when its first batch is asked for. If a loop is left early, the next one begins
    the next epoch. `len()` is the number of batches in the current epoch, or else the next one; of
    a resumed epoch, with those before the state.

    The reader, its files and its threads are closed by `with`, by `close()`, or when this object
    is garbage-collected. One thread at a time may take batches; any thread may close.
    """

    def __init__(
        self,
        prepared: Prepared[Any],
        batch_size: int,
        last_batch: LastBatch = "partial",
        enable_checkpointing: bool = False,
    ) -> None:
        """Open a reader. For the arguments and the errors see `readers.batches()`."""
        common, opening = prepared.common, prepared.opening
        self._prepared, self._padded = prepared, last_batch == "pad"
        self._stream = stream = _Stream(common.name or "Reader", opening)
        try:
            meta = stream.meta
            if last_batch == "partial":  # memory for no more samples than there are
                batch_size = min(batch_size, -(-meta["epoch_size"] // meta["number_of_shards"]))
            seed = 0 if common.seed is None else None
            stream.configure(batch_size=batch_size, seed=seed, checkpointing=enable_checkpointing)
            self._epochs = Epochs(meta, batch_size, last_batch, stream.rest)
            stream.start(device_id=None, views=range(len(opening.fmt.outputs)))
        except BaseException:
            stream.close()
            raise
        self._is_shared = stream.open().reader.has_views
        # Of the last loop: its number among all, its epoch, and the position after this.
        self._loop, self._epoch, self._end = 0, -1, 0

    def __iter__(self) -> Iterator[ReaderBatch]:
        return _Epoch(self)

    def __len__(self) -> int:
        return self._epochs.batches(self._stream.position.next // self._epochs.rounds)

    @property
    def catalog(self) -> Catalog:
        """The samples, see `readers.catalog()`."""
        return self._stream.open().catalog

    @property
    def replaced(self) -> list[tuple[int, str, str]]:
        """Index, path or URL, and reason of the bad samples, see `readers.replaced()`."""
        return self._stream.substitute.found

    def state(self) -> dict[str, Any]:
        """Return the position after the last batch, for `resume` here or in a pipeline."""
        from ..saving import positions

        return positions.state(self._stream, 0)

    def receipt(self, epoch: int | None = None, source: Any = None) -> dict[str, Any]:
        """Return what was given of an epoch, see `readers.receipt()`."""
        return self._stream.ledger.receipt(self._stream, 0, epoch, source)

    def close(self) -> None:
        """Wait for running reads; close the reader. Twice is fine.

        Arrays stay valid. Taking a batch then raises RuntimeError, also in another thread.
        """
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> int:
        """Begin an epoch, or go on from a state; return the number of the loop."""
        epochs, position = self._epochs, self._stream.position
        epoch = position.next // epochs.rounds
        if epoch == self._epoch:  # the last loop was left early
            epoch += 1
            position.seek(epochs.position(epoch, 0))
        self._epoch, self._end = epoch, epochs.position(epoch, epochs.batches(epoch))
        # Nothing is read after the epoch, which may be the last one.
        position.successor = partial(_within, epochs.successor, self._end)
        self._loop += 1
        return self._loop

    def _take(self, loop: int) -> ReaderBatch:
        epochs, position = self._epochs, self._stream.position
        if loop != self._loop:
            raise RuntimeError(f"{self._stream}: a newer loop has ended this epoch")
        if (here := position.next) >= self._end:
            raise StopIteration
        batch = self._stream.batch()
        for note in self._stream.ledger.notes:
            note(self._stream, batch, 0)()
        position.seek(epochs.successor(here))
        return self._in_numpy(batch, epochs.valid(*divmod(here, epochs.rounds)))

    def _in_numpy(self, batch: LoadedBatch, valid: int) -> ReaderBatch:
        stream, prepared = self._stream, self._prepared
        catalog, _, ordering = stream.open()
        size = batch.samples.size if self._padded else valid
        samples = batch.samples[:size]
        arrays = [_arrays(it)[:size] for it in batch.outputs[: len(stream.fmt.outputs)]]
        for each in arrays if self._is_shared else ():
            for it in [each] if isinstance(each, np.ndarray) else each:
                it.flags.writeable = False
        labels = catalog.labels[samples] if stream.fmt.labels else None
        more: list[NDArray[Any]] = [] if labels is None else [labels]
        more += [samples] if dali_flag("return_index", prepared.common.return_index) else []
        more += [ordering.sources_of(samples)] if prepared.with_source else []
        outputs = prepared.result((*arrays, *(it[:, None] for it in more)))
        return ReaderBatch(outputs, arrays[0], samples, valid, labels, catalog)


class _Epoch(Iterator[ReaderBatch]):
    """A loop; its epoch begins when the first batch is asked for."""

    def __init__(self, batches: ReaderBatches) -> None:
        self._batches, self._loop = batches, 0

    def __next__(self) -> ReaderBatch:
        self._loop = self._loop or self._batches._begin()
        return self._batches._take(self._loop)


class _Stream(BatchStream):
    _remedy = "call readers.batches() again"


def _within(successor: Callable[[int], int], end: int, position: int) -> int:
    """Return the position of the next batch of an epoch; the last one is its own successor."""
    return it if (it := successor(position)) < end else position


def _arrays(contents: Contents) -> Arrays:
    if isinstance(contents, np.ndarray):
        return np.asarray(contents)
    return [np.asarray(memoryview(it)) for it in contents]  # type: ignore[arg-type]


def batches(
    reader: Callable[..., Any],
    /,
    *given: Any,
    batch_size: int,
    last_batch: LastBatch = "partial",
    enable_checkpointing: bool = False,
    **named: Any,
) -> ReaderBatches:
    """The batches of a reader as numpy arrays, without a pipeline of DALI, which need not be there.

    Samples, order, shards, seeds, bad samples, receipts and errors are those of the reader in a
    pipeline, and a state of one resumes in the other.

    Args:
        reader: a function of `dali_storage.readers`, such as `readers.file`. Those that decode by
            operators of DALI (`nemo_asr`, `sequence`) are refused. `tfrecord`, whose features are
            DALI's, and `shuffle_after_epoch`, whose order depends on the version of DALI, import
            it.
        given: positional arguments of the reader.
        batch_size: the number of samples in a batch, at least 1.
        last_batch: treatment of the samples of an epoch that do not fill a batch.
            "partial": a smaller last batch; every sample is given once. A rank with a smaller shard
            may have one batch less, as with DALI's LastBatchPolicy.PARTIAL.
            "drop": only full batches, equally many on all ranks.
            "pad": only full batches, equally many on all ranks; the last sample is repeated, and
            `valid` counts the others.
        enable_checkpointing: that of the pipeline, on which the order of shuffle_after_epoch
            depends.
        named: the arguments of the reader. An epoch begins with a new batch, so pad_last_batch is
            True. `seed` is 0 by default. `resume` takes a state of `readers.state()`, too.
            Refused are lazy_init, pinned, preserve, source_info and device="gpu", which are for
            pipelines.

    Returns:
        An object for `with` and `for`; it has read nothing yet. Each loop over it is an epoch, and
        nothing is read after its last batch.

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable: as the reader. A backend that reads into
            GPU memory is refused.

    A loop raises the errors that a running pipeline raises. Where a sample cannot be read,
    `next()` of the same iterator tries again; a new loop begins the next epoch. RuntimeError: the
    object is closed, in a fork, or a newer loop has begun.
    """
    spec: Any = getattr(reader, "spec", None)
    if not isinstance(spec, ReaderSpec):
        what = "reader must be a function of dali_storage.readers, such as readers.file"
        raise TypeError(f"{what}, not {reader!r:.80}")
    require_integer("readers.batches", "batch_size", batch_size, range(1, 2**31))
    if last_batch not in LAST_BATCH:
        known = ", ".join(map(repr, LAST_BATCH))
        raise ValueError(f"last_batch must be {known}, not {last_batch!r}")
    prepared = spec.prepare(*given, **{"pad_last_batch": True} | named)
    if prepared.decodes:
        what = f"readers.{spec.name} decodes by operators of DALI"
        raise ValueError(f"readers.batches: {what}, in a pipeline only")
    for name in _OF_PIPELINES:
        if dali_flag(name, getattr(prepared.common, name)):
            raise ValueError(f"readers.batches: {name} is for pipelines; leave it out")
    if prepared.opening.device == "gpu":
        what = "batches are numpy arrays in host memory"
        raise ValueError(f"readers.batches: device must be 'cpu', not 'gpu': {what}")
    if not prepared.opening.order.pad_last_batch:
        why = "an epoch begins with a new batch; see last_batch"
        raise ValueError(f"readers.batches: pad_last_batch must be True or left out: {why}")
    return ReaderBatches(prepared, batch_size, last_batch, enable_checkpointing)
