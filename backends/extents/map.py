"""Extent maps and catalogs: which file of a map is which sample."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

import bmap_tools
from bmap_tools.extent_map import ExtentMap

from ..._types import IntArray, PathLike
from ...catalog import Catalog
from ...errors import StaleMapError

_Key: TypeAlias = tuple[str, int, int, int, int]

_loaded: weakref.WeakValueDictionary[_Key, ExtentMap] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class LoadedMap:
    """An extent map, and the command that renews it.

    Attributes:
        map: the extent map.
        renew: what a user is told to do about a stale map.
    """

    map: ExtentMap
    renew: str

    def stale(self, path: bytes, what: str) -> StaleMapError:
        """The error of a sample that is not as it was mapped."""
        return StaleMapError(path, what, self.renew)

    def other_device(self, path: str, what: str) -> StaleMapError:
        """The error of a device that is not the mapped one."""
        return self.stale(os.fsencode(path), f"this is not the mapped device: {what}")


def load_map(bmap: PathLike) -> LoadedMap:
    """The map in a file. All who hold the map of one unchanged file hold the same ExtentMap.

    Raises:
        MapFormatError, OSError: as `bmap_tools.load()`.
        TypeError: `bmap` is no path.
    """
    try:
        path = os.fsdecode(bmap)
    except TypeError:
        raise TypeError(f"bmap must be the path of a bmap.json, not {bmap!r}") from None
    status = os.stat(path)
    key = (path, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    found = _loaded.get(key)
    if found is None:
        found = _loaded[key] = bmap_tools.load(path)
    root = os.fsdecode(found.root)
    return LoadedMap(found, f"renew the map: python -m bmap_tools create {root!r} -o {path!r}")


class MapTree:
    """The directories and files of a map, as a catalog lists them: a `dali_storage.catalog.Tree`.

    Attributes:
        root: the directory that was mapped.
        extent_map: kept, so that a reader which is opened next need not load it again.
    """

    def __init__(self, mapped: ExtentMap) -> None:
        self.root = mapped.root
        self.extent_map = mapped
        self._files: dict[bytes, array[int]] | None = None

    def directories(self) -> list[bytes]:
        """The names of the directories in the root."""
        return list(self.extent_map.directories)

    def files(self, directory: bytes) -> list[bytes]:
        """The names of the files that are directly in one of the directories."""
        if self._files is None:
            self._files = self._by_directory()
        skip = len(directory) + 1
        return [self.extent_map.name(file)[skip:] for file in self._files.get(directory, ())]

    def _by_directory(self) -> dict[bytes, array[int]]:
        mapped = self.extent_map
        slashes = np.flatnonzero(np.frombuffer(mapped.names, np.uint8) == ord("/"))
        starts, ends = np.searchsorted(slashes, mapped.name_offsets[:-1]), mapped.name_offsets[1:]
        direct = np.flatnonzero(np.searchsorted(slashes, ends) - starts == 1)
        found: dict[bytes, array[int]] = {}
        names = zip(
            mapped.name_offsets[:-1][direct].tolist(), slashes[starts[direct]].tolist(), strict=True
        )
        for file, (start, slash) in zip(direct.tolist(), names, strict=True):
            found.setdefault(mapped.names[start:slash], array("q")).append(file)
        return found


def files_of(catalog: Catalog, loaded: LoadedMap) -> IntArray:
    """Which file of the map each sample is: int64[n].

    Raises:
        StaleMapError: samples that are not in the map; names the first few and their number.
    """
    mapped = loaded.map
    if catalog.names == mapped.names and np.array_equal(catalog.offsets, mapped.name_offsets):
        return np.arange(len(catalog))
    known = {mapped.name(file): file for file in range(len(mapped))}
    find = _finder(known, catalog, os.path.realpath(mapped.root))
    names = map(catalog.name, range(len(catalog)))
    files = np.fromiter(map(find, names), np.int64, len(catalog))
    missing = np.flatnonzero(files < 0)
    if missing.size:
        few = ", ".join(repr(os.fsdecode(catalog.name(sample))) for sample in missing[:3].tolist())
        what = f"{missing.size} of {len(catalog)} samples are not in the map: {few}"
        raise loaded.stale(
            catalog.path(int(missing[0])), what + (", ..." if missing.size > 3 else "")
        )
    return files


def _finder(
    known: dict[bytes, int], catalog: Catalog, mapped_root: bytes
) -> Callable[[bytes], int]:
    """Tells by a sample's name which file of the map it is; -1 where it is none."""
    root = os.path.realpath(catalog.root or b".")
    prefix = _place(root, mapped_root)
    if prefix is None:  # it may be mounted elsewhere; the end of its path is what they share
        parts = root.split(b"/")
        ends = (b"/".join(parts[start:]) for start in range(len(parts), 0, -1))
        prefixes = (end + b"/" if end else b"" for end in ends)
        first = catalog.name(0)
        prefix = next((prefix for prefix in prefixes if prefix + first in known), b"")

    def find(name: bytes) -> int:
        file = known.get(prefix + name)
        if file is None:  # "./a/b", "a//b", or an absolute path
            file = known.get(_way(os.path.join(mapped_root, prefix, name), mapped_root))
        if file is None:  # from a directory above the mapped one, or through a link
            directory, base = os.path.split(os.path.join(root, name))
            file = known.get(_way(os.path.join(os.path.realpath(directory), base), mapped_root))
        return -1 if file is None else file

    return find


def _way(path: bytes, root: bytes) -> bytes:
    return os.path.relpath(os.path.normpath(path), root)


def _place(root: bytes, mapped_root: bytes) -> bytes | None:
    """What stands before the names of a catalog in the map, where its root is in the mapped one.

    It is the same directory that counts, not its path: it may be mounted in several places.
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
    way = _way(root, above)
    return b"" if way == b"." else way + b"/"
