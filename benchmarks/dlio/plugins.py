"""What DLIO loads: readers and data loaders that look at each byte of the samples."""

import inspect
import mmap
import os
import textwrap
from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt
from dlio_benchmark.common.enumerations import FormatType
from dlio_benchmark.reader import reader_handler
from nvidia.dali import Pipeline, fn, tfrecord

from dali_storage import readers
from dali_storage.dlio import Loader

_WORKERS = 16
LOOKED: npt.NDArray[np.uint64] = np.frombuffer(mmap.mmap(-1, 24 * _WORKERS), np.uint64)
"""Digest, bytes and samples, of each worker; shared with forks."""
LOOKED = LOOKED.reshape(_WORKERS, 3)


def digest(data: npt.NDArray[np.uint8]) -> list[int]:
    """The exclusive or of all whole 64-bit words of a sample, its bytes, and 1."""
    words = data[: data.size & ~7].view(np.uint64)
    return [int(np.bitwise_xor.reduce(words)), data.size, 1]


def look(data: npt.NDArray[np.uint8], worker: int = 0) -> None:
    """Look at each byte of a sample."""
    LOOKED[worker] += np.array(digest(data), np.uint64)


class Bytes(reader_handler.FormatReader):  # type: ignore[misc]  # DLIO has no types
    """DLIO's reader without decoding, as MLPerf's fork of DLIO has it; looks at the bytes."""

    def __init__(self, dataset_type: Any, thread_index: int, epoch: int) -> None:
        super().__init__(dataset_type, thread_index)

    def open(self, filename: str) -> None:
        """Read a file; an array, with its checksum, as DLIO does."""
        is_array = filename.endswith(".npz")
        data = np.load(filename)["x"].reshape(-1) if is_array else np.fromfile(filename, np.uint8)
        look(data, self.thread_index + 1)

    def close(self, filename: str) -> None:
        """Nothing is open."""

    def get_sample(self, filename: str, sample_index: int) -> None:
        """`open()` has read it."""

    def read_index(self, image_idx: int, step: int) -> Any:
        """As DLIO's readers."""
        return super().read_index(image_idx, step)

    next = finalize = is_index_based = is_iterator_based = lambda self: None


class Ours(Loader):
    """`dali_storage.dlio.Loader`, which looks at the bytes in the thread that takes batches."""

    def batches(self) -> Generator[Any, None, None]:
        """The batches, looked at."""
        for batch in self.taken():
            for sample in batch:
                look(np.asarray(sample).reshape(-1).view(np.uint8))
            yield batch

    def taken(self) -> Generator[Any, None, None]:
        """The batches."""
        return super().batches()


class Dali(Ours):
    """fn.readers in a pipeline, in the same loader."""

    readers: Any = fn.readers

    def taken(self) -> Generator[Any, None, None]:
        """The batches of the pipeline."""
        files = [self._args.file_list_train[number] for number in self.samples()]
        ahead = self.options["prefetch_queue_depth"]
        given = {"name": "Reader", "prefetch_queue_depth": ahead}
        threads, queued = max(1, self._args.computation_threads), min(2, self.steps)
        # The dynamic executor leaves released batches intact.
        with Pipeline(
            self.batch_size, threads, None, prefetch_queue_depth=queued, exec_dynamic=True
        ) as pipe:
            pipe.set_outputs(self.node(files, given))
        pipe.build()
        for step in range(self.steps):
            if step == 0 or step + queued <= self.steps:
                pipe.schedule_run()  # the first call fills DALI's queue
            (batch,) = pipe.share_outputs()
            pipe.release_outputs()
            yield batch

    def node(self, files: list[str], given: dict[str, Any]) -> Any:
        """The node of the reader."""
        if self.format_type is not FormatType.TFRECORD:
            return self.readers.file(files=files, **given)[0]
        index = f"{self._args.data_folder}/index/train"
        indexes = [f"{index}/{os.path.basename(path)}.idx" for path in files]
        features = {"image": tfrecord.FixedLenFeature((), tfrecord.string, "")}
        return self.readers.tfrecord(path=files, index_path=indexes, features=features, **given)[
            "image"
        ]


class OursInPipeline(Dali):
    """Our readers in a pipeline: the swap."""

    readers: Any = readers


def take_out_the_debug_line() -> None:
    """Without it, `read_index()` formats the whole map of files for each sample, for no log."""
    line = 'logging.debug(f"{self.global_index_map}")'
    source = textwrap.dedent(inspect.getsource(reader_handler.FormatReader.read_index))
    if line not in source:
        raise SystemExit("this DLIO has no such debug line: measure 2.0.0")
    exec(source.replace(line, "pass"), vars(reader_handler))
    reader_handler.FormatReader.read_index = vars(reader_handler).pop("read_index")
