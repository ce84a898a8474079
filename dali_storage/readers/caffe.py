"""`readers.caffe`: images and labels of Caffe's LMDB files."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.options import dali_flag
from ..dali import DataNode, add_reader
from ..formats.caffe.datum import Datum
from ..reading.opening import Opening
from .arguments import DaliArguments, complete, in_graph, takes_arguments
from .containers import on_cpu
from .lmdb import prepare_values


@takes_arguments()
def caffe(
    *,
    path: PathLike | Sequence[PathLike],
    image_available: bool = True,
    label_available: bool = True,
    index_path: PathLike | Sequence[PathLike] | None = None,
    shuffle: str = "dali",
    **given: Unpack[DaliArguments],
) -> DataNode | tuple[DataNode, ...]:
    """`fn.readers.caffe` with a choice of how the bytes are read.

    Samples, order, shards and epochs are the same. New are `index_path` and `shuffle`; these, and
    what else is not described here, are as in `readers.lmdb`.

    Args:
        path: databases whose values are each a `Datum` of Caffe.
        image_available: whether images are wanted.
        label_available: whether labels are wanted. At least one of the two is.
        device: "cpu" or None.

    Returns:
        `(images, labels)` or those of them that are wanted, the only one as a node; with
        return_index, the index (int64, shape (1,)) comes last.

        * images: uint8, in host memory that DALI shares: (bytes,), encoded; or, if the Datum says
          so, (height, width, channels), with the bytes in Caffe's order, as in DALI.
        * labels: int32, shape (1,).

    Raises:
        RecordError: while the pipeline runs: a value is no Datum, lacks what is wanted, its bytes
            do not fill height, width and channels, or some images are encoded and some not.
            `filename` is the path of the file; the message names the record. All that
            `readers.lmdb` raises may be raised as well.
    """
    arguments = complete(caffe, given, locals())
    nodes = add_reader(opening=prepare_caffe(arguments), **in_graph(arguments))
    return nodes if len(nodes) > 1 else nodes[0]


def prepare_caffe(arguments: Mapping[str, Any]) -> Opening:
    """What `caffe` opens, from its arguments by name; others are ignored."""
    on_cpu(arguments["device"], "records are parsed on the CPU")
    names = "image_available", "label_available"
    image, label = (dali_flag(name, arguments[name], default=True) for name in names)
    if not image and not label:
        raise ValueError("image_available or label_available must be True: nothing is wanted")
    return prepare_values(arguments, Datum(image, label))
