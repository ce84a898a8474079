"""The legs of the command `containers`: the pictures in tars and TFRecord files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from nvidia.dali import fn, tfrecord, types

from dali_storage import readers

from .legs import LEGS, Backend, Leg
from .pipelines import Nodes, build, read_naively, use_images
from .shards import SUFFIXES, find, rows
from .workload import BadInputError, Workload, order_of, summarize_error

_BACKENDS = {
    "python-file": "",
    "python-file-direct": "-direct",
    "block": "-block",
    "memory": "-memory",
}
"""What the names of our legs end with, by the leg that reads files by the same backend."""
_MODES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "webdataset": {"": {}, "-nommap": {"dont_use_mmap": True}},
    "tfrecord": {
        "": {},
        "-nommap": {"dont_use_mmap": True},
        "-direct": {"dont_use_mmap": True, "use_o_direct": True},
    },
}
"""The ways in which DALI reads: arguments by what the names of its legs end with."""


@dataclass(frozen=True, slots=True)
class ContainerLeg(Leg):
    """A leg that reads containers. It is verified against the files that were packed.

    Attributes:
        by_container: it shuffles as DALI's readers of containers do, within a window; otherwise as
            `readers.file`, the whole data set.
        form: the format of its containers.
    """

    form: str = ""
    by_container: bool = True

    def unsupported_reason(self, workload: Workload) -> str | None:
        """Why the leg cannot run here, or None."""
        if workload.settings.seed is None and self.name.endswith("-samples"):
            return "without --seed nothing is shuffled"
        return self.unsupported(workload)

    def ordered(self, workload: Workload) -> Workload:
        """The workload in the order in which the leg reads it."""
        counts = workload.shards[self.form].counts if self.by_container else None
        order = order_of(len(workload.catalog), workload.settings, counts)
        return replace(workload, order=order)

    def check(self, workload: Workload) -> None:
        """Open the backend once, for its errors."""
        build(self.read, workload, use_images)

    def truth(self, workload: Workload) -> Nodes:
        """The files that were packed."""
        return read_naively(workload, np.int64 if self.form == "tfrecord" else np.int32)

    @property
    def expected(self) -> str:
        """What the leg is verified against, for messages."""
        return "the files"


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


def _read_webdataset(reader: Callable[..., Any], workload: Workload, **options: Any) -> Nodes:
    its = workload.shards["webdataset"]
    data, labels = reader(
        paths=its.files,
        index_paths=its.indexes,
        ext=["jpg", "cls"],
        dtypes=[types.UINT8, types.INT32],
        missing_component_behavior="error",
        **options,
    )
    return data, labels


def _read_tfrecord(reader: Callable[..., Any], workload: Workload, **options: Any) -> Nodes:
    its = workload.shards["tfrecord"]
    image, label = "image/encoded", "image/class/label"
    features = {
        image: tfrecord.FixedLenFeature((), tfrecord.string, ""),
        label: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }
    nodes = reader(path=its.files, index_path=its.indexes, features=features, **options)
    return nodes[image], nodes[label]


def _read_records(reader: Callable[..., Any], workload: Workload, **options: Any) -> Nodes:
    """The images in the tars. Their labels are given."""
    its = workload.shards["webdataset"]
    places = np.array([row[1:3] for index in its.indexes for row in rows(index)], np.int64)
    data, labels = reader(
        files=its.files,
        offsets=places[:, 0],
        sizes=places[:, 1],
        file_ids=np.repeat(np.arange(len(its.files)), its.counts),
        labels=workload.catalog.labels,
        **options,
    )
    return data, labels


_READ = {"webdataset": _read_webdataset, "tfrecord": _read_tfrecord, "records": _read_records}


def _read(
    operator: str,
    library: Any,
    options: Mapping[str, Any],
    backend: Backend | None,
    workload: Workload,
) -> Nodes:
    """A reader of DALI or of dali_storage, with the seed of the workload."""
    given = dict(options) | ({} if backend is None else backend.arguments(workload))
    if workload.settings.seed is not None:
        given |= {"random_shuffle": True, "seed": workload.settings.seed}
    return _READ[operator](getattr(library, operator), workload, name="Reader", **given)


def _legs_of_dali(operator: str) -> list[ContainerLeg]:
    modes = _MODES[operator]
    return [
        ContainerLeg(
            f"dali-{operator}{end}",
            f"fn.readers.{operator} {' '.join(options)}",
            partial(_read, operator, fn.readers, options, None),
            baselines=_baselines(operator),
            form=operator,
        )
        for end, options in modes.items()
    ]


def _legs_of_ours(operator: str, ending: str, **options: Any) -> list[ContainerLeg]:
    form = "webdataset" if operator == "records" else operator
    return [
        ContainerLeg(
            f"{operator}{_BACKENDS[leg.name]}{ending}",
            f"readers.{operator} by {leg.summary}",
            partial(_read, operator, readers, options, leg.backend),
            leg.unsupported,
            leg.backend,
            _baselines(form),
            form,
            not ending and operator in _MODES,
        )
        for leg in LEGS
        if leg.name in _BACKENDS and not (leg.name == "memory" and ending)
    ]


def _baselines(form: str) -> tuple[str, ...]:
    return tuple(f"dali-{form}{end}" for end in _MODES[form])


CONTAINER_LEGS = (
    *(
        leg
        for form in SUFFIXES
        for leg in (
            *_legs_of_dali(form),
            *_legs_of_ours(form, ""),
            *_legs_of_ours(form, "-samples", shuffle="samples"),
        )
    ),
    *_legs_of_ours("records", ""),
)
"""Names that end with -samples: the whole data set is shuffled, not a window of it."""
BASELINES = {form: _baselines(form) for form in SUFFIXES}
"""The other legs of a format are compared with the fastest of these."""
