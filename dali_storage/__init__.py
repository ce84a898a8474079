"""Storage backends for NVIDIA DALI: `readers.file` is `fn.readers.file` with a choice of storage.

Import `readers` explicitly (`from dali_storage import readers`): it needs DALI, the rest does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .contract.faces import hold_names

if TYPE_CHECKING:
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
    from .contract.objects import SCHEMES
    from .contract.ranges import Ranges, Spans
    from .contract.reader import Batch, Reader
    from .contract.remote import Listing, Remote
    from .dali.queries import statistics
    from .observing.signals import report, report_on
    from .observing.statistics import ReaderStatistics, StageTimes, metrics
    from .ops.swapping import patch
    from .ranks import shard
    from .runtime.version import __version__ as __version__

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

hold_names(
    __name__,
    {
        ".contract._types": "Buffer IntArray",
        ".contract.catalog": "Catalog Tree",
        ".contract.devices": "DeviceStatus",
        ".contract.errors": "BackendUnavailable ContainerChangedError ObjectReplacedError"
        " RecordError SampleChangedError SampleSizeChanged",
        ".contract.format": "Format Output",
        ".contract.objects": "SCHEMES",
        ".contract.ranges": "Ranges Spans",
        ".contract.reader": "Batch Reader",
        ".contract.remote": "Listing Remote",
        ".observing.signals": "report report_on",
        ".observing.statistics": "ReaderStatistics StageTimes metrics",
        ".dali.queries": "statistics",
        ".ops.swapping": "patch",
        ".ranks": "shard",
        ".runtime.version": "__version__",
    },
)
