"""`readers.litdata`: the leaves of samples in chunks of litData."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..formats.shards.litdata import parse
from ..samples.locations import location
from .arguments import DataNode, Prepared, ReaderArguments, makes_reader
from .mds import columns_of
from .plugs import Common


@makes_reader(samples=["path"])
def litdata(
    *,
    path: PathLike,
    columns: str | Sequence[str],
    shuffle: str = "dali",
    **given: Unpack[ReaderArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """Samples in chunks of litData, read where they lie. DALI has no such reader.

    Without a shuffle, the order is that of litData's StreamingDataset. `readers.mds` describes
    `shuffle`, the node or nodes that are returned, and the errors.

    Args:
        path: the directory or URL of the data set, which has an index.json.
        columns: the leaf of each output: the keys and numbers that lead to it in a sample, joined
            by dots, such as "image" or "meta.id" of dicts, "0" of a tuple or of a single value.

    Returns:
        By the leaf:

        * bytes, str (UTF-8), litdata.Jpeg, Image, Audio, Video, File and so on: the bytes as they
          were written; uint8, 1-D, shared with DALI.
        * int (int64), float (float64), bool: shape (1,).
        * arrays and tensors with one dimension: of their type.

    Raises:
        ValueError: also for `compression`, `encryption`, an `item_loader`, or rows in Arrow tables.
    """
    root = location("path", path)
    return columns_of("litdata", root, columns, parse, shuffle, Common(**given))
