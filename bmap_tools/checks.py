"""Whether a map can be true.

A reader of a raw device reads where its map says. So whatever can be seen to be impossible is
refused: names that leave the root, extents that overlap in their file or are outside the device.
All functions raise MapFormatError.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .bmap_json import INT64_MAX, MapFormatError, path_repr, short_repr
from .extent_map import UNWRITTEN, Device, ExtentMap, FileSystem, IntArray

MAX_FILE_BYTES = 2**48
"""Larger than any memory; and the sizes of up to 32,767 such files add up to less than 2**63."""

_MAX_LENGTH = 2**62  # bytes: the sum of two such numbers fits in 64 bits
_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs")
_BLOCK_SIZES = [2**power for power in range(9, 17)]
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class PathChecks:
    """Checks all paths of a map, which are added in groups and not kept."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._classes: dict[bytes, bytes] = {}  # first component -> the first path with it

    def add(self, paths: Sequence[bytes]) -> None:
        """Refuse paths that are not relative or have ".", ".." or empty components.

        Args:
            paths: the next paths, at least one.
        """
        joined = b"\0%b\0" % b"\0".join(paths)
        components = joined.replace(b"/", b"\0")
        if b"\0\0" in components or (
            b"\0." in components and (b"\0.\0" in components or b"\0..\0" in components)
        ):
            path = next(path for path in paths if not _is_plain(path))
            raise MapFormatError(
                f"{path_repr(path)}: a path must be relative to the root, without '.', '..' and "
                f"empty components"
            )
        self._hashes.extend(map(hash, paths))
        directory, slash, _ = paths[0].partition(b"/")
        if slash and joined.count(b"\0%b/" % directory) == len(paths):  # the usual case
            self._classes.setdefault(directory, paths[0])
        else:
            firsts = {path.partition(b"/")[0]: path for path in reversed(paths) if b"/" in path}
            self._classes = firsts | self._classes

    def finish(self, directories: Iterable[bytes], paths: Iterable[bytes]) -> None:
        """Refuse paths that are there twice, or whose first component is not in `directories`.

        Args:
            directories: those that the map lists.
            paths: all paths once more; they are only read if two have the same hash.
        """
        if unknown := self._classes.keys() - set(directories):
            directory = min(unknown)
            raise MapFormatError(
                f"{path_repr(self._classes[directory])}: {path_repr(directory)} is not in "
                f"directories"
            )
        hashes = np.sort(self._hashes)
        if (hashes[1:] != hashes[:-1]).all():
            return
        seen: set[bytes] = set()
        for path in paths:
            if path in seen:
                raise MapFormatError(f"{path_repr(path)}: the path is there twice")
            seen.add(path)


def check(extent_map: ExtentMap, paths: PathChecks) -> None:
    """Refuse a map that cannot be true; all its names have been added to `paths`."""
    _check_created(extent_map.created)
    if not extent_map.root.startswith(b"/"):
        raise MapFormatError(f"root must be an absolute path, not {path_repr(extent_map.root)}")
    _check_device(extent_map.device)
    _check_file_system(extent_map.file_system, extent_map.device)
    _check_directories(extent_map.directories)
    paths.finish(extent_map.directories, map(extent_map.name, range(len(extent_map))))
    _check_range(extent_map, "size", extent_map.sizes, MAX_FILE_BYTES)
    _check_range(extent_map, "inode", extent_map.inodes, INT64_MAX)
    _check_extents(extent_map)


def _check_created(created: str) -> None:
    if _CREATED.fullmatch(created):
        with suppress(ValueError):
            datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
            return
    raise MapFormatError(
        f"created must be a time in UTC like '2026-11-21T15:00:00Z', not {short_repr(created)}"
    )


