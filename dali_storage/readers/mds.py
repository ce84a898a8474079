"""`readers.mds`: the columns of shards of MosaicML Streaming."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..contract.catalog import join_path
from ..formats.files import Files
from ..formats.shards.mds import parse
from ..formats.shards.records import Parse, ShardColumns, find
from ..samples.locations import location
from ..samples.patterns import path_bytes
from .arguments import DataNode, Prepared, ReaderArguments, makes_reader, prepare
from .containers import on_cpu, one_or_all, texts
from .plugs import Common


@makes_reader(samples=["path", "split"])
def mds(
    *,
    path: PathLike,
    columns: str | Sequence[str],
    split: str | None = None,
    shuffle: str = "dali",
    **given: Unpack[ReaderArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """Samples in MDS shards of MosaicML Streaming, read where they lie. DALI has no such reader.

    Without a shuffle, the order is that of StreamingDataset(shuffle=False). The package is not
    needed. For all other arguments see `readers.file`, except `exclude` and `device="gpu"`.

    Args:
        path: the directory or URL of the data set, which has an index.json.
        columns: the column of each output. The whole record of a sample is read.
        split: the directory below `path` that has the index.json, as in StreamingDataset.
        shuffle: "dali": the order of DALI's readers of containers; `random_shuffle` draws from a
            window that moves over the shards, `shuffle_after_epoch` shuffles the shards. "samples":
            all samples are shuffled among each other, as in `readers.file`.

    Returns:
        A node for each of `columns`, then the index with return_index, int64, shape (1,); a single
        node alone. All are in host memory. By the encoding of the column:

        * bytes, str (UTF-8), jpeg, png, json, str_int, str_float, str_decimal: the bytes as they
          were written; uint8, 1-D, shared with DALI.
        * int (int64), int8 to int64, uint8 to uint64, float16 to float64: shape (1,).
        * ndarray:DTYPE:SHAPE: of this type and shape.

    Raises:
        ValueError, TypeError: an argument is wrong; a column is missing, or has another encoding;
            the index is damaged or of another format, has shards with different columns, or one
            that is not below its directory; there are no samples.
        ContainerChangedError: a shard is damaged, or not the one in the index.
        OSError: a file cannot be read. If only the compressed shard exists, the message has the
            command that decompresses it.

    The running pipeline raises the errors of `readers.file`, and:

        * RecordError: the sizes in a record do not fit.
        * ContainerChangedError: a shard has changed since the reader was made.
    """
    root = location("path", path)
    if split:
        root = location("split", join_path(root, path_bytes("split", split)))
    return columns_of("mds", root, columns, parse, shuffle, Common(**given))


def columns_of(
    operator: str, root: bytes, columns: str | Sequence[str], parse: Parse, shuffle: str, it: Common
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """Prepare the reader `operator` of the columns of a data set whose index `parse` knows."""
    on_cpu(it.device, "records are split on the CPU")
    names = texts("columns", columns)
    return prepare(
        it,
        lambda tree, remote: find(root, names, parse, Files(remote)),
        ShardColumns(operator, names),
        names=[root],
        shuffle=shuffle,
    ).returning(one_or_all)
