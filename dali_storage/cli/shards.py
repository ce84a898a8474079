"""Directories that other loaders have written, and the calls of their readers."""

import glob
import os
from contextlib import suppress
from typing import NamedTuple

from ..contract.remote import Remote


class ShardDirectory(NamedTuple):
    """A data set of another loader.

    Attributes:
        writer: the name of the loader.
        directory: the path.
        call: the call of its reader, without the last bracket.
        files: the paths of its files; of the list, if they are elsewhere.
    """

    writer: str
    directory: str
    call: str
    files: list[str]


_FOLDER = b"/"
_KINDS = (  # the writer; what lies in the directory, and has these bytes; the call; the files
    (
        "Megatron-Energon",
        (".nv-meta/index.sqlite", b"SQLite"),
        "webdataset(ext=[...], paths={0!r}, index_paths={1!r}",
        "**/*.tar",
    ),
    ("wids", ("shardindex.json", b"{"), "webdataset(ext=[...], paths={1!r}", "**/*.tar"),
    (
        "MosaicML Streaming",
        ("index.json", b'"shards"'),
        "mds(columns=[...], path={0!r}",
        "**/*.mds*",
    ),
    ("litData", ("index.json", b'"chunks"'), "litdata(columns=[...], path={0!r}", "**/*.bin"),
    ("Lance", ("_versions", _FOLDER), "records(files=..., offsets=..., sizes=...", "data/**"),
)
_HEAD = 4096  # bytes


def find(directory: str, remote: Remote | None = None) -> ShardDirectory | None:
    """Return the data set in a directory, or by `remote` below a URL; None for others."""
    for writer, (name, content), call, pattern in _KINDS:
        mark = os.path.join(directory, name)
        if content not in _head(mark, remote):
            continue
        found = glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)
        files = sorted(filter(os.path.isfile, found)) or [mark]
        return ShardDirectory(writer, directory, call.format(directory, mark), files)
    return None


def _head(mark: str, remote: Remote | None) -> bytes:
    """Return the first 4 KiB of a file or object, if there is one; _FOLDER for a directory."""
    if remote is not None:
        with suppress(OSError):  # a store may deny access to what is missing
            return remote.contents([(os.fsencode(mark), 0, _HEAD)])[0]
    elif os.path.isdir(mark):
        return _FOLDER
    elif os.path.isfile(mark):
        with open(mark, "rb") as file:
            return file.read(_HEAD)
    return b""
