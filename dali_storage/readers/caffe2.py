"""`readers.caffe2`: tensors of Caffe2's LMDB files."""

from collections.abc import Sequence
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.options import dali_flag, dali_integer
from ..formats.caffe.tensors import TensorProtos
from .arguments import DaliArguments, DataNode, Prepared, makes_reader
from .containers import on_cpu, one_or_all
from .lmdb import prepare_values
from .plugs import Common

_SINGLE, _DENSE, _NO_LABEL = 0, 2, 4


@makes_reader(samples=["path", "index_path"])
def caffe2(
    *,
    path: PathLike | Sequence[PathLike],
    image_available: bool = True,
    label_type: int = 0,
    num_labels: int = 1,
    additional_inputs: int = 0,
    bbox: bool = False,
    index_path: PathLike | Sequence[PathLike] | None = None,
    shuffle: str = "dali",
    **given: Unpack[DaliArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """`fn.readers.caffe2` with a choice of storage backend.

    Samples, order, shards and epochs are the same. New are `index_path`, `shuffle`,
    `shuffle_after_epoch`, and the new arguments of `readers.file` except `exclude` and
    `device="gpu"`. For these and all other arguments see `readers.lmdb`.

    Args:
        path: databases of Caffe2; each value is a `TensorProtos` with exactly one tensor for each
            output, in the order of the outputs.
        image_available: the first tensor is an image.
        label_type: 0: a label is one number. 2: all numbers of a tensor. 4: there are no labels.
            1 and 3 (sparse labels) are refused: DALI fails with them on the records of Caffe2.
        num_labels: ignored; only needed for sparse labels.
        additional_inputs: number of tensors of numbers after the label, up to 1,000.
        bbox: the last tensor is a bounding box, of 4 integers.
        device: "cpu" or None.

    Returns:
        The nodes of the outputs in this order, or a single node; with return_index, the index
        (int64, shape (1,)) comes last.

        * images: uint8, in host memory shared with DALI: (bytes,), encoded, of a tensor of type
          STRING; or (height, width, channels) of type BYTE.
        * labels: int32 or float32, as in the record; shape (1,), or (n,) with label_type 2.
        * additional inputs: int32, int64 or float32, shape (n,).
        * bounding boxes: int32, shape (4,).

    Raises:
        RecordError: the running pipeline found a value that is not a TensorProtos, has more or
            fewer tensors than outputs, or has a tensor of another type or size. `filename` is the
            path of the file; the message names the record.
        Exception: any error of `readers.lmdb`.
    """
    common = Common(**given)
    on_cpu(common.device, "records are parsed on the CPU")
    kind = _integer("label_type", label_type, _SINGLE)
    more = _integer("additional_inputs", additional_inputs, 0)
    _integer("num_labels", num_labels, 1)
    if kind not in (_SINGLE, _DENSE, _NO_LABEL):
        raise ValueError(f"label_type must be 0, 2 or 4 (no sparse labels), not {kind}")
    if not 0 <= more <= 1000:  # a graph of this size costs a second
        raise ValueError(f"additional_inputs must be from 0 to 1000, not {more}")
    image = dali_flag("image_available", image_available, default=True)
    fmt = TensorProtos(image, kind != _NO_LABEL, kind == _SINGLE, more, dali_flag("bbox", bbox))
    if not fmt.outputs:
        what = "there is no image, no label, no additional input and no bounding box"
        raise ValueError(f"image_available must be True: {what}")
    found = prepare_values(common, fmt, path, index_path, shuffle=shuffle)
    return found.returning(one_or_all)


def _integer(name: str, value: Any, default: int) -> int:
    return default if value is None else dali_integer(name, value, bits=32)
