"""`readers.parquet`: images or sounds in columns of Parquet files."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..formats.files import Files
from ..formats.pieces import BYTES, Pieces
from ..samples.locations import file_names
from .arguments import DataNode, Prepared, ReaderArguments, makes_reader, prepare
from .containers import index_names, one_or_all, texts
from .plugs import Common


@makes_reader(samples=["paths", "columns", "label", "classes", "index_paths", "missing"])
def parquet(
    *,
    paths: PathLike | Sequence[PathLike],
    columns: str | Sequence[str] = "image",
    label: str | None = "label",
    classes: Sequence[str] | None = None,
    index_paths: PathLike | Sequence[PathLike] | None = None,
    missing: str = "error",
    shuffle: str = "samples",
    **given: Unpack[ReaderArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """Images or sounds in Parquet files, as Hugging Face's data sets have them.

    DALI has no such reader. The values must be in the files as they are: without compression, in
    PLAIN encoding or with an uncompressed dictionary. So has the package datasets written them
    since 4.6, and other writers do so if told. Then each value is a range of bytes, and is read
    alone, in any order. Other files are refused; `python -m dali_storage unpack` rewrites them.
    Footers and labels are read by pyarrow: the extra `parquet` brings it. For all other
    arguments see `readers.file`.

    Args:
        paths: the files, one after another: paths, or URLs of objects.
        columns: the column of each output, binary, or a struct with a member `bytes`, as of
            datasets' Image, Audio and Video. "pair.left" is a member of a struct.
        label: the column of labels: integers or booleans, which fit into int32, or text. None: no
            labels.
        classes: the names of the classes, by their labels, for labels that are text or datasets'
            ClassLabel. None: those of ClassLabel, or all texts of these files, sorted by code
            points.
        index_paths: an index for each file, made by `python -m dali_storage index`. None: the
            lengths of all values are read when the reader is made; of objects by up to 64 requests
            at once for each of 4 files, about one for each large value.
        missing: for rows without a value in one of `columns`. "error": they are refused. "skip":
            they are left out. "empty": the value is empty.
        shuffle: "samples": all rows are shuffled among each other, as in `readers.file`. "dali":
            the order of DALI's readers of containers; `random_shuffle` draws from a window that
            moves over the files, `shuffle_after_epoch` shuffles the files.

    Returns:
        A node for each of `columns`, then the label; a single node alone.

        * columns: the bytes of the values; uint8, 1-D, in host memory shared with DALI, or in GPU
          memory. Values of up to 4 KiB with one size are copied.
        * label: int32, shape (1,). -1 is ClassLabel's "no label".
        * index: int64, shape (1,), with return_index: the number of the row among those read.

        `readers.catalog(pipeline, name).classes` has the names of the classes.

    Raises:
        ValueError, TypeError: an argument is wrong. A file is not Parquet, is damaged or encrypted,
            lacks a column or a value, has a column that is compressed, encoded otherwise, a list,
            text or numbers, or other classes than the first file; or there are no rows. The message
            has the path.
        ContainerChangedError: an index is of another file, or of another state of its file.
        OSError: a file or an index cannot be read.
        BackendUnavailable: as `readers.file`, or without pyarrow.

    The running pipeline raises the errors of `readers.file`, and:

        * ContainerChangedError, StaleMapError: a file has changed since its rows were found.
    """
    from ..formats.parquet import catalog  # needs pyarrow

    files = _files(paths)
    outputs = texts("columns", columns)
    names = None if classes is None else texts("classes", classes)
    if label is None and names is not None:
        raise ValueError("classes needs label, the column of labels")
    if label is not None and not isinstance(label, str):
        raise TypeError(f"label must be the name of a column or None, not {label!r}")
    if names is not None and len({*names}) < len(names):
        raise ValueError(f"classes must have each name once, not {names!r:.200}")
    if missing not in ("error", "skip", "empty"):
        raise ValueError(f"missing must be 'error', 'skip' or 'empty', not {missing!r}")
    indexes = None if index_paths is None else index_names("index_paths", index_paths, files)
    return prepare(
        Common(**given),
        lambda tree, remote: catalog.find(
            files, outputs, label, names, indexes, missing, Files(remote)
        ),
        Pieces("parquet", "Parquet", [BYTES] * len(outputs), labels=label is not None),
        names=files,
        shuffle=shuffle,
    ).returning(one_or_all)


def _files(paths: PathLike | Sequence[PathLike]) -> list[bytes]:
    """Return the names of the files: paths as they are, or URLs."""
    return file_names("paths", paths)
