"""Storage backends for NVIDIA DALI: `readers.file` is `fn.readers.file` with a choice of storage.

Import `readers` explicitly (`from dali_storage import readers`): it needs DALI, the rest does not.
"""

from typing import Any

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
from .ranks import shard
from .reading.prefetch import ReaderStatistics

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
    "Tree",
    "shard",
    "statistics",
]


def statistics(pipeline: Any, name: str) -> ReaderStatistics:
    """What a reader has delivered, and how long its pipeline waited for the storage.

    Args:
        pipeline: a `Pipeline` of DALI; it is built if it has not been.
        name: the name of a reader of `dali_storage.readers` in it.

    Returns:
        Batches, bytes, seconds of waiting, and how full the queue of batches read ahead was, since
        the pipeline began to read; all zeros before. For a part of the time, subtract an earlier
        result. DALI asks for batches ahead of the user.

    Raises:
        ValueError: the pipeline has no reader of this name made by `dali_storage.readers`.
    """
    from .dali import source  # the package can be imported without DALI

    return source(pipeline, name).statistics
