"""Drop-in readers for DALI's dynamic mode, in place of `ndd.readers`; see `DynamicReader`."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import nvidia.dali.experimental.dynamic as ndd

from ..contract._types import PathLike
from ..readers.arguments import IgnoredArguments, ReadingArguments
from ..readers.coco import AnnotationArguments, coco
from ..readers.files import SampleArguments, file
from ..readers.npy import ArrayArguments, numpy
from ..readers.tfrecord import tfrecord
from ..readers.webdataset import webdataset
from .reader import DynamicReader, constructs

__all__ = ["COCO", "File", "Numpy", "TFRecord", "Webdataset"]


class _Arguments(ReadingArguments, IgnoredArguments, total=False):
    """The common arguments of all readers of dynamic mode."""


class _CocoArguments(AnnotationArguments, _Arguments, total=False):
    """Arguments of both `COCO` and `readers.coco`."""


class _FileArguments(SampleArguments, _Arguments, total=False):
    """Arguments of both `File` and `readers.file`."""


class _NumpyArguments(ArrayArguments, _Arguments, total=False):
    """Arguments of both `Numpy` and `readers.numpy`."""


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
        **given: Unpack[_Arguments],
    ) -> None:
        """See `File`; for the arguments see `dali_storage.readers.tfrecord`."""


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
        **given: Unpack[_Arguments],
    ) -> None:
        """See `File`; for the arguments see `dali_storage.readers.webdataset`."""
