"""Storage backends for NVIDIA DALI: `readers.file` is `fn.readers.file` with a choice of storage.

Import `readers` explicitly (`from dali_storage import readers`): it needs DALI, the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .contract.faces import hold_names
from .runtime import version as _version

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

    from .contract._types import Buffer, IntArray
    from .contract.catalog import Catalog, Tree
    from .contract.devices import DeviceStatus
    from .contract.errors import (
        BackendUnavailable,
        ContainerChangedError,
        ObjectReplacedError,
        RecordError,
        SampleChangedError,
        SampleSizeChanged,
    )
    from .contract.format import Format, Output
    from .contract.objects import SCHEMES, Listing, Remote
    from .contract.ranges import Ranges, Spans
    from .contract.reader import Batch, Reader
    from .observing.signals import report, report_on
    from .observing.statistics import ReaderStatistics, StageTimes
    from .ranks import shard
    from .readers.arguments import DaliArguments

__all__ = [
    "SCHEMES",
    "BackendUnavailable",
    "Batch",
    "Buffer",
    "Catalog",
    "ContainerChangedError",
    "DeviceStatus",
    "Format",
    "IntArray",
    "Listing",
    "ObjectReplacedError",
    "Output",
    "Ranges",
    "Reader",
    "ReaderStatistics",
    "RecordError",
    "Remote",
    "SampleChangedError",
    "SampleSizeChanged",
    "Spans",
    "StageTimes",
    "Tree",
    "metrics",
    "patch",
    "report",
    "report_on",
    "shard",
    "statistics",
]

__version__ = _version.VERSION


def statistics(pipeline: Any, name: str) -> ReaderStatistics:
    """Return what a reader has delivered, and how long each stage took.

    Args:
        pipeline: a `Pipeline` of DALI, built if necessary.
        name: the name of a reader of `dali_storage.readers` in it.

    Returns:
        Batches, bytes, seconds of waiting, the average fill of the queue of batches read ahead, the
        percentiles of each stage and the slowest batches, since the pipeline began to read or since
        `reset()` of the result; all zeros before. DALI asks for batches ahead of the user.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    from .dali import source  # the package can be imported without DALI
    from .observing.observer import observed

    return observed(source(pipeline, name).observer).statistics


def metrics() -> dict[str, float]:
    """Return the figures of all open readers of this process, for TensorBoard, W&B and MLflow.

    Returns:
        Numbers by names such as "dali_storage/Reader/waiting_p99_seconds". Readers of the same name
        are numbered, as in "Reader-2".
    """
    from .observing.statistics import metrics

    return metrics()


def patch(**arguments: Unpack[DaliArguments]) -> _GeneratorContextManager[None]:
    """Use our readers in code you cannot edit, as a context manager or a decorator.

    Replaces the readers of `nvidia.dali.fn.readers` and `nvidia.dali.ops.readers`, in the whole
    process, until the block ends; blocks may be nested or overlap. As a decorator, `patch()`
    goes above `@pipeline_def`. Not replaced: names imported before (`from nvidia.dali.fn.readers
    import file`), the deprecated `fn.file_reader` and the like, and the readers of dynamic mode.

    The arguments are those of all readers, such as `backend`, see `readers.file`: defaults for the
    calls in the block, which may override them. `backend_options` are the options of `backend`, by
    default python-file.

    Raises:
        TypeError: not an argument of all readers. The readers refuse wrong values.
    """
    from .ops import swapped  # the package can be imported without DALI
    from .readers.arguments import DaliArguments, refuse_unknown

    refuse_unknown("patch", arguments, DaliArguments.__annotations__)
    return swapped(arguments)


hold_names(
    __name__,
    {
        name: module
        for module, names in {
            ".contract._types": ("Buffer", "IntArray"),
            ".contract.catalog": ("Catalog", "Tree"),
            ".contract.devices": ("DeviceStatus",),
            ".contract.errors": (
                "BackendUnavailable",
                "ContainerChangedError",
                "ObjectReplacedError",
                "RecordError",
                "SampleChangedError",
                "SampleSizeChanged",
            ),
            ".contract.format": ("Format", "Output"),
            ".contract.objects": ("SCHEMES", "Listing", "Remote"),
            ".contract.ranges": ("Ranges", "Spans"),
            ".contract.reader": ("Batch", "Reader"),
            ".observing.signals": ("report", "report_on"),
            ".observing.statistics": ("ReaderStatistics", "StageTimes"),
            ".ranks": ("shard",),
        }.items()
        for name in names
    },
)
