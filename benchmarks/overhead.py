"""The cost of the statistics: `python -m benchmarks.overhead`.

Batches of 64 cached files of 110 KB are read by python-file, with and without the statistics, in
turns of a few batches. Nothing is done with the samples, so the share is the largest there can be.
"""

import os
import tempfile
import time

import numpy as np

from dali_storage.backends.python_file import PythonFileReader
from dali_storage.contract.catalog import Catalog
from dali_storage.observing.observer import Observed
from dali_storage.order import Order, OrderOptions
from dali_storage.reading.loading import Loading
from dali_storage.reading.prefetch import Prefetcher
from dali_storage.reading.slots import Observer

_FILES, _BATCH, _BYTES = 1024, 64, 110_000
_TURNS, _BATCHES = 400, 30


def main() -> None:
    """Print the ratio of the medians, by the CPU time of the process; and that of neighbours."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        names = [f"{number}.bin".encode() for number in range(_FILES)]
        for name in names:
            with open(os.path.join(folder, name.decode()), "wb") as file:
                file.write(os.urandom(_BYTES))
        catalog = Catalog.from_names(names, [], os.fsencode(folder))
        # Each is the first as often as the second.
        turns = [_observed, Observer, Observer, _observed] * (_TURNS // 2)
        seconds = np.array([_turn(catalog, its()) for its in turns]).reshape(-1, 4)
    pairs = np.concatenate((seconds[:, :2], seconds[:, :1:-1]))
    low, middle, high = np.percentile(pairs[:, 0] / pairs[:, 1], [25, 50, 75]) - 1
    with_them, without = np.median(pairs, axis=0)
    batch = 1e3 * without / _BATCHES
    share = f"{with_them / without - 1:+.2%} by medians, {middle:+.2%} by pairs of neighbours"
    share += f" (quartiles {low:+.2%} to {high:+.2%})"
    print(f"statistics: {share} of {batch:.2f} ms for a batch of {_BATCH} files of {_BYTES} bytes")


def _observed() -> Observed:
    return Observed("On", "On")


def _turn(catalog: Catalog, observer: Observer) -> float:
    """The CPU seconds of some batches."""
    loading = Loading(catalog, PythonFileReader(catalog, lanes=1))
    ahead = Prefetcher(loading, Order(_FILES, _BATCH, OrderOptions()), 1, observer=observer)
    try:
        ahead.get(0)
        start = time.process_time()
        for index in range(1, _BATCHES):
            ahead.get(index)
        return time.process_time() - start
    finally:
        ahead.close()


if __name__ == "__main__":
    main()
