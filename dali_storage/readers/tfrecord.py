"""`readers.tfrecord`: records of TFRecord files."""

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Unpack

from ..contract._types import PathLike
from ..contract.faces import explained
from ..contract.options import dali_flag
from ..formats.files import Files
from ..formats.tfrecord import index as tfrecord_index
from ..formats.tfrecord.features import Checksum, TfRecord
from ..samples.locations import file_names
from .arguments import DataNode, Prepared, makes_reader, prepare
from .containers import DirectArguments, index_names, on_cpu, with_names
from .plugs import Common


@makes_reader(samples=["path", "index_path"])
def tfrecord(
    *,
    path: PathLike | Sequence[PathLike],
    features: Mapping[str, Any],
    index_path: PathLike | Sequence[PathLike] | None = None,
    shuffle: str = "dali",
    verify: bool = False,
    **given: Unpack[DirectArguments],
) -> Prepared[dict[str, DataNode] | tuple[Any, ...]]:
    """`fn.readers.tfrecord` with a choice of storage backend.

    The arguments are the same, and so are the samples, order, shards and epochs, bit for bit. New
    are `shuffle` and `verify`, and the new arguments of `readers.file` except `exclude` and
    `device="gpu"`. `index_path` is optional. For all other arguments see `readers.file`.

    Args:
        path: the TFRecord files, paths or URLs of objects; one string is one file.
        features: the features to read from each record, a `tf.train.Example`: names and features of
            `nvidia.dali.tfrecord`. A string is a FixedLenFeature of shape (): the first one of the
            list. As in DALI, default values are never used.
        index_path: an index for each file, made by `python -m dali_storage index` or DALI's
            tfrecord2idx: a line "offset size" for each record. None: the lengths of all records are
            read from the files: 12 bytes each, or all of a file of small records. Objects need an
            index.
        device: "cpu" or None. Records are parsed on the CPU.
        use_o_direct: the same as `backend_options={"direct": True}`.
        shuffle: "dali": `random_shuffle` draws from a window that moves over the files in their
            order, `shuffle_after_epoch` shuffles the order of the files, and both may be given.
            "samples": all samples are shuffled among each other, as in `readers.file`, with 8 bytes
            of memory per sample, or 16 with shuffle_after_epoch.
        verify: check the checksums of every record, unlike DALI. Needs the package google-crc32c.

    Returns:
        A dictionary of nodes by the names in `features`, in their order; with `return_index`, a
        tuple of this dictionary and the index: int64, shape (1,).

        * string: its bytes; uint8, 1-D. Host memory shared with DALI. Strings of up to 4 KiB with
          one size are copied.
        * FixedLenFeature of numbers: int64 or float32, of its shape. Values missing at the end are
          0.
        * VarLenFeature: shape (n,), or (n, *partial_shape).
        * feature of numbers missing in all records: 0-D, as in DALI, and 0. (In DALI, the value is
          arbitrary.)

    Raises:
        ValueError, TypeError: an argument is wrong; the message has its name and value. An index
            names bytes beyond its file. A file without index is damaged.
        OSError: an index, or a file without an index, cannot be read.
        BackendUnavailable: as `readers.file`, or verify=True lacks its package.

    The running pipeline raises the errors of `readers.file`, and:

        * RecordError: a record is not a `tf.train.Example`, its checksum is wrong, or the record
          lacks something required by `features`: a string; values to fill a shape of
          `partial_shape`; or numbers, unless of shape (), present in other records. `filename` is
          the path of its file; the message names the record.
        * ContainerChangedError: a file has changed or become shorter since it was opened, or
          searched for records without an index.
    """
    common = Common(**given)
    on_cpu(common.device, "records are parsed on the CPU")
    checksum = _checksum() if dali_flag("verify", verify) else None
    files = file_names("path", path)
    indexes = index_names("index_path", index_path, files)
    from .features import describe  # by DALI

    return prepare(
        common,
        lambda tree, remote: tfrecord_index.find(files, indexes, Files(remote)),
        TfRecord(describe(features), checksum),
        names=files,
        shuffle=shuffle,
    ).returning(partial(with_names, features))


def _checksum() -> Checksum:
    with explained():
        checksum: Checksum = importlib.import_module("google_crc32c").value
    return checksum
