"""Directories that other loaders have written, and the calls of their readers."""

import glob
import os
from typing import NamedTuple


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
    ("Lance", ("_versions", b""), "records(files=..., offsets=..., sizes=...", "data/**"),
)
_HEAD = 4096  # bytes


def find(directory: str) -> ShardDirectory | None:
    """Return the data set in a directory; None for other paths."""
    for writer, (name, content), call, pattern in _KINDS:
        mark = os.path.join(directory, name)
        if not _has(mark, content):
            continue
        found = glob.glob(os.path.join(glob.escape(directory), pattern), recursive=True)
        files = sorted(filter(os.path.isfile, found)) or [mark]
        return ShardDirectory(writer, directory, call.format(directory, mark), files)
    return None


def _has(mark: str, content: bytes) -> bool:
    """Whether a file begins with 4 KiB that have the content, or, without one, is a directory."""
    if not content or not os.path.isfile(mark):
        return not content and os.path.isdir(mark)
    with open(mark, "rb") as file:
        return content in file.read(_HEAD)
