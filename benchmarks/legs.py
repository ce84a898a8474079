"""The legs: the ways to read that are compared. A new one is a row of `LEGS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types

from dali_storage import readers

from . import obstacles
from .work import Work, paths

Nodes: TypeAlias = tuple[Any, Any]
"""DALI's data nodes of the encoded files and of the labels."""


@dataclass(frozen=True, slots=True)
class Extents:
    """The backend of a leg that goes by an extent map.

    Attributes:
        backend: its name.
        options: its options, for a work with a map.
    """

    backend: str
    options: Callable[[Work], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Leg:
    """One way to read the samples of a `Work`.

    Attributes:
        summary: for the help.
        read: makes the operators that read; called while a pipeline is being defined.
        obstacle: why the leg cannot run here even if there are files, or None.
        extents: of a leg that needs a map, which is found or made after the others have been
            looked at.
    """

    name: str
    summary: str
    read: Callable[[Work], Nodes]
    obstacle: Callable[[Work], str | None] = obstacles.none
    extents: Extents | None = None

    def why_not(self, work: Work) -> str | None:
        """Why the leg cannot run here, or None."""
        if work.root is None and self.extents is None:
            return "it reads files, and their file system is not mounted"
        return self.obstacle(work)


def build(leg: Leg, work: Work, consume: Callable[[Any, Any, Work], Nodes]) -> Pipeline:
    """A pipeline of the leg and of the consumer of its outputs, ready for its first run."""
    settings = work.settings
    pipe = Pipeline(
        batch_size=settings.batch_size,
        num_threads=settings.threads,
        device_id=settings.device_id,
        prefetch_queue_depth=settings.prefetch,
    )
    with pipe:
        data, labels = leg.read(work)
        pipe.set_outputs(*consume(data, labels, work))
    pipe.build()
    return pipe


def use_images(data: Any, labels: Any, work: Work) -> Nodes:
    """What is timed: something that looks at every sample, and the same for every leg.

    A raw output of external_source would not do: DALI copies it to make it contiguous, which no
    real pipeline asks for. The labels are converted for the same reason.
    """
    labels = fn.cast(labels, dtype=types.INT64)
    if not work.settings.decode:
        return fn.peek_image_shape(data), labels
    device = "cpu" if work.settings.device_id is None else "mixed"
    return fn.decoders.image(data, device=device), labels


def keep_bytes(data: Any, labels: Any, work: Work) -> Nodes:
    """What is verified: the bytes and the labels as they came."""
    return fn.copy(data), fn.copy(labels)


def _shuffle(work: Work) -> dict[str, Any]:
    seed = work.settings.seed
    return {} if seed is None else {"random_shuffle": True, "seed": seed}


def _read_with_dali(work: Work, dont_use_mmap: bool) -> Nodes:
    data, labels = fn.readers.file(
        file_root=work.root, dont_use_mmap=dont_use_mmap, name="Reader", **_shuffle(work)
    )
    return data, labels


def _read_with_backend(work: Work, backend: str, options: dict[str, Any]) -> Nodes:
    data, labels = readers.file(
        file_root=work.root,
        name="Reader",
        backend=backend,
        backend_options=options,
        **_shuffle(work),
    )
    return data, labels


def _block_options(work: Work) -> dict[str, Any]:
    uri = work.settings.uri
    return {"bmap": work.bmap} | ({} if uri is None else {"uri": uri})


def _xnvme_options(work: Work) -> dict[str, Any]:
    io = work.settings.io
    return {} if io is None else {"io": io}


def _gds_options(work: Work) -> dict[str, Any]:
    ours = {"mem": work.settings.mem, "spin": work.settings.spin}
    return _block_options(work) | _xnvme_options(work) | ours


def _read_extents(work: Work, extents: Extents) -> Nodes:
    return _read_with_backend(work, extents.backend, extents.options(work))


def _read_with_xnvme_file(work: Work) -> Nodes:
    return _read_with_backend(work, "xnvme-file", _xnvme_options(work))


def _read_with_io_file(work: Work) -> Nodes:
    """DALI's own threads read what Python names; the names are made before the clock runs."""
    names = [np.frombuffer(path, np.uint8) for path in paths(work.catalog)]
    all_labels = np.asarray(work.catalog.labels, np.int32)[:, np.newaxis]

    def batch(iteration: int) -> tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int32]]:
        samples = work.batch(iteration)
        return [names[sample] for sample in samples.tolist()], all_labels[samples]

    source_paths, labels = fn.external_source(source=batch, num_outputs=2, batch=True)
    return fn.io.file.read(source_paths), labels