def _check_device(device: Device) -> None:
    block = device.logical_block_size
    if block not in _BLOCK_SIZES:
        raise MapFormatError(
            f"device: logical_block_size must be one of {_BLOCK_SIZES}, not {block}"
        )
    for name, minimum in (("size", block), ("disk_size", block), ("start", 0)):
        value = getattr(device, name)
        if value < minimum or value % block:
            raise MapFormatError(
                f"device: {name} must be a multiple of logical_block_size, {block}, "
                f"and at least {minimum}, not {value}"
            )
    if device.start + device.size > device.disk_size:
        raise MapFormatError(
            f"device: start {device.start} plus size {device.size} exceeds disk_size "
            f"{device.disk_size}"
        )
    if device.path == device.disk and device.size != device.disk_size:
        raise MapFormatError(
            f"device: path is disk, but size {device.size} is not disk_size {device.disk_size}"
        )
    for name in ("path", "disk"):
        if not getattr(device, name).startswith("/"):
            raise MapFormatError(
                f"device: {name} must be an absolute path, not {short_repr(getattr(device, name))}"
            )


def _check_file_system(file_system: FileSystem, device: Device) -> None:
    if file_system.type not in _FILE_SYSTEMS:
        raise MapFormatError(
            f"file_system: type must be one of {', '.join(_FILE_SYSTEMS)}, "
            f"not {short_repr(file_system.type)}"
        )
    if not _UUID.fullmatch(file_system.uuid):
        raise MapFormatError(
            f"file_system: uuid must be 8-4-4-4-12 lower-case hexadecimal digits, "
            f"not {short_repr(file_system.uuid)}"
        )
    block = file_system.block_size
    if block not in _BLOCK_SIZES or block < device.logical_block_size:
        raise MapFormatError(
            f"file_system: block_size must be one of {_BLOCK_SIZES} and at least the device's "
            f"logical_block_size, {device.logical_block_size}, not {block}"
        )


def _check_directories(directories: Sequence[bytes]) -> None:
    for name in directories:
        if b"/" in name or not _is_plain(name):
            raise MapFormatError(f"directories: {path_repr(name)} is not the name of a directory")
    for before, name in pairwise(directories):
        if before >= name:
            raise MapFormatError(
                f"directories: {path_repr(name)} after {path_repr(before)}: names must be in byte "
                f"order, each once"
            )


def _check_range(extent_map: ExtentMap, name: str, column: IntArray, maximum: int) -> None:
    bad = (column < 0) | (column > maximum)
    if bad.any():
        file = int(bad.argmax())
        raise MapFormatError(
            f"{path_repr(extent_map.name(file))}: {name} must be from 0 to {maximum}, "
            f"not {column[file]}"
        )


def _check_extents(extent_map: ExtentMap) -> None:
    # Sums could overflow. Differences cannot: only UNWRITTEN is negative.
    device, block = extent_map.device, extent_map.file_system.block_size
    file = np.repeat(np.arange(len(extent_map)), np.diff(extent_map.extent_offsets))
    logical, physical, length = extent_map.extents.T
    size_in_blocks = -(-extent_map.sizes // block) * block

    def refuse(bad: npt.NDArray[np.bool_], what: str) -> None:
        if bad.any():
            extent = int(bad.argmax())
            raise MapFormatError(
                f"{path_repr(extent_map.name(file[extent]))}: the extent "
                f"{extent_map.extents[extent].tolist()} {what}"
            )

    refuse((logical < 0) | (physical < UNWRITTEN) | (length <= 0), "has no length, or is negative")
    written = np.where(physical == UNWRITTEN, 0, physical)
    refuse(
        (logical | written | length) & (device.logical_block_size - 1) != 0,
        f"does not consist of whole logical blocks of {device.logical_block_size} bytes",
    )
    refuse(
        (physical != UNWRITTEN) & (physical > device.size - length),
        f"ends beyond the device's {device.size} bytes",
    )
    refuse((logical > _MAX_LENGTH) | (length > _MAX_LENGTH), "is larger than a file can be")
    # Space may be reserved beyond the last block. It is never read.
    refuse(
        (physical != UNWRITTEN) & (length > size_in_blocks[file] - logical),
        "ends beyond the last file system block of the file",
    )
    overlapping = np.zeros(len(file), bool)
    overlapping[1:] = (np.diff(file) == 0) & (np.diff(logical) < length[:-1])
    refuse(overlapping, "begins before the end of the previous one")


def _is_plain(path: bytes) -> bool:
    """Whether a path leads down from where it begins: not "", "/a", "a//b", "a/", "./a", "a/.."."""
    return {b"", b".", b".."}.isdisjoint(path.split(b"/"))
