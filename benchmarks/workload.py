"""The workload: one data set in one order, the same for every leg."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from dali_storage import Catalog, IntArray
from dali_storage.order import Order, OrderOptions
from dali_storage.samples.discovery import from_directory

from .shards import Shards

_CHUNK_SAMPLES = 65536


class BadInputError(Exception):
    """The command line or the data must be changed; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command line that decide what is measured; its help explains them."""

    batch_size: int = 64
    batches: int | None = None
    seed: int | None = None
    decode: bool = False
    cold: bool = False
    rounds: int = 5
    threads: int = 1
    prefetch: int = 2
    device_id: int | None = None
    bmap: str | None = None
    uri: str | None = None
    mem: str = "cpu"
    queues: int | None = None
    pinned: str = "auto"
    io: str | None = None
    copying_lanes: int | None = None
    spin: bool = False
    url: str | None = None
    requests: int | None = None
    hedge: float | None = None
    cache: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The samples of a round, and the order in which they are read.

    Attributes:
        root: the directory of the class directories; None if the file system is not mounted, and
            the samples are known from an extent map only.
        sizes: int64[n], bytes of every sample of the catalog.
        order: int64[batches, batch size], the catalog indices that every leg must deliver.
        bmap: the path of an extent map of the samples, if there is one.
        shards: the same samples in containers, by their format.
    """

    settings: Settings
    root: str | None
    catalog: Catalog
    sizes: IntArray
    order: IntArray
    bmap: str | None = None
    shards: Mapping[str, Shards] = field(default_factory=dict)

    @property
    def shards_root(self) -> str | None:
        """The directory of `shards`, if there are any."""
        files = [file for found in self.shards.values() for file in found.files]
        return os.path.commonpath(files) if files else None

    def batch(self, iteration: int) -> IntArray:
        """The samples of a batch. To fill its queue, DALI requests batches beyond the last one."""
        indices: IntArray = self.order[iteration % len(self.order)]
        return indices

    def delivered_bytes(self, samples: int) -> int:
        """The exact number of bytes in the first `samples` samples of the order."""
        return int(self.sizes[self.order.reshape(-1)[:samples]].sum())

    def name(self, batch: int, slot: int) -> str:
        """The path of a sample, printable."""
        path = self.catalog.path(int(self.order[batch, slot]))
        return path.decode(errors="backslashreplace")


def prepare(data_directory: str, settings: Settings) -> Workload:
    """The workload of the samples in a directory, or in its subdirectory `train` if it has one."""
    train = os.path.join(data_directory, "train")
    root = train if os.path.isdir(train) else data_directory
    try:
        catalog = from_directory(root)
        sizes = [os.stat(path).st_size for path in paths(catalog)]
    except (OSError, ValueError) as error:
        raise BadInputError(f"--datadir {root}: {summarize_error(error)}") from error
    order = order_of(len(sizes), settings)
    return Workload(settings, root, catalog, np.array(sizes, np.int64), order)


def order_of(samples: int, settings: Settings, containers: IntArray | None = None) -> IntArray:
    """`Workload.order`, one epoch after another.

    As `fn.readers.file` has it; with the numbers of samples in containers, as DALI's readers of
    containers have it.
    """
    options = OrderOptions(
        random_shuffle=settings.seed is not None,
        seed=settings.seed or 0,
        by_container=containers is not None,
    )
    order = Order(samples, settings.batch_size, options, containers)
    batches = settings.batches or -(-samples // settings.batch_size)
    return np.stack([order.batch(iteration) for iteration in range(batches)])


def paths(catalog: Catalog, samples: IntArray | None = None) -> Iterator[bytes]:
    """The paths of `samples` (default: all), without a list of all of them in memory."""
    chosen = np.arange(len(catalog)) if samples is None else samples
    for start in range(0, len(chosen), _CHUNK_SAMPLES):
        yield from catalog.paths(chosen[start : start + _CHUNK_SAMPLES])


def summarize_error(error: Exception) -> str:
    """The type and the first line of an error, without the traceback that DALI adds to it."""
    text = str(error).partition("encountered:")[2] or str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.strerror}: {os.fsdecode(error.filename)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])
