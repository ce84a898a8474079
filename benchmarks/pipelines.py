"""DALI pipelines: how the legs read, and what consumes the samples."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types

from dali_storage.dali.group import readers_of
from dali_storage.reading.prefetch import copying_lanes

from .workload import Settings, Workload, paths

Array: TypeAlias = npt.NDArray[Any]
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


def memory_of(pipe: Pipeline) -> str | None:
    """Where the buffers of a pipeline that has run are; None without dali_storage."""
    for group in readers_of(pipe).values():
        source = group.source(pipe)
        _, reader = source.open()
        return "gpu" if reader.device == "gpu" else "pinned" if source.pinned else "cpu"
    return None


def use_images(data: Any, labels: Any, workload: Workload) -> Nodes:
    """The consumer that is timed: it looks at every sample, in the same way for every leg.

    DALI copies a raw output of external_source to make it contiguous, which no real pipeline
    requests. Therefore there is none; the labels are converted for the same reason. Images cannot
    be decoded from the memory of a GPU: there, every byte is added up, also of the legs that read
    into host memory.
    """
    settings = workload.settings
    labels = fn.cast(labels, dtype=types.INT64)
    if settings.mem == "gpu":
        return fn.reductions.sum(data.gpu()), labels
    if not settings.decode:
        return fn.peek_image_shape(data), labels
    device = "cpu" if settings.device_id is None else "mixed"
    return fn.decoders.image(data, device=device), labels


def describe_use(settings: Settings) -> str:
    """What `use_images()` does, for the report."""
    gpu = "" if settings.device_id is None else f" on GPU {settings.device_id}"
    if settings.mem == "gpu":
        return f"adding up the bytes{gpu}"
    return f"decoding{gpu}" if settings.decode else "reading the image headers"


def keep_bytes(data: Any, labels: Any, workload: Workload) -> Nodes:
    """The consumer of --verify: the bytes and the labels, unchanged."""
    return fn.copy(data), fn.copy(labels)


def read_files(reader: Callable[..., Any], workload: Workload, **options: Any) -> Nodes:
    """`fn.readers.file`, or `readers.file` of dali_storage."""
    if workload.settings.seed is not None:
        options |= {"random_shuffle": True, "seed": workload.settings.seed}
    data, labels = reader(file_root=workload.root, name="Reader", **options)
    return data, labels


def read_with_io_file(workload: Workload) -> Nodes:
    """`fn.io.file.read`: DALI's threads read paths, which are made before the clock starts."""
    names = [np.frombuffer(path, np.uint8) for path in paths(workload.catalog)]
    all_labels = np.asarray(workload.catalog.labels, np.int32)[:, np.newaxis]

    def batch(iteration: int) -> tuple[list[Array], Array]:
        samples = workload.batch(iteration)
        return [names[sample] for sample in samples.tolist()], all_labels[samples]

    source_paths, labels = fn.external_source(source=batch, num_outputs=2, batch=True)
    return fn.io.file.read(source_paths), labels


def naive_batches(
    workload: Workload, dtype: npt.DTypeLike = np.int32
) -> Iterator[tuple[list[Array], list[Array]]]:
    """The iterator that a user writes after reading the documentation of external_source.

    `dtype` is that of the labels.
    """
    names = list(paths(workload.catalog))
    all_labels = np.asarray(workload.catalog.labels, dtype)
    for iteration in itertools.count():
        files, labels = [], []
        for sample in workload.batch(iteration).tolist():
            with open(names[sample], "rb") as file:
                files.append(np.frombuffer(file.read(), np.uint8))
            labels.append(all_labels[sample : sample + 1])
        yield files, labels


def read_naively(workload: Workload, dtype: npt.DTypeLike = np.int32) -> Nodes:
    """`fn.external_source` with `naive_batches()`."""
    batches = naive_batches(workload, dtype)
    data, labels = fn.external_source(source=batches, num_outputs=2, batch=True)
    return data, labels
