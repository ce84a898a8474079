"""DALI pipelines: how the legs read, and the operators that consume the samples."""

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, tfrecord, types

from dali_storage import StageTimes
from dali_storage.contract.errors import NotMapped
from dali_storage.dali.group import readers_of
from dali_storage.observing.statistics import figures
from dali_storage.reading.lanes import copying_lanes

from .workload import Settings, Workload, paths, rows

Array: TypeAlias = npt.NDArray[Any]
Nodes: TypeAlias = tuple[Any, Any]
"""DALI's data nodes of the encoded files and of the labels."""


@dataclass(slots=True)
class Stream:
    """The batches of a leg.

    Attributes:
        batches: to be iterated once; starts to work then.
        pipe: the pipeline.
    """

    batches: Iterable[Any]
    pipe: Pipeline


Build: TypeAlias = Callable[[Workload, bool], AbstractContextManager[Stream]]
"""Opens the stream of a workload: of exact samples, to be verified, or as they are timed."""


def reading(read: Callable[[Workload], Nodes]) -> Build:
    """Pipelines of operators that `read` makes. Their samples are consumed, or kept if exact."""

    @contextmanager
    def build(workload: Workload, exact: bool) -> Iterator[Stream]:
        settings = workload.settings
        pipe = Pipeline(
            batch_size=settings.batch_size,
            num_threads=settings.threads,
            device_id=settings.device_id,
            prefetch_queue_depth=settings.prefetch,
        )
        with pipe:
            data, labels = read(workload)
            if exact:
                pipe.set_outputs(fn.copy(data), fn.copy(labels))
            else:
                pipe.set_outputs(*_use_images(data, labels, settings))
        pipe.build()
        with warnings.catch_warnings():
            if exact:  # a copy takes them, and no decoder
                warnings.simplefilter("ignore", NotMapped)
            yield Stream(_outputs(pipe), pipe)

    return build


def _outputs(pipe: Pipeline) -> Iterator[Any]:
    """The outputs of one run after another."""
    while True:
        yield pipe.run()


def buffers_of(pipe: Pipeline) -> tuple[tuple[int, int], str, str | None] | None:
    """Lanes that may copy at once, and all; where the buffers are; what asks for objects.

    None without dali_storage.
    """
    for group in readers_of(pipe).values():
        source = group.source(pipe)
        reader = source.open().reader
        lanes = copying_lanes(reader), reader.lanes
        return lanes, source.memory.kind, getattr(reader, "transport", None)
    return None


def _use_images(data: Any, labels: Any, settings: Settings) -> Nodes:
    """The consumer that is timed: it looks at every sample, in the same way for every leg.

    DALI copies a raw output of external_source to make it contiguous, which no real pipeline
    requests. Therefore there is none; the labels are converted for the same reason. Images cannot
    be decoded from the memory of a GPU: there, every byte is added up, also of the legs that read
    into host memory.
    """
    if settings.mem == "gpu":
        used = fn.reductions.sum(data.gpu())
    elif settings.decode:
        device = "cpu" if settings.device_id is None else "mixed"
        used = fn.decoders.image(data, device=device)
    else:
        used = fn.peek_image_shape(data)
    return used, fn.cast(labels, dtype=types.INT64)


def describe_use(settings: Settings) -> str:
    """How the samples are consumed, for the report."""
    gpu = "" if settings.device_id is None else f" on GPU {settings.device_id}"
    if settings.mem == "gpu":
        return f"read, not decoded; bytes added up{gpu}"
    return f"decoded{gpu or ' on the CPU'}" if settings.decode else "read, not decoded"


def times_of(pipe: Pipeline) -> Mapping[str, StageTimes]:
    """How long the stages of its reader took; empty without dali_storage."""
    for group in readers_of(pipe).values():
        return figures(group.source(pipe).observer).times
    return {}


def _webdataset(workload: Workload) -> dict[str, Any]:
    its = workload.shards["webdataset"]
    return {
        "paths": its.files,
        "index_paths": its.indexes,
        "ext": ["jpg", "cls"],
        "dtypes": [types.UINT8, types.INT32],
        "missing_component_behavior": "error",
    }


def _tfrecord(workload: Workload) -> dict[str, Any]:
    its = workload.shards["tfrecord"]
    features = {
        "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }
    return {"path": its.files, "index_path": its.indexes, "features": features}


def _records(workload: Workload) -> dict[str, Any]:
    """The images in the tars. Their labels are given."""
    its = workload.shards["webdataset"]
    places = np.array([row[1:3] for index in its.indexes for row in rows(index)], np.int64)
    return {
        "files": its.files,
        "offsets": places[:, 0],
        "sizes": places[:, 1],
        "file_ids": np.repeat(np.arange(len(its.files)), its.counts),
        "labels": workload.catalog.labels,
    }


ARGUMENTS: Mapping[str, Callable[[Workload], dict[str, Any]]] = {
    "file": lambda workload: {"file_root": workload.root},
    "webdataset": _webdataset,
    "tfrecord": _tfrecord,
    "records": _records,
}
"""The arguments of readers that say which samples there are, by the names of the readers."""


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
    names = paths(workload.catalog)
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
