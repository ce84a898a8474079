"""`readers.records`: byte ranges of files as samples."""

from collections.abc import Sequence
from typing import Unpack

from ..contract._types import PathLike
from ..contract.format import Format
from ..formats import plain
from ..formats.columns import Column
from ..formats.files import Files
from ..samples.locations import file_names
from .arguments import DataNode, Prepared, ReaderArguments, makes_reader, prepare
from .plugs import Common


class _Records(Format):
    operator = "records"
    schema = "Records"


@makes_reader(samples=["files", "offsets", "sizes", "file_ids", "labels"])
def records(
    *,
    files: PathLike | Sequence[PathLike],
    offsets: Column,
    sizes: Column | int,
    file_ids: Column | None = None,
    labels: Column | None = None,
    **given: Unpack[ReaderArguments],
) -> Prepared[tuple[DataNode, ...]]:
    """Byte ranges of files as samples, in the order of `readers.file`.

    For containers of any kind with a known index: sample i is `sizes[i]` bytes of a file, from
    `offsets[i]` on. Samples may lie in any order, overlap, repeat, and be empty. For all other
    arguments see `readers.file`.

    A column is a sequence or array of integers, or the path of a .npy file of integers
    (`numpy.save`), which is never unpickled. Memory per sample: 8 bytes for offsets; 4 for sizes,
    none if all samples have one size; 1 to 4 for `file_ids`, none if they are sorted; 4 for labels.

    Args:
        files: the path of a file, or of several. They need not exist yet.
        offsets: column: the offsets of the samples, in bytes.
        sizes: column: their sizes in bytes; or one integer for all.
        file_ids: column: the file of each sample, as an index into `files`. Optional for a single
            file.
        labels: the labels, int32; a column, or as in `readers.file`. By default 0, 1, 2 and so on.
        random_shuffle: as fast as any other order if the backend reads directly.

    Returns:
        `(data, labels)` or, with return_index, `(data, labels, index)`; all on the CPU with
        device="cpu".

        * data: the bytes of the ranges; uint8, 1-D, in host memory shared with DALI. Small ranges
          of one size are copied.
        * labels: int32, shape (1,).
        * index: int64, shape (1,): the number of the sample in the columns.

    Raises:
        ValueError, TypeError: an argument is wrong, the columns do not have the same length, or a
            range is not inside of its file (missing files are not checked). The message has the
            argument and the first wrong sample.
        OSError: a column cannot be read from its file.
        BackendUnavailable: as `readers.file`.

    The running pipeline raises the errors of `readers.file`, and:

        * ContainerChangedError, StaleMapError: a file is too short for a sample, or has changed
          since the reader first read from it. No byte of it is delivered.
    """
    names = file_names("files", files)
    return prepare(
        Common(**given),
        lambda tree, remote: plain.find(names, offsets, sizes, file_ids, labels, Files(remote)),
        _Records(),
        names=names,
    )
