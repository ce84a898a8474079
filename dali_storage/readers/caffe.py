"""`readers.caffe`: images and labels of Caffe's LMDB files."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..contract.options import dali_flag
from ..formats.caffe.datum import Datum
from .arguments import DaliArguments, DataNode, Prepared, makes_reader
from .containers import on_cpu, one_or_all
from .lmdb import prepare_values
from .plugs import Common


@makes_reader(samples=["path", "index_path"])
def caffe(
    *,
    path: PathLike | Sequence[PathLike],
    image_available: bool = True,
    label_available: bool = True,
    index_path: PathLike | Sequence[PathLike] | None = None,
    shuffle: str = "dali",
    **given: Unpack[DaliArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """`fn.readers.caffe` with a choice of storage backend.

    Samples, order, shards and epochs are the same. New are `index_path`, `shuffle`,
    `shuffle_after_epoch`, and the new arguments of `readers.file` except `exclude` and
    `device="gpu"`. For these and all other arguments see `readers.lmdb`.

    Args:
        path: databases of Caffe; each value is a `Datum`.
        image_available: return the images.
        label_available: return the labels. At least one of the two must be True.
        device: "cpu" or None.

    Returns:
        `(images, labels)` or a single node for the only requested output; with return_index, the
        index (int64, shape (1,)) comes last.

        * images: uint8, in host memory shared with DALI: (bytes,), encoded; or, depending on the
          Datum, (height, width, channels), with the bytes in Caffe's order, as in DALI.
        * labels: int32, shape (1,).

    Raises:
        RecordError: the running pipeline found a value that is not a Datum, lacks a requested
            field, or whose bytes do not fill height, width and channels; or some images are encoded
            and some not. `filename` is the path of the file; the message names the record.
        Exception: any error of `readers.lmdb`.
    """
    common = Common(**given)
    on_cpu(common.device, "records are parsed on the CPU")
    image = dali_flag("image_available", image_available, default=True)
    label = dali_flag("label_available", label_available, default=True)
    if not image and not label:
        raise ValueError("image_available or label_available must be True: no output is left")
    found = prepare_values(common, Datum(image, label), path, index_path, shuffle=shuffle)
    return found.returning(one_or_all)
