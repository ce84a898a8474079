"""What is required of a catalog and its map when a reader is opened."""

import os

import numpy as np
import numpy.typing as npt

from bmap_tools.extent_map import Device

from ...contract._types import IntArray
from ...contract.catalog import Catalog
from ...contract.errors import BackendUnavailable, ContainerChangedError
from ..linux.storage import Storage
from . import device
from .freshness import Freshness
from .map import LoadedMap, kind_of_files


def why_not_mounted(catalog: Catalog, loaded: LoadedMap, storage: Storage) -> str:
    """Why the mapped file system is not mounted; empty if it is, and from this storage."""
    root = directory_of(catalog)
    on = device.mounted_device(loaded.map, root)
    if isinstance(on, Device):
        device.require_mounted_from(on, root, storage, loaded)
        return ""
    first = catalog.file_path(0)
    if os.path.lexists(first):
        raise loaded.stale(first, f"this is not the file that was mapped: {on}")
    return on


def find_unmapped(
    catalog: Catalog, loaded: LoadedMap, files: IntArray, not_mounted: str
) -> npt.NDArray[np.bool_]:
    """bool[files of the map]: which of them have no extents and are read as files.

    `files` is the file of the map that each file of the catalog is.
    """
    unmapped = np.zeros(len(loaded.map), bool)
    unmapped[list(loaded.map.unmapped)] = True
    found = np.flatnonzero(unmapped[files])
    if found.size and not_mounted:
        path = os.fsdecode(catalog.file_path(int(found[0])))
        reason = loaded.map.unmapped[int(files[found[0]])]
        kind = kind_of_files(catalog)
        what = f"{found.size} {kind} can only be read as files, {path!r} first ({reason})"
        where = f"their file system is not mounted: {not_mounted}"
        raise BackendUnavailable(f"{what}, and {where}")
    return unmapped


def require_within(catalog: Catalog, loaded: LoadedMap, files: IntArray, not_mounted: str) -> None:
    """Refuse a range that is not within its file: the map is stale, or the range is wrong."""
    sizes = loaded.map.sizes[files]
    if catalog.ranges is None or (sample := catalog.ranges.first_outside(sizes)) is None:
        return
    file, path = catalog.files(np.array([sample])), catalog.path(sample)
    what = f"{catalog.where(sample)}, but the mapped file has {sizes[file[0]]:,} bytes"
    if not_mounted:
        raise loaded.stale(path, what)
    Freshness(loaded).check(files[file], [path])
    raise ContainerChangedError(path, f"{what}; make its index anew")


def directory_of(catalog: Catalog) -> bytes:
    """The directory of a catalog; of its first file, if that is given by its own path."""
    return catalog.root or os.path.dirname(os.path.realpath(catalog.file_path(0)))