class NaiveIterator:
    """What one writes after reading the documentation of external_source."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._paths = list(paths(work.catalog))
        self._labels = np.asarray(work.catalog.labels, np.int32)
        self._iteration = 0

    def __iter__(self) -> NaiveIterator:
        self._iteration = 0
        return self

    def __next__(self) -> tuple[list[npt.NDArray[np.uint8]], list[npt.NDArray[np.int32]]]:
        files, labels = [], []
        for sample in self._work.batch(self._iteration).tolist():
            with open(self._paths[sample], "rb") as file:
                files.append(np.frombuffer(file.read(), np.uint8))
            labels.append(self._labels[sample : sample + 1])
        self._iteration += 1
        return files, labels


def _read_naively(work: Work) -> Nodes:
    data, labels = fn.external_source(source=NaiveIterator(work), num_outputs=2, batch=True)
    return data, labels


def _backend_leg(name: str, summary: str, backend: str, **options: Any) -> Leg:
    """A leg of one of our backends that needs no more than its own `unavailable()`."""
    read = partial(_read_with_backend, backend=backend, options=options)
    return Leg(name, summary, read, partial(obstacles.of_backend, backend=backend))


def _extents_leg(
    name: str, summary: str, extents: Extents, obstacle: Callable[[Work], str | None]
) -> Leg:
    return Leg(name, summary, partial(_read_extents, extents=extents), obstacle, extents)


_MMAP = Leg("dali", "fn.readers.file, through mmap", partial(_read_with_dali, dont_use_mmap=False))
_NO_MMAP = Leg(
    "dali-nommap",
    "fn.readers.file(dont_use_mmap=True)",
    partial(_read_with_dali, dont_use_mmap=True),
)
BASELINES = (_MMAP.name, _NO_MMAP.name)
"""The better of these is what the others are measured against."""
BLOCK = _extents_leg(
    "block",
    "extents of the block device, through a map (--bmap)",
    Extents("block", _block_options),
    obstacles.of_block,
)
XNVME_GDS = _extents_leg(
    "xnvme-gds",
    "the same as NVMe reads, by the backend xnvme-block (--uri, --mem, --io, --spin)",
    Extents("xnvme-block", _gds_options),
    obstacles.of_gds,
)
MAPPED = (BLOCK, XNVME_GDS)
"""Those that need an extent map."""
REFERENCE = _NO_MMAP
"""What the others are verified against; not the mapped one, which refuses files without a byte."""

LEGS = (
    _MMAP,
    _NO_MMAP,
    Leg("dali-io-file", "fn.io.file.read, fed with paths by external_source", _read_with_io_file),
    _backend_leg("python-file", "our files, through the page cache", "python-file", direct=False),
    Leg(
        "python-file-direct",
        "our files, with O_DIRECT",
        partial(_read_with_backend, backend="python-file", options={"direct": True}),
        obstacles.of_direct,
    ),
    Leg(
        "xnvme-file",
        "our files, by the xNVMe file API (--io)",
        _read_with_xnvme_file,
        obstacles.of_xnvme_file,
    ),
    BLOCK,
    XNVME_GDS,
    Leg(
        "memory",
        "our files, all in memory beforehand: the ceiling",
        partial(_read_with_backend, backend="memory", options={}),
        obstacles.of_memory,
    ),
    Leg("naive", "the Python iterator that a user would write", _read_naively),
)
