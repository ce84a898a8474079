"""`readers.mxnet`: records of RecordIO files."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..formats import recordio
from ..formats.files import Files
from ..samples.locations import file_names
from .arguments import DaliArguments, DataNode, Prepared, makes_reader, prepare
from .containers import on_cpu
from .plugs import Common


@makes_reader(samples=["path", "index_path"])
def mxnet(
    *,
    path: PathLike | Sequence[PathLike],
    index_path: PathLike | Sequence[PathLike],
    shuffle: str = "dali",
    **given: Unpack[DaliArguments],
) -> Prepared[tuple[DataNode, ...]]:
    """`fn.readers.mxnet` with a choice of storage backend.

    The arguments are the same, and so are the samples, labels, order, shards and epochs, bit for
    bit. For all other arguments see `readers.file`.

    Args:
        path: the .rec files. They count as one long file: a record may begin in one file and end in
            the next.
        index_path: one file for all of `path`, with a pair "key offset" for each record, written by
            im2rec.
        device: "cpu" or None.
        shuffle: "dali": `random_shuffle` draws from a window that moves over the files in their
            order, `shuffle_after_epoch` shuffles the order of the files, and both may be given.
            "samples": all samples are shuffled among each other, as in `readers.file`, with 8 bytes
            of memory per sample, or 16 with shuffle_after_epoch.

    Returns:
        `(images, labels)` or `(images, labels, index)`.

        * images: the encoded images; uint8, 1-D. Host memory shared with DALI. Copied are images of
          up to 4 KiB with one size, and images in several pieces, because they contain RecordIO's
          magic number or lie in several files.
        * labels: float32, shape (1,), or (n,) for a record with n labels.
        * index: int64, shape (1,).

    Raises:
        ValueError, TypeError, OSError, BackendUnavailable, RuntimeError: as `readers.file`; and if
            the index has anything but pairs of numbers, or an offset beyond the files.

    The running pipeline raises the errors of `readers.file`, and:

        * ContainerChangedError: a file has changed or become shorter since it was opened.
        * RecordError: at an offset of the index, the record of an image is missing or damaged.
          `filename` is the path of the file.
    """
    common = Common(**given)
    on_cpu(common.device, "records are parsed on the CPU")
    paths = file_names("path", path)
    index, *more = file_names("index_path", index_path)
    if more:
        raise ValueError(f"index_path must be one file for all of path, not {1 + len(more)}")
    return prepare(
        common,
        lambda tree, remote: recordio.find(paths, index, Files(remote)),
        recordio.RecordIO(),
        names=paths,
        shuffle=shuffle,
    )
