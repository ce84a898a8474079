"""DALI pipelines: how the legs read, and what consumes the samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types

from dali_storage import readers
from dali_storage.dali.group import readers_of
from dali_storage.prefetch import copying_lanes

from .workload import Workload, paths

Nodes: TypeAlias = tuple[Any, Any]
"""DALI's data nodes of the encoded files and of the labels."""


def build(
    read: Callable[[Workload], Nodes],
    workload: Workload,
    consume: Callable[[Any, Any, Workload], Nodes],
) -> Pipeline:
    """A pipeline that reads and consumes the samples, ready for its first run."""
    settings = workload.settings
    pipe = Pipeline(
        batch_size=settings.batch_size,
        num_threads=settings.threads,
        device_id=settings.device_id,
        prefetch_queue_depth=settings.prefetch,
    )
    with pipe:
        data, labels = read(workload)
        pipe.set_outputs(*consume(data, labels, workload))
    pipe.build()
    return pipe


def lanes_of(pipe: Pipeline) -> tuple[int, int] | None:
    """How many lanes may copy at once, and how many there are; None without dali_storage."""
    for group in readers_of(pipe).values():
        _, reader = group.source(pipe).open()
        return copying_lanes(reader, pipe.num_threads), reader.lanes
    return None


def use_images(data: Any, labels: Any, workload: Workload) -> Nodes:
    """The consumer that is timed. It looks at every sample, for every leg in the same way.

    The raw output of external_source is not timed: DALI would copy it to make it contiguous, which
    no real pipeline requests. The labels are converted for the same reason.
    """
    labels = fn.cast(labels, dtype=types.INT64)
    if not workload.settings.decode:
        return fn.peek_image_shape(data), labels
    device = "cpu" if workload.settings.device_id is None else "mixed"
    return fn.decoders.image(data, device=device), labels


def keep_bytes(data: Any, labels: Any, workload: Workload) -> Nodes:
    """The consumer of --verify: the bytes and the labels, unchanged."""
    return fn.copy(data), fn.copy(labels)


def read_with_dali(workload: Workload, *, dont_use_mmap: bool) -> Nodes:
    """`fn.readers.file`."""
    data, labels = fn.readers.file(
        file_root=workload.root, dont_use_mmap=dont_use_mmap, name="Reader", **_shuffle(workload)
    )
    return data, labels


def read_with_backend(workload: Workload, backend: str, options: dict[str, Any]) -> Nodes:
    """`dali_storage.readers.file`."""
    data, labels = readers.file(
        file_root=workload.root,
        name="Reader",
        backend=backend,
        backend_options=options,
        **_shuffle(workload),
    )
    return data, labels


def _shuffle(workload: Workload) -> dict[str, Any]:
    seed = workload.settings.seed
    return {} if seed is None else {"random_shuffle": True, "seed": seed}


def read_with_io_file(workload: Workload) -> Nodes:
    """`fn.io.file.read`: DALI's threads read the paths that Python passes.

    The arrays of the paths are made here, before the clock starts.
    """
    names = [np.frombuffer(path, np.uint8) for path in paths(workload.catalog)]
    all_labels = np.asarray(workload.catalog.labels, np.int32)[:, np.newaxis]

    def batch(iteration: int) -> tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int32]]:
        samples = workload.batch(iteration)
        return [names[sample] for sample in samples.tolist()], all_labels[samples]

    source_paths, labels = fn.external_source(source=batch, num_outputs=2, batch=True)
    return fn.io.file.read(source_paths), labels


class NaiveIterator:
    """The iterator that a user writes after reading the documentation of external_source."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._paths = list(paths(workload.catalog))
        self._labels = np.asarray(workload.catalog.labels, np.int32)
        self._iteration = 0

    def __iter__(self) -> NaiveIterator:
        self._iteration = 0
        return self

    def __next__(self) -> tuple[list[npt.NDArray[np.uint8]], list[npt.NDArray[np.int32]]]:
        files, labels = [], []
        for sample in self._workload.batch(self._iteration).tolist():
            with open(self._paths[sample], "rb") as file:
                files.append(np.frombuffer(file.read(), np.uint8))
            labels.append(self._labels[sample : sample + 1])
        self._iteration += 1
        return files, labels


def read_naively(workload: Workload) -> Nodes:
    """`fn.external_source` with a `NaiveIterator`."""
    data, labels = fn.external_source(source=NaiveIterator(workload), num_outputs=2, batch=True)
    return data, labels
