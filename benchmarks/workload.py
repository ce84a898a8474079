"""The workload: one data set in one order, the same for every leg, and the copies of its files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from dali_storage import BackendUnavailable, Catalog, IntArray
from dali_storage.contract import registry
from dali_storage.contract.remote import remote_of
from dali_storage.order import Order, OrderOptions
from dali_storage.samples.discovery import from_directory
from dali_storage.samples.listed import from_store

DIRECTORY = "shards"
"""Where containers are in the directory of a data set: in one directory for each format."""
SUFFIXES = {"webdataset": ".tar", "tfrecord": ".tfrecord"}
"""How the names of containers end, by format."""


class BadInputError(Exception):
    """The command line or the data must be changed; the message says what is wrong."""


class NotHereError(Exception):
    """Something cannot be measured on this machine; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the command line that decide what is measured; its help explains them.

    `untimed` is none of them: so many batches are read before the clock starts.
    """

    batch_size: int = 64
    batches: int | None = None
    seconds: float = 2.0
    untimed: int = 0
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
class Shards:
    """Containers of one format. Their samples are those of `readers.file`, in list order.

    Attributes:
        files: their paths.
        indexes: the path of the index of each.
        counts: int64[files], how many samples each has.
    """

    files: list[str]
    indexes: list[str]
    counts: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """The samples of a round, and the order in which they are read.

    Attributes:
        root: the directory of the class directories; None if the file system is not mounted, and
            the samples are known from an extent map only.
        sizes: int64[n], bytes of every sample.
        order: int64[batches, batch size], the samples that every leg must deliver.
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

    def batch(self, iteration: int) -> IntArray:
        """The samples of a batch. To fill its queue, DALI requests batches beyond the last one."""
        return cast("IntArray", self.order[iteration % len(self.order)])

    def delivered_bytes(self, first: int, samples: int) -> int:
        """The number of bytes in so many samples of the order, which is repeated at its end."""
        which = np.arange(first, first + samples)
        return int(self.sizes[np.take(self.order, which, mode="wrap")].sum())

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


def find(directory: str, form: str) -> Shards:
    """The containers of a format in the directory of a data set; an OSError if there are none."""
    folder = os.path.join(directory, DIRECTORY, form)
    names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIXES[form]))
    files = [os.path.join(folder, name) for name in names]
    indexes = [os.path.splitext(file)[0] + ".idx" for file in files]
    return Shards(files, indexes, np.array([len(rows(index)) for index in indexes], np.int64))


def rows(index: str) -> list[list[str]]:
    """The words of each sample in an index."""
    with open(index, encoding="ascii") as lines:
        words = [line.split() for line in lines]
    return words[1:] if words and words[0][0].startswith("v") else words


def open_shards(workload: Workload, directory: str) -> Workload:
    """The workload with its containers; a BadInputError if they are not those of its files."""
    remedy = f"python -m benchmarks.dataset {directory} --shards 10 makes them of the demo's files"
    try:
        found = {form: find(directory, form) for form in SUFFIXES}
    except (OSError, ValueError) as error:
        raise BadInputError(f"no containers: {summarize_error(error)}; {remedy}") from error
    for form, its in found.items():
        if (packed := its.counts.sum()) != len(workload.catalog):
            what = f"{packed} samples in {form} of {len(workload.catalog)} files in {workload.root}"
            raise BadInputError(f"{what}; {remedy}")
    return replace(workload, shards=found)


def compare_objects(workload: Workload) -> None:
    """Raise a BadInputError if the objects below --url are not copies of the workload's files.

    Names, labels and sizes are compared.
    """
    url, catalog = str(workload.settings.url), workload.catalog
    try:
        found = from_store(remote_of(registry.load("object-store")), url)
    except (OSError, ValueError, BackendUnavailable) as error:
        raise BadInputError(f"--url {url}: {summarize_error(error)}") from error
    if found.checksum() != catalog.checksum():
        what = f"the names of {len(found)} objects are not those of {len(catalog)} files, in order"
    elif (wrong := np.flatnonzero(found.sizes != workload.sizes)).size:
        what = f"{os.fsdecode(found.name(int(wrong[0])))} has another size"
    else:
        return
    remedy = "copy the files there, for example by aws s3 sync --delete"
    raise BadInputError(f"--url {url} is not a copy of {workload.root}: {what}; {remedy}")


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


def paths(catalog: Catalog, samples: IntArray | None = None) -> Sequence[bytes]:
    """The paths of `samples` (default: all)."""
    return catalog.paths(np.arange(len(catalog)) if samples is None else samples)


def ordered(workload: Workload, **changes: Any) -> Workload:
    """The workload with other settings, and the order that they ask for."""
    settings = replace(workload.settings, **changes)
    return replace(workload, settings=settings, order=order_of(len(workload.catalog), settings))


def epoch_of(workload: Workload, **changes: Any) -> Workload:
    """The workload with as many batches as one epoch has, and other settings."""
    return ordered(workload, batches=None, untimed=0, **changes)


def summarize_error(error: Exception) -> str:
    """The type and the first line of an error, without the traceback that DALI adds to it."""
    text = str(error).partition("encountered:")[2] or str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.strerror}: {os.fsdecode(error.filename)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])
