"""Extent maps and catalogs: which file of a map is which sample."""

from __future__ import annotations

import os
import weakref
from array import array
from typing import TypeAlias

import numpy as np

from bmap_tools import extent_map
from bmap_tools.extent_map import ExtentMap

from ..catalog import Catalog
from ..errors import StaleMapError
from ..reader import IntArray

PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]
_Key: TypeAlias = tuple[str, int, int, int, int]

_loaded: weakref.WeakValueDictionary[_Key, ExtentMap] = weakref.WeakValueDictionary()


def load(bmap: PathLike) -> ExtentMap:
    """The map in a file. All who hold the map of one unchanged file hold the same object.

    Raises:
        MapFormatError, OSError: as `bmap_tools.extent_map.load()`.
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
        found = _loaded[key] = extent_map.load(path)
    return found


def renewal(mapped: ExtentMap, bmap: PathLike) -> str:
    """The command that renews a map."""
    root = os.fsdecode(mapped.root)
    return f"renew the map: python -m bmap_tools create {root!r} -o {os.fsdecode(bmap)!r}"


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


def files_of(catalog: Catalog, mapped: ExtentMap, remedy: str) -> IntArray:
    """Which file of the map each sample is: int64[n].

    Raises:
        StaleMapError: samples that are not in the map; names the first few and their number.
    """
    if catalog.names == mapped.names and np.array_equal(catalog.offsets, mapped.name_offsets):
        return np.arange(len(catalog))
    known = {mapped.name(file): file for file in range(len(mapped))}
    prefix = _place(catalog.root, mapped.root)
    names = map(catalog.name, range(len(catalog)))
    files = np.fromiter(
        (_find(known, prefix, name, mapped.root) for name in names), np.int64, len(catalog)
    )
    missing = np.flatnonzero(files < 0)
    if missing.size:
        few = ", ".join(repr(os.fsdecode(catalog.name(sample))) for sample in missing[:3].tolist())
        what = f"{missing.size} of {len(catalog)} samples are not in the map: {few}"
        raise StaleMapError(
            catalog.path(int(missing[0])), what + (", ..." if missing.size > 3 else ""), remedy
        )
    return files


def _place(root: bytes, mapped_root: bytes) -> bytes:
    """What stands before the names of a catalog in the map: the way from one root to the other.

    A catalog's root that is not below the map's is taken for the same tree, mounted elsewhere.
    """
    real = os.path.realpath(root or b".")
    if real.startswith(mapped_root.rstrip(b"/") + b"/"):
        return real[len(mapped_root.rstrip(b"/")) + 1 :] + b"/"
    return b""


def _find(known: dict[bytes, int], prefix: bytes, name: bytes, mapped_root: bytes) -> int:
    found = known.get(prefix + name)
    if found is None:  # "./a/b", "a//b", or an absolute path
        path = os.path.normpath(os.path.join(mapped_root, prefix, name))
        found = known.get(os.path.relpath(path, mapped_root), -1)
    return found
