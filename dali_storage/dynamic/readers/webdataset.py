"""`Webdataset` in dynamic mode."""

from collections.abc import Sequence
from typing import Any, Unpack

import nvidia.dali.experimental.dynamic as ndd

from ...contract._types import PathLike
from ...readers.webdataset import webdataset
from ..reader import CommonArguments, DynamicReader, constructs


class Webdataset(DynamicReader, ndd.readers.Webdataset):  # type: ignore[misc]
    """`ndd.readers.Webdataset` with a choice of storage backend.

    `dali_storage.readers.webdataset` describes the arguments and errors, and `File` the common ones
    of all readers; `index_paths` is optional. An epoch gives tuples in the order of `ext`.
    """

    @constructs(webdataset)
    def __init__(
        self,
        max_batch_size: int | None = None,
        name: str | None = None,
        device: Any = "cpu",
        *,
        paths: PathLike | Sequence[PathLike],
        ext: str | bytes | Sequence[str | bytes],
        index_paths: PathLike | Sequence[PathLike] | None = None,
        case_sensitive_extensions: bool | None = True,
        dtypes: Any = None,
        missing_component_behavior: str | None = "",
        shuffle: str = "dali",
        enable_checkpointing: bool = False,
        **given: Unpack[CommonArguments],
    ) -> None:
        """See `File`; for the arguments see `dali_storage.readers.webdataset`."""
