"""What is read: one data set, in one order, by every leg alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dali_storage.catalog import Catalog
from dali_storage.discovery import from_directory
from dali_storage.order import Order, OrderOptions

IntArray: TypeAlias = npt.NDArray[np.int64]
Tick: TypeAlias = Callable[[int], None]
"""Told after each step how many samples were done so far."""

_CHUNK_SAMPLES = 65536


class BadInputError(Exception):
    """The user must change something in the command line or the data; the text says what."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line asks for; see its help for the meaning of each."""

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
    io: str | None = None
    spin: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The samples of one pass, and how they are asked for.

    Attributes:
        root: the directory that holds the class directories; None where the samples are known from
            an extent map only, because their file system is not mounted.
        catalog: its samples.
        sizes: int64[n], bytes of every sample of the catalog.
        order: int64[batches, batch size], the catalog indices that every leg must deliver.
        bmap: the path of an extent map of them, if there is one.
    """

    settings: Settings
    root: str | None
    catalog: Catalog
    sizes: IntArray
    order: IntArray
    bmap: str | None = None

    def batch(self, iteration: int) -> IntArray:
        """Which samples a leg that is fed with paths reads.

        DALI also asks for batches beyond the last one, to fill its queue.
        """
        indices: IntArray = self.order[iteration % len(self.order)]
        return indices

    def one_epoch(self) -> Work:
        """The same work, for as many batches as show every sample."""
        return replace(
            self, order=order_of(len(self.catalog), replace(self.settings, batches=None))
        )

    def delivered_bytes(self, samples: int) -> int:
        """The true bytes of the first `samples` samples of the order."""
        return int(self.sizes[self.order.reshape(-1)[:samples]].sum())

    def name(self, batch: int, position: int) -> str:
        """A sample's path, printable."""
        path = self.catalog.path(int(self.order[batch, position]))
        return path.decode(errors="backslashreplace")


def prepare(data_directory: str, settings: Settings) -> Work:
    """Find the samples under `data_directory`, or under its `train` if it has one.

    Raises:
        BadInputError: there are none, or one of them cannot be looked at.
    """
    train = os.path.join(data_directory, "train")
    root = train if os.path.isdir(train) else data_directory
    try:
        catalog = from_directory(root)
        sizes = [os.stat(path).st_size for path in paths(catalog)]
    except (OSError, ValueError) as error:
        raise BadInputError(f"cannot use {root!r} as the data: {explain(error)}") from error
    if not sizes:
        raise BadInputError(f"there is no file to read in the directories of {root!r}")
    order = order_of(len(sizes), settings)
    return Work(settings, root, catalog, np.array(sizes, np.int64), order)


def order_of(samples: int, settings: Settings) -> IntArray:
    """`Work.order`, as `fn.readers.file` has it: the epochs follow each other."""
    options = OrderOptions()
    if settings.seed is not None:
        options = OrderOptions(random_shuffle=True, seed=settings.seed)
    order = Order(samples, settings.batch_size, options)
    batches = settings.batches or -(-samples // settings.batch_size)
    return np.stack([order.batch(iteration) for iteration in range(batches)])


def paths(catalog: Catalog, samples: IntArray | None = None) -> Iterator[bytes]:
    """The paths of `samples`, by default all, without a list of ten million of them."""
    chosen = np.arange(len(catalog)) if samples is None else samples
    for start in range(0, len(chosen), _CHUNK_SAMPLES):
        yield from catalog.paths(chosen[start : start + _CHUNK_SAMPLES])


def explain(error: Exception) -> str:
    """The type and the gist of an error, which DALI wraps into a traceback of the pipeline."""
    text = str(error).partition("encountered:")[2] or str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.strerror}: {os.fsdecode(error.filename)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])
