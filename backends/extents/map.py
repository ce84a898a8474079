"""Loaded extent maps, and the lookup of a catalog's files in them."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import bmap_tools
from bmap_tools.extent_map import ExtentMap

from ...contract._types import IntArray, PathLike
from ...contract.catalog import Catalog
from ...contract.errors import StaleMapError

_loaded: weakref.WeakValueDictionary[tuple[int, ...], ExtentMap] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class LoadedMap:
    """An extent map, and the command to renew a stale map.

    Attributes:
        map: the extent map.
        renew: the remedy for a stale map, for messages.
    """

    map: ExtentMap
    renew: str

    def stale(self, path: bytes, what: str) -> StaleMapError:
        """The error for a sample that differs from the map."""
        return StaleMapError(path, what, self.renew)

    def other_device(self, path: str, what: str) -> StaleMapError:
        """The error for a device other than the mapped one."""
        remedy = f"give the mapped device as uri, or {self.renew}"
        return StaleMapError(os.fsencode(path), f"this is not the mapped device: {what}", remedy)


def load_map(bmap: PathLike) -> LoadedMap:
    """Load a map; all readers of the same unchanged file share one copy.

    A large map takes seconds to load. Raises as `bmap_tools.load()`, besides a TypeError.
    """
    try:
        path = os.fsdecode(bmap)
    except TypeError:
        raise TypeError(f"bmap must be the path of a bmap.json, not {bmap!r}") from None
    status = os.stat(path)
    # With the time of change, so that a renewed map is loaded.
    key = (status.st_dev, status.st_ino, status.st_ctime_ns, status.st_size)
    found = _loaded.get(key)
    if found is None:
        found = _loaded[key] = bmap_tools.load(path)
    root = os.fsdecode(found.root)
    return LoadedMap(found, f"renew the map: python -m bmap_tools create {root!r} -o {path!r}")


class MapTree:
    """The directories and files of a map: a `dali_storage.contract.catalog.Tree`.

    Attributes:
        root: the mapped directory.
        extent_map: the map.
    """

    def __init__(self, extent_map: ExtentMap) -> None:
        self.root = extent_map.root
        self.extent_map = extent_map
        self._files: dict[bytes, array[int]] | None = None

    def directories(self) -> list[bytes]:
        """The names of the directories in the root."""
        return list(self.extent_map.directories)

    def files(self, directory: bytes) -> list[bytes]:
        """The names of the files directly in one of the directories."""
        if self._files is None:
            self._files = self._by_directory()
        skip = len(directory) + 1
        return [self.extent_map.name(file)[skip:] for file in self._files.get(directory, ())]

    def _by_directory(self) -> dict[bytes, array[int]]:
        names, offsets = self.extent_map.names, self.extent_map.name_offsets
        slashes = np.flatnonzero(np.frombuffer(names, np.uint8) == ord("/"))
        starts, ends = np.searchsorted(slashes, offsets[:-1]), offsets[1:]
        direct = np.flatnonzero(np.searchsorted(slashes, ends) - starts == 1)
        found: dict[bytes, array[int]] = {}
        pairs = zip(offsets[:-1][direct].tolist(), slashes[starts[direct]].tolist(), strict=True)
        for file, (start, slash) in zip(direct.tolist(), pairs, strict=True):
            found.setdefault(names[start:slash], array("q")).append(file)
        return found


def files_of(catalog: Catalog, loaded: LoadedMap) -> IntArray:
    """Look up the files of a catalog in the map: int64[n], indices of files in the map."""
    mapped = loaded.map
    if catalog.names == mapped.names and np.array_equal(catalog.offsets, mapped.name_offsets):
        return np.arange(catalog.file_count)
    known = {mapped.name(file): file for file in range(len(mapped))}
    find = _finder(known, catalog, os.path.realpath(mapped.root))
    names = map(catalog.file_name, range(catalog.file_count))
    files = np.fromiter(map(find, names), np.int64, catalog.file_count)
    missing = np.flatnonzero(files < 0)
    if missing.size:
        few = [repr(os.fsdecode(catalog.file_name(file))) for file in missing[:3].tolist()]
        listed = ", ".join([*few, "..."] if missing.size > 3 else few)
        kind = kind_of_files(catalog)
        what = f"{missing.size} of {catalog.file_count} {kind} are not in the map: {listed}"
        raise loaded.stale(catalog.file_path(int(missing[0])), what)
    return files


def directory_of(catalog: Catalog) -> bytes:
    """The root of a catalog; without a root, the directory of the first file."""
    return catalog.root or os.path.dirname(os.path.realpath(catalog.file_path(0)))


def kind_of_files(catalog: Catalog) -> str:
    """The word for a catalog's files in messages."""
    return "samples" if catalog.ranges is None else "containers"


def _finder(
    known: dict[bytes, int], catalog: Catalog, mapped_root: bytes
) -> Callable[[bytes], int]:
    """A function that maps the name of a catalog's file to its index in the map, or -1."""
    root = os.path.realpath(catalog.root or b".")
    prefix = _prefix(root, mapped_root)
    if prefix is None:  # perhaps mounted elsewhere: then the ends of the two paths agree
        parts = root.split(b"/")
        ends = (b"/".join(parts[start:]) for start in range(len(parts), 0, -1))
        prefixes = (end + b"/" if end else b"" for end in ends)
        first = catalog.file_name(0)
        prefix = next((prefix for prefix in prefixes if prefix + first in known), b"")

    def find(name: bytes) -> int:
        file = known.get(prefix + name)
        if file is None:  # "./a/b", "a//b", or an absolute path
            file = known.get(_relative(os.path.join(mapped_root, prefix, name), mapped_root))
        if file is None:  # from a directory above the mapped one, or through a link
            directory, base = os.path.split(os.path.join(root, name))
            path = os.path.join(os.path.realpath(directory), base)
            file = known.get(_relative(path, mapped_root))
        if file is None:  # a link to a file
            file = known.get(_relative(os.path.realpath(path), mapped_root))
        return -1 if file is None else file

    return find


def _relative(path: bytes, root: bytes) -> bytes:
    return os.path.relpath(os.path.normpath(path), root)


def _prefix(root: bytes, mapped_root: bytes) -> bytes | None:
    """The prefix of a catalog's names in the map; None if its root is outside the mapped root.

    Directories are compared by identity, not by path: a file system may have several mounts.
    """
    try:
        wanted = os.stat(mapped_root)
        above = root
        while not os.path.samestat(os.stat(above), wanted):
            if above == b"/":
                return None
            above = os.path.dirname(above)
    except OSError:
        return None
    relative = _relative(root, above)
    return b"" if relative == b"." else relative + b"/"
