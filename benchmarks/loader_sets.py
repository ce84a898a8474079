"""The data sets that loaders are compared on, as our side and torchvision's open them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali import Pipeline, fn

from dali_storage import BackendUnavailable, IntArray, readers
from dali_storage.loaders import Loader, Shard, cifar10, imagenet
from dali_storage.loaders.datasets.images import READER, ImagePipeline
from dali_storage.loaders.datasets.settings import Settings as LoaderSettings
from dali_storage.loaders.transforms import presets
from dali_storage.order import Order, OrderOptions
from dali_storage.samples.discovery import from_files

from . import peers
from .workload import BadInputError, Settings, Workload, summarize_error


@dataclass(frozen=True, slots=True)
class LoaderSet:
    """A data set, and what is timed on it.

    Attributes:
        make: makes our loader, of a directory and options.
        dataset: makes torchvision's side, of files, labels and a transform.
        timed: the steps from an image to the model: our preset, and torchvision's transform.
        exact: the same without random numbers: its pixels are compared.
        tolerance: how far exact pixels may be apart, after normalisation.
        compare: compares timed images, if they are others: with two draws of torchvision's, and
            with its exact ones.
        shuffled: whether every epoch has another order.
        record_bytes: the size of a sample, if a file has many.
        decode: makes the images of the records, uint8, CHW.
    """

    make: Callable[..., Loader]
    dataset: Callable[[Sequence[str], Sequence[int], Any], Any]
    timed: tuple[presets.Preset, Any]
    exact: tuple[presets.Preset, Any]
    tolerance: float
    compare: Callable[[Any, Sequence[Any], Any], str | None] | None
    shuffled: bool
    record_bytes: int | None = None
    decode: Callable[[Any], Any] | None = None


_EVAL = presets.IMAGENET_EVAL, peers.IMAGENET_EVAL
SETS = {
    "imagenet-train": LoaderSet(
        partial(imagenet, split="train"),
        peers.photographs,
        timed=(presets.IMAGENET_TRAIN, peers.IMAGENET_TRAIN),
        exact=_EVAL,
        tolerance=peers.IMAGENET_TOLERANCE,
        compare=peers.compare_crops,
        shuffled=True,
    ),
    "imagenet-eval": LoaderSet(
        partial(imagenet, split="val"),
        peers.photographs,
        timed=_EVAL,
        exact=_EVAL,
        tolerance=peers.IMAGENET_TOLERANCE,
        compare=None,
        shuffled=False,
    ),
    "cifar10": LoaderSet(
        partial(cifar10, split="train"),
        peers.cifar10,
        timed=(presets.CIFAR10_TRAIN, peers.CIFAR10_TRAIN),
        exact=(presets.CIFAR10_EVAL, peers.CIFAR10_EVAL),
        tolerance=peers.CIFAR10_TOLERANCE,
        compare=peers.compare_shifts,
        shuffled=True,
        record_bytes=1 + 3072,
        decode=partial(fn.reshape, shape=[3, 32, 32], layout="CHW"),
    ),
}
"""What `--set` takes."""


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
        # More batches than queues have; a DataLoader has 2 for each worker.
        self._untimed = max(settings.prefetch, 2) + 2
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
        catalog = self.samples if self.of.record_bytes is None else from_files(self.files)
        sizes = np.full(len(self.samples), self.of.record_bytes or 0)
        if self.of.record_bytes is None:
            sizes[:] = [os.stat(path).st_size for path in self.files]
        order, root = self._order(), self._directory
        return Workload(self._settings, root, catalog, sizes, order, untimed=self._untimed)

    def loader(self, *, exact: bool, **options: Any) -> Loader:
        """Our loader, not opened yet."""
        return self.of.make(self._directory, **self._options(exact), **options)

    def peer(self, *, exact: bool) -> Any:
        """The same samples as a data set of torch, as torchvision opens them."""
        _, transform = self.of.exact if exact else self.of.timed
        return self.of.dataset(self.files, self.samples.labels.tolist(), transform)

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
        batches = self._untimed + (settings.batches or full)
        return np.stack([order.batch(i // full * rounds + i % full) for i in range(batches)])

    def _options(self, exact: bool) -> dict[str, Any]:
        settings = self._settings
        return {
            "preset": (self.of.exact if exact else self.of.timed)[0],
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
    del of["backend"], of["backend_options"], of["stall_after"]
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
