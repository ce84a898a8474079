"""`readers.litdata`: the leaves of samples in chunks of litData."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..formats.files import Files
from ..formats.shards.litdata import parse
from ..formats.shards.records import ShardColumns, find
from ..samples.locations import location
from .arguments import DataNode, Prepared, ReaderArguments, makes_reader, prepare
from .containers import on_cpu, one_or_all, texts
from .plugs import Common


@makes_reader(samples=["path"])
def litdata(
    *,
    path: PathLike,
    columns: str | Sequence[str],
    shuffle: str = "dali",
    **given: Unpack[ReaderArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """Samples in chunks of litData, which Lightning's optimize() has written.

    DALI has no such reader. The chunks are read where they lie, through any backend, without the
    package litdata. Without a shuffle, the order is that of litData's StreamingDataset. For all
    other arguments see `readers.file`, except `device="gpu"`.

    Args:
        path: the directory or URL of the data set, which has an index.json.
        columns: the leaf of each output: the keys and numbers that lead to it in a sample, joined
            by dots, such as "image" or "meta.id" of a dict, "0" of a tuple or of a single value.
            The whole record of a sample is read.
        shuffle: as in `readers.mds`.

    Returns:
        A single node for a single column, otherwise a tuple of the nodes; with return_index the
        last is the index, int64, shape (1,). By the leaf:

        * bytes, str (UTF-8), litdata.Jpeg, Image, Audio, Video, File, Text and so on: the bytes as
          they were written, uint8, 1-D.
        * int (int64), float (float64), bool: shape (1,).
        * arrays and tensors with one dimension: of their type.

        All are in host memory, bytes shared with DALI, numbers copied.

    Raises:
        ValueError, TypeError: an argument is wrong; a leaf is missing, or has another type; the
            data set has compression, encryption, another item_loader, or its rows as Arrow tables;
            the index is damaged, or of another format, or names a chunk that is not below its
            directory; there are no samples.
        ContainerChangedError: a chunk is damaged, or not the one in the index.
        OSError: a file cannot be read.

    The running pipeline raises the errors of `readers.file`, and:

        * RecordError: the sizes in a record do not fit.
        * ContainerChangedError: a chunk has changed since its table was read.
    """
    common = Common(**given)
    on_cpu(common.device, "records are split on the CPU")
    root, names = location("path", path), texts("columns", columns)
    return prepare(
        common,
        lambda tree, remote: find(root, names, parse, Files(remote)),
        ShardColumns("litdata", names),
        names=[root],
        shuffle=shuffle,
    ).returning(one_or_all)
