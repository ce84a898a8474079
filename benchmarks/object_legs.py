"""The legs of the command `objects`: copies of the files of --datadir in an object store."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali import fn

from bmap_tools.console import Tick
from dali_storage import BackendUnavailable, readers
from dali_storage.contract import registry
from dali_storage.samples.discovery import from_store

from .legs import LEGS, Backend, Leg
from .pipelines import Nodes, build, read_files, read_naively, use_images
from .workload import BadInputError, Workload, order_of, summarize_error

_THREADS = 2, 8, 16, 32
"""Of DALI: as many requests are under way, but 25 at most. The best number depends on the store."""
BASELINES = tuple(f"dali-s3-{threads}" for threads in _THREADS)
"""The other legs are compared with the fastest of these."""


@dataclass(frozen=True, slots=True)
class ObjectLeg(Leg):
    """A leg that reads --url. It is verified against the files of --datadir.

    Attributes:
        threads: of DALI; None: those of the command line.
        cached: the objects are read before the first round.
    """

    threads: int | None = None
    cached: bool = False

    def ordered(self, workload: Workload) -> Workload:
        """The workload with the threads of the leg."""
        if self.threads is None:
            return workload
        return replace(workload, settings=replace(workload.settings, threads=self.threads))

    def warm(self, workload: Workload, tick: Tick) -> None:
        """Read every object, so that it is in the cache.

        What the disk could not keep up with is added in the second pass.
        """
        if self.cached:
            settings = replace(workload.settings, batches=None, seed=None)
            order = order_of(len(workload.catalog), settings)
            pipe = build(self.read, replace(workload, settings=settings, order=order), use_images)
            for batch in range(2 * len(order)):
                pipe.run()
                tick(batch // 2 + 1)

    def truth(self, workload: Workload) -> Nodes:
        """The files."""
        return read_naively(workload)

    @property
    def expected(self) -> str:
        """What the leg is verified against, for messages."""
        return "the files in --datadir"


def open_objects(workload: Workload) -> Workload:
    """The workload; a BadInputError if the objects below --url are not copies of its files.

    Names, labels and sizes are compared.
    """
    url, catalog = str(workload.settings.url), workload.catalog
    try:
        found = from_store(registry.load("object-store").remote(), url)
    except (OSError, ValueError, BackendUnavailable) as error:
        raise BadInputError(f"--url {url}: {summarize_error(error)}") from error
    if found.checksum() != catalog.checksum():
        what = f"the names of {len(found)} objects are not those of {len(catalog)} files, in order"
    elif (wrong := np.flatnonzero(found.sizes != workload.sizes)).size:
        what = f"{os.fsdecode(found.name(int(wrong[0])))} has another size"
    else:
        return workload
    remedy = "copy the files there, for example by aws s3 sync --delete"
    raise BadInputError(f"--url {url} is not a copy of {workload.root}: {what}; {remedy}")


def _read(
    reader: Callable[..., Any], arguments: Callable[[Workload], dict[str, Any]], workload: Workload
) -> Nodes:
    there = replace(workload, root=workload.settings.url)
    return read_files(reader, there, **arguments(workload))


def _leg(name: str, summary: str, *settings: str) -> ObjectLeg:
    """A leg of ours; it needs all `settings` but the first one."""
    backend = Backend("object-store", ("requests", *settings))

    def unsupported(workload: Workload) -> str | None:
        for setting in settings:
            if getattr(workload.settings, setting) is None:
                return f"it needs --{setting}"
        return backend.unavailable(workload)

    read = partial(_read, readers.file, backend.arguments)
    cached = "cache" in settings
    return ObjectLeg(name, summary, read, unsupported, backend, BASELINES, cached=cached)


_FILES = next(leg for leg in LEGS if leg.name == "python-file")

OBJECT_LEGS: tuple[Leg, ...] = (
    *(
        ObjectLeg(
            name,
            f"fn.readers.file with num_threads={threads}",
            partial(_read, fn.readers.file, lambda workload: {}),
            baselines=BASELINES,
            threads=threads,
        )
        for name, threads in zip(BASELINES, _THREADS, strict=True)
    ),
    _leg("object-store", "object-store (--requests)"),
    _leg("object-store-hedged", "object-store: slow requests are asked once more", "hedge"),
    _leg("object-store-cached", "object-store: from a warm cache on local disk", "cache"),
    replace(_FILES, baselines=BASELINES),
)
