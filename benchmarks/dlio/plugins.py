"""What DLIO loads: readers and data loaders that look at each byte of the samples."""

import inspect
import mmap
import textwrap
from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
from dlio_benchmark.reader import reader_handler
from nvidia.dali import fn

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
        """Read a file."""
        look(np.fromfile(filename, np.uint8), self.thread_index + 1)

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
        for batch in super().batches():
            for sample in batch:
                look(np.asarray(sample))
            yield batch


class Dali(Ours):
    """fn.readers.file in the same loader."""

    def reader(self, samples: npt.NDArray[np.int64]) -> Any:
        """DALI's reader of the same files."""
        files = [self._args.file_list_train[number] for number in samples]
        ahead = self.options["prefetch_queue_depth"]
        return fn.readers.file(files=files, name="Reader", prefetch_queue_depth=ahead)[0]

    def bounded(self, pipe: Any) -> Any:
        """DALI's reader begins the next epoch."""
        return nullcontext()


def take_out_the_debug_line() -> None:
    """Without it, `read_index()` formats the whole map of files for each sample, for no log."""
    line = 'logging.debug(f"{self.global_index_map}")'
    source = textwrap.dedent(inspect.getsource(reader_handler.FormatReader.read_index))
    if line not in source:
        raise SystemExit("this DLIO has no such debug line: measure 2.0.0")
    exec(source.replace(line, "pass"), vars(reader_handler))
    reader_handler.FormatReader.read_index = vars(reader_handler).pop("read_index")
