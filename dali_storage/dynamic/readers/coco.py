"""`COCO` in dynamic mode."""

from typing import Any, Unpack

import nvidia.dali.experimental.dynamic as ndd

from ...readers.coco import AnnotationArguments, coco
from ..reader import CommonArguments, DynamicReader, constructs


class _CocoArguments(AnnotationArguments, CommonArguments, total=False):
    """Arguments of both `COCO` and `readers.coco`."""


class COCO(DynamicReader, ndd.readers.COCO):  # type: ignore[misc]  # DALI has no types
    """`ndd.readers.COCO` with a choice of storage backend.

    `dali_storage.readers.coco` describes the arguments, outputs and errors, and `File` the common
    ones of all readers. An epoch gives tuples.
    """

    @constructs(coco)
    def __init__(
        self,
        max_batch_size: int | None = None,
        name: str | None = None,
        device: Any = "cpu",
        *,
        enable_checkpointing: bool = False,
        **given: Unpack[_CocoArguments],
    ) -> None:
        """See `File`; for the arguments see `dali_storage.readers.coco`."""
