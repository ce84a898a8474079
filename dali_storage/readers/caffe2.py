"""`readers.caffe2`: tensors of Caffe2's LMDB files."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.options import dali_flag, dali_integer
from ..dali import DataNode, add_reader
from ..formats.caffe.tensors import TensorProtos
from ..reading.opening import Opening
from .arguments import DaliArguments, complete, in_graph, takes_arguments
from .containers import on_cpu
from .lmdb import prepare_values

_SINGLE, _DENSE, _NO_LABEL = 0, 2, 4


@takes_arguments()
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
) -> DataNode | tuple[DataNode, ...]:
    """`fn.readers.caffe2` with a choice of how the bytes are read.

    Samples, order, shards and epochs are the same. New are `index_path` and `shuffle`; these, and
    what else is not described here, are as in `readers.lmdb`.

    Args:
        path: databases whose values are each a `TensorProtos` of Caffe2, which has a tensor for
            each output, in their order, and no more.
        image_available: whether the first tensor is an image.
        label_type: 0: a label is one number. 2: all numbers of a tensor. 4: there are no labels.
            1 and 3 (sparse labels) are refused: in DALI, they fail with every record.
        num_labels: ignored; only sparse labels would need it.
        additional_inputs: how many tensors of numbers follow the label, up to 1,000.
        bbox: whether the last tensor is a bounding box, of 4 integers.
        device: "cpu" or None.

    Returns:
        Those of these nodes that there are, in this order, the only one as it is; with
        return_index, the index (int64, shape (1,)) comes last.

        * images: uint8, in host memory that DALI shares: (bytes,) of a tensor of type STRING, which
          is encoded; or (height, width, channels) of type BYTE.
        * labels: int32 or float32, as in the record; shape (1,), or (n,) with label_type 2.
        * additional inputs: int32, int64 or float32, shape (n,).
        * bounding boxes: int32, shape (4,).

    Raises:
        RecordError: while the pipeline runs: a value is no TensorProtos, has more or fewer tensors
            than outputs, or one of them is of another type or size. `filename` is the path of the
            file; the message names the record. All that `readers.lmdb` raises may be raised as
            well.
    """
    arguments = complete(caffe2, given, locals())
    nodes = add_reader(opening=prepare_caffe2(arguments), **in_graph(arguments))
    return nodes if len(nodes) > 1 else nodes[0]


def prepare_caffe2(arguments: Mapping[str, Any]) -> Opening:
    """What `caffe2` opens, from its arguments by name; others are ignored."""
    on_cpu(arguments["device"], "records are parsed on the CPU")
    names = "label_type", "additional_inputs", "num_labels"
    given = {name: arguments[name] for name in names if arguments[name] is not None}
    numbers = {name: dali_integer(name, value, bits=32) for name, value in given.items()}
    kind, more = numbers.get("label_type", _SINGLE), numbers.get("additional_inputs", 0)
    if kind not in (_SINGLE, _DENSE, _NO_LABEL):
        raise ValueError(f"label_type must be 0, 2 or 4 (no sparse labels), not {kind}")
    if not 0 <= more <= 1000:  # the graph of so many takes a second
        raise ValueError(f"additional_inputs must be from 0 to 1000, not {more}")
    image = dali_flag("image_available", arguments["image_available"], default=True)
    box = dali_flag("bbox", arguments["bbox"])
    fmt = TensorProtos(image, kind != _NO_LABEL, kind == _SINGLE, more, box)
    if not fmt.outputs:
        what = "there is no image, no label, no additional input and no bounding box"
        raise ValueError(f"image_available must be True: {what}")
    return prepare_values(arguments, fmt)
