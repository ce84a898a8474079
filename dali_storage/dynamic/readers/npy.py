"""`Numpy` in dynamic mode."""

from typing import Any, Unpack

import nvidia.dali.experimental.dynamic as ndd

from ...readers.npy import ArrayArguments, numpy
from ..reader import CommonArguments, DynamicReader, constructs


class _NumpyArguments(ArrayArguments, CommonArguments, total=False):
    """Arguments of both `Numpy` and `readers.numpy`."""


class Numpy(DynamicReader, ndd.readers.Numpy):  # type: ignore[misc]
    """`ndd.readers.Numpy` with a choice of storage backend.

    `dali_storage.readers.numpy` describes the arguments and errors, and `File` the common ones of
    all readers. An epoch gives tuples of one array, or of one batch of arrays. The constructor gets
    the region (`roi_start`, `rel_roi_end` and so on) as numbers, arrays or tensors in host memory.
    As in DALI, fractions are rounded in arrays and tensors, and truncated in lists. An array of one
    number is for all axes, too. A call refuses regions, because files are read ahead.
    """

    @constructs(numpy)
    def __init__(
        self,
        max_batch_size: int | None = None,
        name: str | None = None,
        device: Any = "cpu",
        *,
        enable_checkpointing: bool = False,
        **given: Unpack[_NumpyArguments],
    ) -> None:
        """See `File`; for the arguments see `dali_storage.readers.numpy`."""

    def _pre_call(self, *inputs: Any, **regions: Any) -> None:
        """Refuse regions; DALI passes the arguments of a call of the reader."""
        for name in (name for name, value in regions.items() if value is not None):
            what = f"{name} must be given to the constructor of Numpy, not to a call"
            raise TypeError(f"{what}, because files are read ahead; or slice batches by ndd.slice")
        super()._pre_call()
