"""Storage backends for NVIDIA DALI: `readers.file` is `fn.readers.file` with a choice of storage.

Import `readers` explicitly (`from dali_storage import readers`): it needs DALI, the rest does not.
"""

from ._types import Buffer, IntArray
from .catalog import Catalog
from .errors import BackendUnavailable, SampleChangedError, SampleSizeChanged
from .reader import Batch, Reader

__all__ = [
    "BackendUnavailable",
    "Batch",
    "Buffer",
    "Catalog",
    "IntArray",
    "Reader",
    "SampleChangedError",
    "SampleSizeChanged",
]
