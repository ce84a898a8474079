"""`readers.batches`: the batches of a reader without a pipeline. No DALI here."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.faces import explained
from ..contract.options import dali_flag, require_integer
from ..contract.views import Contents, views_of
from ..order.epochs import LAST_BATCH, Epochs, LastBatch
from ..reading.source import BatchStream
from .arguments import Prepared, ReaderSpec

Arrays: TypeAlias = list[NDArray[Any]] | NDArray[Any]
"""The samples of a batch: an array for each, or the rows of one array."""

_OF_PIPELINES = "lazy_init", "pinned", "preserve", "source_info"


@dataclass(frozen=True, slots=True, eq=False)
class ReaderBatch:
    """A batch: arrays in memory of the reader, which is used again when they are all gone.

    Attributes:
        outputs: what the reader returns in a pipeline, with arrays in place of each node: for
            `readers.file` the pair of data and labels. Small samples of one size are the rows of
            one array. Labels are int32[n, 1], the index is int64[n, 1].
        data: the first of the outputs: for `readers.file` the bytes of the files.
        labels: int32[n]; empty if the reader has none, or other ones among its outputs.
        index: int64[n], the numbers of the samples in the catalog.
        valid: the number of samples before those that fill the batch, with last_batch="pad".
    """

    outputs: Any
    data: Arrays
    labels: NDArray[np.int32]
    index: IntArray
    valid: int
    _catalog: Catalog

    def __len__(self) -> int:
        return self.index.size

    @property
    def names(self) -> list[str]:
        """The names of the samples' files as found or given, as those below `file_root`."""
        files = self._catalog.files(self.index * self._catalog.pieces)
        return [*map(os.fsdecode, self._catalog.file_names(files))]


class ReaderBatches:
    """The batches of a reader, see `readers.batches()`; a loop over this object is an epoch.

    After a `break`, an error or a Ctrl-C, the next loop goes on with the epoch.
    `len()` is the number of batches in the epoch of the next batch, given ones included.

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
            stream.start(device_id=None, views=dict.fromkeys(range(len(opening.fmt.outputs)), True))
        except BaseException:
            stream.close()
            raise

    def __iter__(self) -> Iterator[ReaderBatch]:
        epochs, position = self._epochs, self._stream.position
        epoch = position.next // epochs.rounds
        end = epochs.position(epoch, epochs.batches(epoch))
        # Nothing is read after the epoch, which may be the last one.
        position.successor = partial(_within, epochs.successor, end)
        while position.next < end:
            yield self._take()
        position.seek(max(position.next, epochs.position(epoch + 1, 0)))

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
        with explained():
            from ..saving.positions import state
        return state(self._stream, 0)

    def receipt(self, epoch: int | None = None, source: Any = None) -> dict[str, Any]:
        """Return what was given of an epoch, see `readers.receipt()`."""
        return self._stream.ledger.receipt(self._stream, 0, epoch, source)

    def close(self) -> None:
        """Wait for running reads; close the reader. Twice is fine. Arrays stay valid."""
        self._stream.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("batches cannot be pickled or copied: call readers.batches() again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> ReaderBatch:
        stream, epochs, fmt = self._stream, self._epochs, self._stream.fmt
        catalog, reader, ordering = stream.open()
        batch, here = stream.batch(), stream.position.next
        for note in stream.ledger.notes:
            note(stream, batch, 0)()
        stream.position.seek(epochs.successor(here))
        valid = epochs.valid(*divmod(here, epochs.rounds))
        samples = batch.samples if self._padded else batch.samples[:valid]
        shared, size = views_of(reader) is not None, samples.size  # by the reader: its own memory
        arrays = [_arrays(it[:size], shared) for it in batch.outputs[: len(fmt.outputs)]]
        labels = catalog.labels[samples] if fmt.labels else np.zeros(0, np.int32)
        more: list[NDArray[Any]] = [labels] if fmt.labels else []
        more += [samples] if dali_flag("return_index", self._prepared.common.return_index) else []
        more += [ordering.sources_of(samples)] if self._prepared.with_source else []
        outputs = self._prepared.result((*arrays, *(it[:, None] for it in more)))
        return ReaderBatch(outputs, arrays[0], labels, samples, valid, catalog)


class _Stream(BatchStream):
    _remedy = "call readers.batches() again"


def _within(successor: Callable[[int], int], end: int, position: int) -> int:
    """Return the position of the next batch of an epoch; the last one is its own successor."""
    return it if (it := successor(position)) < end else position


def _arrays(contents: Contents, is_shared: bool) -> Arrays:
    items: Any = [contents] if isinstance(contents, np.ndarray) else contents
    arrays = [np.asarray(memoryview(it)) for it in items]
    for each in arrays if is_shared else ():
        each.flags.writeable = False
    return arrays[0] if items is not contents else arrays


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

    Samples, order, shards, bad samples, receipts and errors are those of the reader in a pipeline.
    A state of one resumes in the other.

    Args:
        reader: a function of `dali_storage.readers`. `nemo_asr` and `sequence`, which decode by
            operators of DALI, are refused. `tfrecord` and `shuffle_after_epoch` import DALI, for
            its features and its version.
        given: positional arguments of the reader.
        batch_size: the number of samples in a batch.
        last_batch: treatment of the samples that do not fill a batch, as in `loaders.Loader`.
            "partial": a smaller last batch; every sample is given once. A rank with a smaller
            shard may have one batch less, as with DALI's LastBatchPolicy.PARTIAL.
            "drop": only full batches, equally many on all ranks.
            "pad": only full batches, equally many on all ranks; the last sample is repeated.
        enable_checkpointing: that of the pipeline; shuffle_after_epoch depends on it.
        named: arguments of the reader. pad_last_batch is True, because an epoch begins with a new
            batch; `seed` is 0 by default. Refused are device="gpu", lazy_init, pinned, preserve
            and source_info.

    Returns:
        An object for `with` and `for`: a loop is an epoch. Nothing is read before it, nor after its
        last batch.

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable: as the reader. A backend that reads into
            GPU memory is refused.

    A loop raises the errors of a running pipeline; and RuntimeError after `close()`, or in a fork.
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
