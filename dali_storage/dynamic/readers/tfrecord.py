"""`TFRecord` in dynamic mode."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import nvidia.dali.experimental.dynamic as ndd

from ...contract._types import PathLike
from ...readers.tfrecord import tfrecord
from ..reader import CommonArguments, DynamicReader, constructs


class TFRecord(DynamicReader, ndd.readers.TFRecord):  # type: ignore[misc]
    """`ndd.readers.TFRecord` with a choice of storage backend.

    `dali_storage.readers.tfrecord` describes the arguments and errors, and `File` the common ones
    of all readers; `index_path` is optional. An epoch gives dictionaries by the names in
    `features`. As in DALI, a call also gives a dictionary, or the batch itself if there is only one
    feature.
    """

    @constructs(tfrecord)
    def __init__(
        self,
        max_batch_size: int | None = None,
        name: str | None = None,
        device: Any = "cpu",
        *,
        path: PathLike | Sequence[PathLike],
        features: Mapping[str, Any],
        index_path: PathLike | Sequence[PathLike] | None = None,
        use_o_direct: bool | None = None,
        shuffle: str = "dali",
        verify: bool = False,
        enable_checkpointing: bool = False,
        **given: Unpack[CommonArguments],
    ) -> None:
        """See `File`; for the arguments see `dali_storage.readers.tfrecord`."""
