"""Epochs of a pipeline, for any training loop."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn, Self

from ...order.epochs import LAST_BATCH, LastBatch
from ...ranks import Shard
from ...runtime.histogram import Histogram
from .pipeline_factory import PipelineFactory
from .progress import Progress
from .sampler import EpochSampler
from .state import State
from .stats import LoaderStats
from .tensors import To, converter

_OLD = (
    "a newer iter() of this Loader ended this epoch: a Loader has one epoch at a time; use two "
    "Loaders for two loops at once"
)
_FAILED = "the pipeline failed in this epoch: iterate over the Loader again for the next epoch"


class Loader:
    """The batches of one pipeline; every `iter()` starts a new epoch.

    `for images, labels in loader`, as with torch's DataLoader. An epoch begins with the request for
    its first batch, and is complete after its last batch. If a loop leaves an epoch early, the next
    `iter()` drops the rest, and the older iterator raises RuntimeError.

    Lightning, Ignite's Checkpoint and torchdata call `state_dict()` and `load_state_dict()`. The
    pipeline is closed by `close()`, by `with`, or when the Loader is garbage-collected.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        *,
        reader_name: str = "Reader",
        last_batch: LastBatch = "partial",
        to: To = "torch",
        shard: Shard | None = None,
        classes: Callable[[], tuple[str, ...]] | None = None,
        describe: Callable[[], str] | None = None,
    ) -> None:
        """Open nothing yet: the pipeline is made at the first use.

        Args:
            make: called as `make(checkpoint=None, shard_id=rank, num_shards=world)`; returns a new
                pipeline with enable_checkpointing=True and DALI's dynamic executor (the default),
                and a `readers.file` with this shard, `reader_name` and pad_last_batch=True. To
                restore a state, `checkpoint` is bytes for the pipeline. All samples of an output
                have one shape. Other sources of the pipeline must be endless; only the reader can
                jump to another epoch.
            reader_name: the name of the reader that defines the epochs.
            last_batch: treatment of the samples that do not fill a batch.
                "partial": a smaller last batch; every sample is given once. A rank with a smaller
                shard may have one batch less.
                "drop": only full batches, equally many on all ranks.
                "pad": only full batches, equally many on all ranks; the last sample is repeated,
                and `valid` counts the others. For static shapes (JAX) and collective operations.
            to: the framework of the tensors. A callable gets an object with `__dlpack__()`; with
                "partial", the result must allow slices.
            shard: by default `Shard.here()` at the first use.
            classes: returns the names of the labels, for the attribute `classes`.
            describe: returns a description of the data set, for `repr()`.

        Raises:
            ValueError, TypeError: an argument is wrong.
            BackendUnavailable: the framework of `to` is not installed.
        """
        if last_batch not in LAST_BATCH:
            known = ", ".join(map(repr, LAST_BATCH))
            raise ValueError(f"last_batch must be {known}, not {last_batch!r}")
        if not callable(make):
            raise TypeError(f"make must be callable, not {make!r}")
        if not isinstance(shard, (Shard, type(None))):
            raise TypeError(f"shard must be a Shard, not {shard!r}")
        self._supply = PipelineFactory(make, reader_name, last_batch, converter(to), shard)
        self._partial = last_batch == "partial"
        self._classes = classes
        self._describe = describe
        self._progress = Progress()
        # The times of the stages when the epoch began, and their generation.
        self._begun: tuple[object, dict[str, Histogram]] = None, {}

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self._supply.shard()  # refuses another shard
        self._progress.turn = None  # ends the epoch under way
        return _Epoch(self)

    def __len__(self) -> int:
        """Number of batches in the current epoch, or else in the next one.

        Batches before a loaded state count as if this Loader had given them.
        """
        place = self._progress.place
        return self._supply.batches(*place).epochs.batches(place[0])

    def set_epoch(self, epoch: int) -> None:
        """Make this epoch the next one, as with torch's DistributedSampler.

        With a loaded state of this epoch, the epoch goes on from the state. The samples have the
        order of the epoch; random operators simply continue.
        """
        self._progress.set_epoch(epoch)

    @property
    def sampler(self) -> EpochSampler:
        """Its `set_epoch()` sets the epoch of every `iter()`, as torch's DistributedSampler."""
        return EpochSampler(self._progress, self._supply)

    # Lightning reads `batch_sampler` where there is a `sampler`, and its DeepSpeed the batch size.
    batch_sampler = sampler

    def set_weights(self, weights: Mapping[Any, Any], at: int | None = None) -> int:
        """Mix the sources or classes of the reader by other weights; see `readers.set_weights()`.

        By default, the change begins at the first batch that DALI has not started. States include
        the change.

        Returns:
            The position of the change.

        Raises:
            ValueError, TypeError: the weights or the position are wrong, or there is no mixture.
        """
        return self._supply.at(*self._progress.place).set_weights(weights, at)

    def receipt(self, epoch: int | None = None, source: Any = None) -> dict[str, Any]:
        """Return what this rank has been given of an epoch; see `readers.receipt()`.

        Raises:
            ValueError: the reader was made without receipt=, or epoch or source are unknown.
        """
        return self._supply.batches().receipt(epoch, source)

    def state_dict(self) -> dict[str, Any]:
        """The position in the current epoch, and the states of the random operators.

        Between `iter()` and the first batch, and after the last one, the position is the beginning
        of the next epoch. Plain types only, for JSON and torch.load(weights_only=True).
        """
        batches = self._supply.at(*self._progress.saved)
        return State.save(batches.identity, batches.states(), batches.pipeline.checkpoint())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from the call of `state_dict()`; recreates the pipeline.

        The number of ranks and the batch size may change. All ranks then load the state of one old
        rank, and together deliver each remaining sample of the epoch once; later epochs have the
        order of the new number of ranks.

        The state of another rank (Lightning saves only rank 0's) is right for the samples. The
        random operators then restart, with a warning: with restored states, both ranks would
        augment alike. Random operators also restart with other ranks or batches.

        Raises:
            ValueError, TypeError: the state is damaged, or of another data set, order,
                `last_batch` or pipeline. The Loader is then unchanged.
        """
        saved = State.read(state)
        batches = self._supply.restore(saved)
        epoch, given = batches.place
        self._progress.restore(epoch, given, batches.epochs.batches(epoch))
        if differs := saved.differs(batches.identity):
            warnings.warn(
                f"the state is of {differs}: the samples continue from the state; random operators "
                "restart",
                stacklevel=2,
            )

    def close(self) -> None:
        """Close the pipeline's reader and the Loader; may be called twice."""
        self._supply.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Loader: {self._describe()}>" if self._describe else super().__repr__()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Loader cannot be pickled or copied, because its pipeline belongs to this process: "
            "make the Loader in the process that uses it, and save its state_dict()"
        )

    @property
    def stats(self) -> LoaderStats:
        """Times and waiting in the current epoch, or else in the last one."""
        return replace(self._progress.stats, times=self._supply.times(self._begun))

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch; after `iter()`, the new epoch."""
        progress = self._progress
        return progress.coming[0] if progress.turn is None else progress.epoch

    @property
    def valid(self) -> int:
        """Number of samples in the latest batch without repetitions; see "pad"."""
        return self._progress.valid

    @property
    def pipeline(self) -> Any:
        """The pipeline; replaced by `load_state_dict()` and after an error."""
        return self._supply.batches().pipeline

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the labels 0, 1, 2 and so on; empty if unknown."""
        return self._classes() if self._classes else ()

    def _next(self, asked: float) -> tuple[Any, ...]:
        """The next batch of the current epoch, requested at this time."""
        place = self._progress.place
        batches = self._supply.at(*place)
        storage = batches.storage_seconds
        tensors = batches.take()
        valid = batches.epochs.valid(*place)
        if self._partial and valid < batches.identity.batch_size:
            tensors = tuple([tensor[:valid] for tensor in tensors])
        storage = batches.storage_seconds - storage
        self._progress.give(valid, asked, time.perf_counter(), storage)
        return tensors


class _Epoch(Iterator[tuple[Any, ...]]):
    """One epoch of a Loader; begins with the first batch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._turn = object()  # not self, which would be a reference cycle
        self._begun = self._complete = self._failed = False

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> tuple[Any, ...]:
        asked = time.perf_counter()
        loader, progress = self._loader, self._loader._progress
        if not self._begun:
            start = progress.coming
            length = loader._supply.batches(*start).epochs.batches(start[0])
            loader._begun = loader._supply.generation, loader._supply.histograms()
            progress.begin(length, asked, self._turn)
            self._begun = True
        if not self._complete:
            if self._failed or progress.turn is not self._turn:
                raise RuntimeError(_FAILED if self._failed else _OLD)
            self._complete = progress.given >= progress.length
        if self._complete:
            raise StopIteration
        try:
            batch = loader._next(asked)
        except Exception as error:
            loader._supply.refuse_unusable()  # another thread has closed it meanwhile
            self._failed = loader._supply.broken
            if isinstance(error, StopIteration):  # DALI's, if others run the pipeline
                raise RuntimeError(
                    "the pipeline has no batch; only the Loader may run it"
                ) from error
            raise
        self._complete = progress.given >= progress.length
        return batch
