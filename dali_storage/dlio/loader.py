"""The data loader, and the thread that takes its batches."""

import json
import os
import traceback
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from queue import Empty, Queue
from threading import Event, Thread
from typing import Any

import numpy as np
from dlio_benchmark.common.enumerations import DataLoaderSampler, DatasetType, FormatType, Shuffle
from dlio_benchmark.data_loader.base_data_loader import BaseDataLoader
from dlio_benchmark.utils.utility import DLIOMPI

from .. import readers
from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..readers.batches import ReaderBatches

_IMAGES, _ARRAYS = (FormatType.JPEG, FormatType.PNG), (FormatType.NPY, FormatType.NPZ)


class DlioLoader(BaseDataLoader):  # type: ignore[misc]  # DLIO has no types
    """DLIO's samples, by `dali_storage.readers`; docs/mlperf-storage.md shows the configuration.

    A JPEG, PNG, NPY or NPZ file is one sample: its bytes, its array, or its array `x`. A record of
    a TFRecord file is one: its `image`. A batch is a list of arrays in the reader's memory, which
    is reused when they are gone. There is no pipeline of DALI: DLIO has nothing to decode.

    DLIO shuffles the files. Each rank has an equal part of the samples, one after the other, or in
    training, with `sample_shuffle`, shuffled by DLIO's seed. Nothing is read that DLIO does not ask
    for.
    """

    def __init__(self, format_type: Any, dataset_type: Any, epoch_number: int) -> None:
        """Open nothing; raise a ValueError if DALI_STORAGE_OPTIONS is not a JSON object."""
        super().__init__(format_type, dataset_type, epoch_number, data_loader_type=None)
        args, self.train, self._epoch = self._args, dataset_type is DatasetType.TRAIN, 0
        self.share = self.num_samples // args.comm_size
        self.steps = self.share // self.batch_size
        if self.train and args.total_training_steps > 0:
            self.steps = min(self.steps, args.total_training_steps)
        self.options = {
            "backend": os.environ.get("DALI_STORAGE_BACKEND") or None,
            "backend_options": _backend_options(os.environ.get("DALI_STORAGE_OPTIONS") or "{}"),
            "prefetch_queue_depth": max(1, args.prefetch_size),
        }

    def read(self) -> None:
        """Check the configuration on all ranks alike; raise a ValueError that names the setting."""
        args, count, kind = self._args, self._args.num_samples_per_file, self.format_type
        if args.data_loader_sampler is not DataLoaderSampler.ITERATIVE:
            raise ValueError("reader.data_loader_sampler must be iterative for dali_storage.dlio")
        if kind not in (*_IMAGES, *_ARRAYS, FormatType.TFRECORD):
            raise ValueError(f"dataset.format: dali_storage.dlio has no reader for {kind}")
        if count != 1 and kind is not FormatType.TFRECORD:
            what = f"must be 1, not {count}, because a {kind} file is read as one sample"
            raise ValueError(f"dataset.num_samples_per_file {what}")
        if not self.steps:
            raise ValueError(
                f"{self.num_samples} samples of {self.dataset_type} on {args.comm_size} ranks are "
                f"{self.share} for each, which do not fill a batch of {self.batch_size}: use more "
                f"files, fewer ranks or a smaller reader.batch_size{'' if self.train else '_eval'}"
            )

    def next(self) -> Iterator[Any]:
        """The batches of the next epoch, on this rank."""
        self._epoch += 1
        try:
            yield from _ahead(self.batches())
        except Exception:
            if self._args.comm_size > 1:  # the other ranks would wait at DLIO's barrier forever
                traceback.print_exc()
                DLIOMPI.get_instance().comm().Abort(1)
            raise

    def batches(self) -> Generator[Any, None, None]:
        """The same, in the thread that calls it."""
        with self.reader(self.samples()) as batches:
            self.require_counts(batches.catalog)
            for batch in batches:
                yield [*batch.data]

    def samples(self) -> IntArray:
        """The numbers of this rank's samples in the list of DLIO's files, in their order."""
        args = self._args
        # By the list, because DLIO's map of samples has the files of rank 0 for every rank.
        found: IntArray = np.arange(self.share) + self.share * args.my_rank
        if self.train and args.sample_shuffle is not Shuffle.OFF:
            seed = args.seed + (self._epoch if args.seed_change_epoch else 0)
            np.random.RandomState(seed).shuffle(found)
        return found[: self.steps * self.batch_size]

    def reader(self, samples: IntArray) -> ReaderBatches:
        """The batches of these samples."""
        args, count = self._args, self._args.num_samples_per_file
        files = args.file_list_train if self.train else args.file_list_eval
        given: dict[str, Any] = dict(self.options)
        reader: Any = readers.file
        if self.format_type is FormatType.TFRECORD:
            from nvidia.dali import tfrecord

            first, last = int(samples.min()) // count, int(samples.max()) // count
            index, files = f"{args.data_folder}/index/{self.dataset_type}", files[first : last + 1]
            given |= {
                "path": files,
                "index_path": [f"{index}/{os.path.basename(path)}.idx" for path in files],
                "features": {"image": tfrecord.FixedLenFeature((), tfrecord.string, "")},
                "order": samples - first * count,
            }
            reader = readers.tfrecord
        else:
            given |= {"files": [files[number] for number in samples]}
            if self.format_type is FormatType.NPZ:
                given, reader = given | {"members": "x"}, readers.npz
            elif self.format_type is FormatType.NPY:
                reader = readers.numpy
        try:
            return readers.batches(reader, batch_size=self.batch_size, **given)
        except ValueError as error:
            error.add_note(f"dataset.num_samples_per_file is {count}")
            raise

    def require_counts(self, found: Catalog) -> None:
        """Refuse, by name, a file with another number of records than DLIO expects."""
        count, has = self._args.num_samples_per_file, found.containers
        if has is not None and (wrong := np.flatnonzero(has != count)).size:
            path = os.fsdecode(found.file_path(int(wrong[0])))
            what = f"dataset.num_samples_per_file is {count}, but {path!r} has {has[wrong[0]]}"
            raise ValueError(what)

    def finalize(self) -> None:
        """Nothing is left to close after an epoch."""


def _backend_options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise ValueError(f'DALI_STORAGE_OPTIONS must be like {{"direct": true}}, not {text!r}')
    return options


def _ahead(batches: Generator[Any, None, None]) -> Iterator[Any]:
    """The same, taken by a thread: a step of DLIO does not wait for the work on a batch.

    The thread closes `batches`, also if the caller leaves early.
    """
    ready, left = Queue[tuple[Any, BaseException | None]](2), Event()

    def take() -> None:
        try:
            with closing(batches):
                for batch in batches:
                    ready.put((batch, None))
                    if left.is_set():
                        return
            ready.put((None, None))
        except BaseException as error:
            ready.put((None, error))

    Thread(target=take, name="dali_storage.dlio", daemon=True).start()
    try:
        while True:
            batch, error = ready.get()
            if error is not None:
                raise error
            if batch is None:
                return
            yield batch
    finally:
        left.set()
        with suppress(Empty):
            while True:  # room for what the thread puts before it looks
                ready.get_nowait()
