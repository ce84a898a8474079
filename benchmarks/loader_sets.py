"""The data sets that loaders are compared on, as our side and torchvision's open them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from nvidia.dali import Pipeline, fn

from dali_storage import BackendUnavailable, IntArray, readers
from dali_storage.loaders import Loader, Shard, cifar10, imagenet
from dali_storage.loaders.datasets.images import READER, ImagePipeline
from dali_storage.loaders.datasets.settings import Settings as LoaderSettings
from dali_storage.loaders.transforms import presets
from dali_storage.order import Order, OrderOptions
from dali_storage.samples.discovery import from_files

from . import peers, pixels
from .workload import BadInputError, Settings, Workload, summarize_error

_QUEUE_OF_TORCH = 2  # batches for each worker of a DataLoader

Dataset: TypeAlias = Callable[[Sequence[str], Sequence[int], Any], Any]
"""A data set of torch, made of files, labels and a transform."""


@dataclass(frozen=True, slots=True)
class Images:
    """What is done with images.

    Attributes:
        ours: our preset.
        theirs: torchvision's transform.
    """

    ours: presets.Preset
    theirs: Any


@dataclass(frozen=True, slots=True)
class LoaderSet:
    """A data set, and what is timed on it.

    Attributes:
        make: makes our loader, of a directory and options.
        dataset: makes torchvision's side.
        timed: what is done with the images.
        exact: the same without random numbers: its pixels are compared.
        tolerance: how far exact pixels may be apart, after normalisation.
        compare: compares timed images, if they are others: with two draws of torchvision's, and
            with its exact ones.
        shuffled: whether every epoch has another order.
        record_bytes: the size of a sample, if a file has many.
        decode: makes the images of the records, uint8, CHW.
    """

    make: Callable[..., Loader]
    dataset: Dataset
    timed: Images
    exact: Images
    tolerance: float
    compare: Callable[[Any, Sequence[Any], Any], str | None] | None
    shuffled: bool
    record_bytes: int | None = None
    decode: Callable[[Any], Any] | None = None


_EVAL = Images(presets.IMAGENET_EVAL, peers.IMAGENET_EVAL)
SETS = {
    "imagenet-train": LoaderSet(
        partial(imagenet, split="train"),
        peers.Photographs,
        timed=Images(presets.IMAGENET_TRAIN, peers.IMAGENET_TRAIN),
        exact=_EVAL,
        tolerance=pixels.IMAGENET_TOLERANCE,
        compare=pixels.compare_crops,
        shuffled=True,
    ),
    "imagenet-eval": LoaderSet(
        partial(imagenet, split="val"),
        peers.Photographs,
        timed=_EVAL,
        exact=_EVAL,
        tolerance=pixels.IMAGENET_TOLERANCE,
        compare=None,
        shuffled=False,
    ),
    "cifar10": LoaderSet(
        partial(cifar10, split="train"),
        peers.Records,
        timed=Images(presets.CIFAR10_TRAIN, peers.CIFAR10_TRAIN),
        exact=Images(presets.CIFAR10_EVAL, peers.CIFAR10_EVAL),
        tolerance=pixels.CIFAR10_TOLERANCE,
        compare=pixels.compare_shifts,
        shuffled=True,
        record_bytes=1 + 3072,
        decode=partial(fn.reshape, shape=[3, 32, 32], layout="CHW"),
    ),
}
"""What `--set` takes."""


def untimed_batches(settings: Settings) -> int:
    """How many batches begin a round, so that its queues are full: more than queues have."""
    return max(settings.prefetch, _QUEUE_OF_TORCH) + 2


class OpenSet:
    """A data set in a directory of the user.

    Attributes:
        of: the data set.
        samples: what our loader finds.
        files: where they are: as many files, or a few of many records each.
    """

    def __init__(self, name: str, directory: str, settings: Settings) -> None:
        """Find the samples.

        Raises:
            BadInputError: there are none, or fewer than a batch has.
        """
        self.of = SETS[name]
        self._directory = directory
        self._settings = settings
        try:
            with self.loader(exact=True) as loader:
                self.samples = readers.catalog(loader.pipeline, READER)
        except (BackendUnavailable, OSError, TypeError, ValueError) as error:
            what = f"--datadir {directory} --set {name}"
            raise BadInputError(f"{what}: {summarize_error(error)}") from error
        files = self.samples.file_paths(np.arange(self.samples.file_count))
        self.files = list(map(os.fsdecode, files))

    def workload(self) -> Workload:
        """The files, and the order of the samples in a round, with the untimed batches.

        It is one epoch, or as many batches as the settings say, and always of full batches.
        """
        if self.of.record_bytes is None:
            catalog, sizes = self.samples, [os.stat(path).st_size for path in self.files]
        else:
            catalog = from_files(self.files)
            sizes = [self.of.record_bytes] * len(self.samples)
        return Workload(
            self._settings, self._directory, catalog, np.array(sizes, np.int64), self._order()
        )

    def loader(self, *, exact: bool, **options: Any) -> Loader:
        """Our loader, not opened yet."""
        return self.of.make(self._directory, **self._options(exact), **options)

    def peer(self, *, exact: bool) -> Any:
        """The same samples as a data set of torch, as torchvision opens them."""
        images = self.of.exact if exact else self.of.timed
        return self.of.dataset(self.files, self.samples.labels.tolist(), images.theirs)

    def rival(self, *, exact: bool) -> Pipeline:
        """Our pipeline with an input of DALI in place of our reader.

        It is `fn.readers.file`, or for records the Python function that a user would write.
        """
        options = self._options(exact)
        read = _read_files if self.of.record_bytes is None else _iterate
        return ImagePipeline(
            read=partial(read, self.files, self.samples.labels.tolist(), self._order()),
            settings=LoaderSettings(**options),
            train=self.of.shuffled,
            preset=options["preset"],
            decode=self.of.decode,
        )()

    def _order(self) -> IntArray:
        settings, count = self._settings, len(self.samples)
        options = OrderOptions(
            shuffle_after_epoch=self.of.shuffled,
            shuffle_after_epoch_seed=settings.seed if self.of.shuffled else None,
            pad_last_batch=True,
            checkpointing=True,  # as in every loader's pipeline
        )
        order = Order(count, settings.batch_size, options)
        full, rounds = count // settings.batch_size, -(-count // settings.batch_size)
        batches = untimed_batches(settings) + (settings.batches or full)
        return np.stack([order.batch(i // full * rounds + i % full) for i in range(batches)])

    def _options(self, exact: bool) -> dict[str, Any]:
        settings = self._settings
        return {
            "preset": (self.of.exact if exact else self.of.timed).ours,
            "batch_size": settings.batch_size,
            "shuffle": "epoch" if self.of.shuffled else False,
            "last_batch": "drop",
            "shard": Shard(),
            "device": "cpu",
            "num_threads": settings.threads,
            "prefetch_queue_depth": settings.prefetch,
            "seed": settings.seed,
        }


def _read_files(
    files: list[str], labels: list[int], order: IntArray, /, *, shuffle_after_epoch: bool, **of: Any
) -> Any:
    del of["backend"], of["backend_options"]
    if not shuffle_after_epoch:
        del of["shuffle_after_epoch_seed"]  # else DALI warns of it
    return fn.readers.file(
        files=files, labels=labels, shuffle_after_epoch=shuffle_after_epoch, **of
    )


def _iterate(files: list[str], labels: list[int], order: IntArray, /, **of: Any) -> Any:
    images, targets = peers.read_cifar10(files)[0], np.array(labels, np.int32)[:, np.newaxis]

    def batch(iteration: int) -> Any:
        samples = order[iteration % len(order)]
        return [*images[samples]], targets[samples]

    return fn.external_source(source=batch, num_outputs=2, batch=True)
