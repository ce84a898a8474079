"""Drop-in readers for DALI's dynamic mode, in place of `ndd.readers`; see `DynamicReader`.

This module holds names: a reader, and what it needs, is imported when it is first used.
"""

from typing import TYPE_CHECKING

from ...contract.faces import hold_names

if TYPE_CHECKING:
    from .coco import COCO
    from .files import File
    from .npy import Numpy
    from .tfrecord import TFRecord
    from .webdataset import Webdataset

__all__ = ["COCO", "File", "Numpy", "TFRecord", "Webdataset"]

hold_names(
    __name__,
    {name: f".{name.lower()}" for name in __all__} | {"File": ".files", "Numpy": ".npy"},
)
