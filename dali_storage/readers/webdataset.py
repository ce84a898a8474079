"""`readers.webdataset`: samples in tars."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias, Unpack

import numpy as np

from ..contract._types import PathLike
from ..contract.catalog import Catalog
from ..contract.objects import scheme
from ..contract.options import dali_flag
from ..formats.files import Files
from ..formats.tar import webdataset as format_
from ..formats.tar.components import Selection
from ..samples.locations import file_names
from ..samples.patterns import PATH_TYPES, as_list, path_bytes
from .arguments import DaliArguments, DataNode, Prepared, makes_reader, prepare
from .containers import index_names, on_cpu, one_or_all
from .plugs import Common

_Find: TypeAlias = Callable[[Selection, bool, Files], Catalog]
"""Finds samples, as `formats.tar.webdataset.find()` with tars and indexes."""


@makes_reader(samples=["paths", "index_paths", "split"])
def webdataset(
    *,
    paths: PathLike | Sequence[PathLike],
    ext: str | bytes | Sequence[str | bytes],
    index_paths: PathLike | Sequence[PathLike] | None = None,
    split: str | None = None,
    case_sensitive_extensions: bool = True,
    dtypes: Any = None,
    missing_component_behavior: str | None = "",
    shuffle: str = "dali",
    **given: Unpack[DaliArguments],
) -> Prepared[DataNode | tuple[DataNode, ...]]:
    """`fn.readers.webdataset` with a choice of storage backend.

    The arguments are the same, and so are the samples, outputs, order, shards and epochs, bit for
    bit. New are `shuffle`, `split`, and the new arguments of `readers.file` except `exclude` and
    `device="gpu"`. For all other arguments see `readers.file`.

    A sample is a sequence of files in a tar with names that are equal up to the first dot of the
    last component; the rest of the name is the extension.

    Args:
        paths: the tars, not compressed: paths, or URLs of objects. Or the list of tars of wids, a
            path or URL that ends in .json. Or, with an index of Megatron-Energon, the directory or
            URL of its tars.
        ext: for each output the extension of its component; several, separated by semicolons, are
            alternatives, and the first component with any of them is used. One component may be
            several outputs.
        index_paths: the index of each tar, made by `python -m dali_storage index`, or by DALI's
            wds2idx; paths or URLs. Required for objects. Without an index, all headers of files are
            read here. Or the index.sqlite of Megatron-Energon, a path.
        split: a split of Megatron-Energon: its tars in the order of split.yaml, without what is
            excluded there. By default all tars, in the order of .info.json.
        case_sensitive_extensions: match the case of letters in extensions.
        dtypes: types of the outputs, of DALI or numpy: integers, or floats of 16 to 64 bits. By
            default uint8. The size of a component must be a multiple of its dtype's size.
        missing_component_behavior: "empty" or "": an output missing in a sample has the shape (0,).
            "skip": the sample is left out. "error": the sample is refused. As in DALI, the last two
            apply to every sample with fewer components than outputs, so a component should not be
            several outputs.
        shuffle: "dali": `random_shuffle` draws from a window that moves over the tars in their
            order, `shuffle_after_epoch` shuffles the order of the tars, and both may be given.
            "samples": all samples are shuffled among each other, as in `readers.file`, with 8 bytes
            of memory per sample, or 16 with shuffle_after_epoch.

    Returns:
        A single node for a single output, otherwise a tuple of the nodes; each sample is 1-D, of
        the dtype of its output. With return_index the last is the index, int64, shape (1,).

    Raises:
        ValueError, TypeError: an argument is wrong; a tar or an index is damaged; no sample has any
            of the extensions. The message has the argument, or file and place.
        ContainerChangedError: an index or a list contradicts its tar.
        OSError: a tar or an index cannot be read.

    The running pipeline raises the errors of `readers.file`; and ContainerChangedError, for a tar
    that has changed since it was opened or was read for samples or an index.
    """
    common = Common(**given)
    on_cpu(common.device, "samples are in host memory")
    find, tars = _tars(paths, index_paths, split)
    extensions = _extensions(ext)
    types = _dtypes(dtypes, len(extensions))
    missing = str(missing_component_behavior or "empty").lower()
    if missing not in ("empty", "skip", "error"):
        what = f"must be 'empty', 'skip' or 'error', not {missing_component_behavior!r}"
        raise ValueError(f"missing_component_behavior {what}")
    case = dali_flag("case_sensitive_extensions", case_sensitive_extensions, default=True)
    return prepare(
        common,
        lambda tree, remote: find(
            Selection(extensions, types, missing, case),
            tree() is not None,  # the backend has a map
            Files(remote),
        ),
        format_.WebDataset(types),
        names=tars,
        shuffle=shuffle,
    ).returning(one_or_all)


def _tars(paths: Any, index_paths: Any, split: str | None) -> tuple[_Find, list[bytes]]:
    """Return what finds the samples of the tars, and names that show where they are."""
    tars = file_names("paths", paths)
    given = [] if index_paths is None else as_list("index_paths", index_paths, PATH_TYPES)
    databases = [it for it in given if path_bytes("index_paths", it).endswith(b".sqlite")]
    if databases or split is not None:
        if not len(tars) == len(given) == len(databases) == 1:
            what = "paths must be a directory, and index_paths its .nv-meta/index.sqlite"
            raise ValueError(f"{what}, for an index or a split of Megatron-Energon")
        from ..formats.tar.energon import data_set

        found = data_set(tars[0], file_names("index_paths", databases)[0], split)
        return found.find, found.names
    if len(tars) == 1 and tars[0].endswith(b".json"):
        from ..formats.tar.wids import ShardList

        known = None if scheme(tars[0]) else ShardList(tars[0])

        def find(selection: Selection, may_be_missing: bool, files: Files) -> Catalog:
            shards = known or ShardList(tars[0], files)
            names = file_names("paths", shards.names)
            indexes = index_names("index_paths", index_paths, names)
            return shards.find(indexes, selection, may_be_missing, files)

        return find, file_names("paths", known.names) if known else tars
    indexes = index_names("index_paths", index_paths, tars)
    return partial(format_.find, tars, indexes), tars


def _extensions(ext: Any) -> list[bytes]:
    given = as_list("ext", ext, (str, bytes))
    if wrong := [each for each in given if not isinstance(each, (str, bytes))]:
        raise TypeError(f"ext must be strings, not {wrong[0]!r}")
    if not given:
        raise ValueError("ext must not be empty: give an entry for each output")
    return [path_bytes("ext", each) for each in given]


def _dtypes(dtypes: Any, outputs: int) -> list[np.dtype[Any]]:
    if dtypes is None:
        return [np.dtype(np.uint8)] * outputs
    dali: Any = sys.modules.get("nvidia.dali.types")  # loaded, if a dtype is one of DALI's
    known = [type, str, np.dtype, *([dali.DALIDataType] if dali else [])]
    given = as_list("dtypes", dtypes, (*known,))
    types = [_dtype(it, dali) for it in given]
    if len(types) != outputs:
        raise ValueError(f"dtypes must match ext: {len(types)} for {outputs} outputs")
    return types


def _dtype(dtype: Any, dali: Any) -> np.dtype[Any]:
    with contextlib.suppress(KeyError, TypeError):
        given = (
            dali.to_numpy_type(dtype) if dali and isinstance(dtype, dali.DALIDataType) else dtype
        )
        found: np.dtype[Any] = np.dtype(given)
        if found.kind in "iuf" and found.itemsize <= 8 and found.isnative:
            return found
    raise ValueError(f"dtypes must be integers, or floats of 16 to 64 bits, not {dtype!r}")
