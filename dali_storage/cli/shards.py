"""Directories that other loaders have written, and the calls of their readers."""

import glob
import hashlib
import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from ..contract.errors import named
from ..contract.faces import explained
from ..contract.remote import Remote
from ..formats.lists import below, parsed


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


def hashes(found: ShardDirectory) -> dict[str, Mapping[str, str]]:
    """Return the hashes that a data set has of its files, by their paths: names and hex digits.

    Raises:
        ValueError: it has none, or its list is damaged.
    """
    known = dict[str, Mapping[str, str]]()
    if found.writer == "wids":
        with explained():
            from ..formats.tar.wids import ShardList

        listed = ShardList(os.fsencode(os.path.join(found.directory, "shardindex.json")))
        each = zip(map(os.fsdecode, listed.names), listed.md5sums, strict=True)
        known = {name: {"md5": str(value)} for name, value in each if value}
    elif found.writer == "MosaicML Streaming":
        path = os.fsencode(os.path.join(found.directory, "index.json"))
        with named(path), open(path, "rb") as file:
            index = parsed(path, file.read(), "the list of shards")
        try:
            for it in (row["raw_data"] for row in index["shards"]):
                name = os.path.join(found.directory, os.fsdecode(below(path, it["basename"])))
                its = {str(key): str(value) for key, value in it["hashes"].items()}
                known |= {name: its} if its else {}
        except (AttributeError, KeyError, TypeError) as error:
            what = f"it lacks an entry ({type(error).__name__}: {error}); copy it again"
            raise ValueError(f"{os.fsdecode(path)!r}: {what}") from None
    if not known:
        what = f"this data set of {found.writer} has no hashes of its files"
        remedy = "; MDSWriter writes them with hashes=['sha1']" * (
            found.writer == "MosaicML Streaming"
        )
        raise ValueError(f"{found.directory!r}: {what}{remedy}")
    return known


def differing(path: str, known: Mapping[str, str]) -> str:
    """Return which hash of a file is not the known one, or why the file has none; "": all agree.

    Raises:
        ValueError: a hash has a name that neither hashlib nor xxhash knows.
        BackendUnavailable: xxhash is needed, and not installed.
    """
    for name, value in known.items():
        make: Any = name
        if name.startswith("xxh"):
            with explained():
                make = getattr(importlib.import_module("xxhash"), name, None)
        elif name not in hashlib.algorithms_available:
            make = None
        if make is None:
            raise ValueError(f"{path!r}: the hash {name!r} is not known here")
        try:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, make)
        except OSError as error:
            return error.strerror or str(error)
        if digest.hexdigest() != value.lower():
            return f"its {name} is {digest.hexdigest()}, not {value}"
    return ""
