"""Indexes of LMDB files, and the catalog of their values, from indexes or from the files.

An index is little-endian:

    0    8 bytes    "DALILMDB"
    8    uint32     the version of this layout: 1
    12   uint32     CRC-32 of the rest
    16   352 bytes  the file's bytes at `pages.guarded()`, and zeros
    368  uint64     the bytes of the file
    376  int64      its time of modification, in ns
    384  int64[n]   the starts of the values, in the order of their keys
    ...  uint32[n]  their sizes
"""

import io
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO

import numpy as np

from ...contract.catalog import Catalog
from ...contract.errors import ContainerChangedError
from ...contract.objects import scheme
from ..files import LOCAL, MOST, Files, assembled, noting_states, sizes
from ..sealed import REMEDY, sealed, unsealed
from . import pages
from .pages import Values

_FILE = struct.Struct(f"<{pages.GUARDED}sQq")
_FRAME = b"DALILMDB", 1  # the magic number, and the layout
_VALUE = 12  # bytes


def index(path: bytes, progress: Callable[[int], object]) -> list[bytes]:
    """Return the parts of the index of a file; raises as `pages.scan()`."""
    found = pages.scan(path, progress)
    guards = b"".join(content for _, content in found.guards)
    file = _FILE.pack(guards, found.nbytes, found.changed_ns)
    parts = [file, found.starts.astype("<i8").tobytes(), found.sizes.astype("<u4").tobytes()]
    return sealed(_FRAME, parts)


def read_index(path: bytes, file: BinaryIO) -> Values:
    """Read the values in an index.

    Raises:
        ValueError: not an index of an LMDB file, a damaged one, or another layout.
        OSError: the index cannot be read.
    """
    rest = unsealed("index_path", path, file, _FRAME, "an LMDB file", _fits)
    count = (len(rest) - _FILE.size) // _VALUE
    starts = np.frombuffer(rest, "<i8", count, _FILE.size).astype(np.int64)
    lengths = np.frombuffer(rest, "<u4", count, _FILE.size + 8 * count).astype(np.int64)
    state, nbytes, changed_ns = _FILE.unpack_from(rest)
    unread = io.BytesIO(state)
    places = pages.guarded(int.from_bytes(state[:4], "little"), starts, lengths)
    guards = [(at, unread.read(size)) for at, size in places]
    return Values(starts, lengths, guards, nbytes, changed_ns)


def _fits(size: int) -> bool:
    return size >= _FILE.size and (size - _FILE.size) % _VALUE == 0


def find(
    paths: Sequence[bytes],
    indexes: Sequence[bytes] | None,
    files: Files = LOCAL,
    may_be_missing: bool = False,
) -> Catalog:
    """Find the values of LMDB files, in the order of the files and of their keys; without labels.

    Args:
        paths: the files, or directories with a `data.mdb`; or URLs of files.
        indexes: the index of each; None: the pages of the files are read.
        files: reads files and indexes.
        may_be_missing: whether a file with an index need not exist here.

    Raises:
        ValueError: a file or an index is damaged or of another kind; or there are no values.
        ContainerChangedError: an index is of another file, or of another state of its file.
        OSError: a file or an index cannot be read.
    """
    found = noting_states(files.catalog([_data_file(path) for path in paths]))
    names = found.file_paths(np.arange(found.file_count))
    if indexes is None:
        values = [pages.scan(path) for path in names]
    else:
        with files.opened(indexes) as opened:
            values = [read_index(index, next(opened)) for index in indexes]
        _compare(files, found, values, indexes, may_be_missing)
    samples = assembled(found, [(it.starts, it.sizes) for it in values], "has no values")
    guards = {number: it.guards for number, it in enumerate(values)}
    # Neither an index nor an object store has the keys.
    at_hand = zip(paths, names, strict=True) if found.sizes is None and not may_be_missing else ()
    info = [partial(_source_info, *each) for each in at_hand]
    return replace(samples, guards=guards, source_info=info)


def _source_info(path: bytes, file: bytes) -> dict[int, bytes]:
    return {start: b"%b at key %b" % (path, key) for start, key in pages.keys(file).items()}


def _data_file(path: bytes) -> bytes:
    is_directory = not scheme(path) and os.path.isdir(path)
    return os.path.join(path, b"data.mdb") if is_directory else path


def _compare(
    files: Files,
    found: Catalog,
    values: Sequence[Values],
    indexes: Sequence[bytes],
    may_be_missing: bool,
) -> None:
    """Compare the indexed state of files with the current one, if the files exist."""
    ends = sizes(found, [FileNotFoundError] if may_be_missing else [])
    alike = [file for file, end in enumerate(ends.tolist()) if end == values[file].nbytes]
    places = [(file, at, len(content)) for file in alike for at, content in values[file].guards]
    parts = files.parts(found, places)
    for file in np.flatnonzero(ends != MOST).tolist():
        known, path = values[file], found.file_path(file)
        is_same = ends[file] == known.nbytes
        is_same = is_same and known.guards == [(at, next(parts)) for at, _ in known.guards]
        if found.states is not None:  # the time of an object is the time of its upload
            is_same &= found.states[file, 2:].tolist() == [*divmod(known.changed_ns, 10**9)]
        if not is_same:
            what = f"index {os.fsdecode(indexes[file])!r} is of another file, or the file was"
            what = f"{what} written since, or copied without its time (cp -p keeps the time)"
            raise ContainerChangedError(path, f"{what}; {REMEDY}")
