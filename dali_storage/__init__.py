"""Storage backends for NVIDIA DALI: `readers.file` is `fn.readers.file` with a choice of storage.

Import `readers` explicitly (`from dali_storage import readers`): it needs DALI, the rest does not.
"""

from typing import Any

from ._types import Buffer, IntArray
from .catalog import Catalog
from .errors import BackendUnavailable, SampleChangedError, SampleSizeChanged
from .prefetch import ReaderStatistics
from .reader import Batch, Reader

__all__ = [
    "BackendUnavailable",
    "Batch",
    "Buffer",
    "Catalog",
    "IntArray",
    "Reader",
    "ReaderStatistics",
    "SampleChangedError",
    "SampleSizeChanged",
    "statistics",
]


def statistics(pipeline: Any, name: str) -> ReaderStatistics:
    """Whether the storage keeps up with a pipeline: counts since it began to read.

    Args:
        pipeline: a `Pipeline` of DALI; it is built if it has not been.
        name: the name of a `readers.file` in it.

    Returns:
        All zeros before the pipeline asked for its first batch. It asks ahead of the user. For a
        part of the time, subtract an earlier result.

    Raises:
        ValueError: the pipeline has no reader of this name made by `readers.file`.
    """
    from .dali import source  # the package can be imported without DALI

    return source(pipeline, name).statistics
