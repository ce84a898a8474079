"""`File` in dynamic mode."""

from typing import Any, Unpack

import nvidia.dali.experimental.dynamic as ndd

from ...readers.files import SampleArguments, file
from ..reader import CommonArguments, DynamicReader, constructs


class _FileArguments(SampleArguments, CommonArguments, total=False):
    """Arguments of both `File` and `readers.file`."""


class File(DynamicReader, ndd.readers.File):  # type: ignore[misc]  # DALI has no types
    """`ndd.readers.File` with a choice of storage backend.

    The arguments are the same, and so are samples, labels, order, shards and epochs, bit for bit;
    only `backend`, `backend_options`, `source_info` and `stall_after` are new, see
    `dali_storage.readers.file`. As there, bad arguments are refused at once, and missing files
    raise `FileNotFoundError`. `ndd.get_property(data, key="source_info")` needs source_info=True:
    there is no graph that shows who asks.

        reader = File(file_root=root, random_shuffle=True, backend="block", backend_options={...})
        for data, labels in reader.next_epoch(batch_size=64, capture=True):
            images = ndd.decoders.image(data, device="gpu")

    `DynamicReader` describes the methods, and the closing of a reader.
    """

    @constructs(file)
    def __init__(
        self,
        max_batch_size: int | None = None,
        name: str | None = None,
        device: Any = "cpu",
        *,
        enable_checkpointing: bool = False,
        **given: Unpack[_FileArguments],
    ) -> None:
        """Open nothing yet; the samples are found by the first batch or `get_metadata()`.

        Args:
            max_batch_size: the batch size for `next_epoch()`; by default set by its first call.
            name: the name in error messages.
            device: must be "cpu"; `data.gpu()` copies a batch.
            seed: as in DALI, -1 by default, a seed like any other.
            enable_checkpointing: enables `get_state()`. As in DALI, True changes the order of
                `shuffle_after_epoch`.

        Raises:
            ValueError, TypeError: an argument is wrong; the message has its name and value.
        """
