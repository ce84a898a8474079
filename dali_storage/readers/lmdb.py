"""`readers.lmdb`: the values of LMDB files."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Unpack

from ..contract._types import PathLike
from ..contract.catalog import Catalog, Tree
from ..contract.format import Format
from ..contract.remote import Remote
from ..formats.columns import Column, labels_column
from ..formats.files import Files
from ..formats.lmdb import index
from ..samples.locations import file_names
from .arguments import DataNode, Nodes, Prepared, ReaderArguments, makes_reader, prepare
from .containers import index_names
from .plugs import Common


class _Values(Format):
    operator = "lmdb"
    schema = "Lmdb"


@makes_reader(samples=["path", "index_path", "labels"])
def lmdb(
    *,
    path: PathLike | Sequence[PathLike],
    index_path: PathLike | Sequence[PathLike] | None = None,
    labels: Column | None = None,
    shuffle: str = "dali",
    **given: Unpack[ReaderArguments],
) -> Prepared[tuple[DataNode, ...]]:
    """The values of LMDB files, in the order of their keys; DALI has no such reader.

    Neither LMDB nor its package is needed. For all other arguments see `readers.file`. For records
    of Caffe use `readers.caffe` or `readers.caffe2`.

    Args:
        path: the databases, one after another: directories with a `data.mdb`, or such files; for
            objects, the URLs of the files.
        index_path: an index for each database, made by `python -m dali_storage index`. None: the
            pages of the trees are read from the files. Objects need an index.
        labels: the labels, int32; a column as in `readers.records`. By default 0, 1, 2 and so on.
        shuffle: "dali": the order of DALI's readers of containers. `random_shuffle` draws from a
            window that moves over the databases, `shuffle_after_epoch` shuffles the databases.
            "samples": all values are shuffled among each other, as in `readers.file`, with 8 bytes
            of memory per value, or 16 with shuffle_after_epoch.

    Returns:
        `(data, labels)` or, with return_index, `(data, labels, index)`; all on the CPU with
        device="cpu".

        * data: the values; uint8, 1-D, in host memory shared with DALI. Small values of one size
          are copied. Keys are not delivered.
        * labels: int32, shape (1,).
        * index: int64, shape (1,): the number of the value in all databases.

    Raises:
        ValueError, TypeError: an argument is wrong; a file is not LMDB, is damaged, or has
            databases with names or several values for a key. The message has the argument or the
            file.
        ContainerChangedError: the index is of another file, or the file is being written.
        OSError: a file or an index cannot be read.
        BackendUnavailable: as `readers.file`.

    The running pipeline raises the errors of `readers.file`, and:

        * ContainerChangedError, StaleMapError: a file has been written since the values were found.
    """
    return prepare_values(Common(**given), _Values(), path, index_path, labels, shuffle=shuffle)


def prepare_values(
    common: Common,
    fmt: Format,
    path: PathLike | Sequence[PathLike],
    index_path: PathLike | Sequence[PathLike] | None,
    labels: Column | None = None,
    *,
    shuffle: str,
) -> Prepared[Nodes]:
    """Prepare a reader of LMDB files; `fmt` makes its outputs. The others are as in `lmdb`."""
    paths = file_names("path", path)
    indexes = index_names("index_path", index_path, paths)

    def find(tree: Callable[[], Tree | None], remote: Remote | None) -> Catalog:
        # The backend may have a map of missing files.
        found = index.find(paths, indexes, Files(remote), tree() is not None)
        if not fmt.labels:
            return found
        return replace(found, labels=labels_column(labels, found.delivered))

    return prepare(common, find, fmt, names=paths, shuffle=shuffle)
