"""Records at places given by columns of numbers."""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..contract._types import IntArray
from ..contract.catalog import Catalog
from ..contract.ranges import Ranges
from .columns import Column, column, labels_column
from .files import LOCAL, MOST, Files


def find(
    names: Sequence[bytes],
    offsets: Column,
    sizes: Column | int,
    file_ids: Column | None,
    labels: Column | None,
    files: Files = LOCAL,
) -> Catalog:
    """Make the catalog of n ranges of the files `names`; see `readers.records` for arguments.

    `files` requests the sizes of objects.

    Raises:
        ValueError, TypeError: an argument is wrong, or a range ends after its file; names the
            argument.
        OSError: a .npy file or an object cannot be read.
    """
    found = files.catalog(names)
    starts = column("offsets", offsets)
    if not (count := starts.size):
        raise ValueError("offsets must not be empty; give an entry for each sample")
    which = _file_ids(file_ids, found.file_count, count)
    if isinstance(sizes, (int, np.integer)) and not isinstance(sizes, bool):
        lengths = np.broadcast_to(column("sizes", [sizes]), count)
    else:
        lengths = column("sizes", sizes, count)
    ranges = Ranges.of_columns(which, starts, lengths)
    catalog = replace(found, labels=labels_column(labels, count), ranges=ranges)
    bounds = catalog.sizes
    if bounds is None:
        bounds = np.array([_size(path) for path in catalog.file_paths(np.arange(len(names)))])
    if (wrong := ranges.first_outside(bounds)) is not None:
        nbytes = bounds[catalog.files(np.array([wrong]))[0]]
        path = repr(os.fsdecode(catalog.path(wrong)))
        why = f"{path} cannot be so long" if nbytes == MOST else f"{path} has {nbytes:,} bytes"
        where = f"{catalog.where(wrong)}, but {why}"
        raise ValueError(f"offsets and sizes must be within the files: {where}")
    return catalog


def _file_ids(file_ids: Column | None, files: int, count: int) -> IntArray:
    if file_ids is None:
        if files > 1:
            raise ValueError(f"file_ids must be given, because there are {files} files")
        return np.broadcast_to(np.int64(0), count)
    found = column("file_ids", file_ids, count)
    for wrong in np.flatnonzero(found >= files)[:1].tolist():
        last = f"from 0 to {files - 1}, the last of the files"
        raise ValueError(f"file_ids must be {last}, not {found[wrong]} (sample {wrong})")
    return found


def _size(path: bytes) -> int:
    """Return the size of a file in bytes; `MOST` for a missing path, or one that is not a file."""
    try:
        status = os.stat(path)
    except OSError:  # the backend's: it may know the file by another way
        return MOST
    return status.st_size if stat.S_ISREG(status.st_mode) else MOST
