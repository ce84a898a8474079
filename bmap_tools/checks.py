"""Plausibility checks of a map.

A reader of a raw device trusts the addresses of its map. An impossible map is therefore refused:
names that leave the root, extents that overlap in their file or lie outside of the device. All
functions raise MapFormatError.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .bmap_json import INT64_MAX, MapFormatError, path_repr, short_repr
from .extent_map import UNWRITTEN, ExtentMap, IntArray

MAX_FILE_BYTES = 2**48
"""More than any memory; and the sizes of up to 32,767 such files add up to less than 2**63."""

_MAX_LENGTH = 2**62  # bytes: the sum of two such numbers fits in 64 bits
_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs")
_BLOCK_SIZES = [2**power for power in range(9, 17)]
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class PathChecks:
    """Checks of all paths of a map, added in groups and not kept."""

    def __init__(self) -> None:
        self._hashes = array("q")
        self._classes: dict[bytes, bytes] = {}  # first component -> the first path with it

    def add(self, paths: Sequence[bytes]) -> None:
        """Refuse absolute paths, and paths with ".", ".." or empty components."""
        joined = b"\0%b\0" % b"\0".join(paths)
        components = joined.replace(b"/", b"\0")
        if any(bad in components for bad in (b"\0\0", b"\0.\0", b"\0..\0")):
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
        """Refuse paths that occur twice, or have a first component not in `directories`.

        `paths` are all paths once more, read only if two have the same hash.
        """
        if unknown := self._classes.keys() - set(directories):
            directory = min(unknown)
            first = path_repr(self._classes[directory])
            raise MapFormatError(f"{first}: {path_repr(directory)} is not in directories")
        hashes = np.sort(self._hashes)
        if (hashes[1:] != hashes[:-1]).all():
            return
        seen: set[bytes] = set()
        for path in paths:
            if path in seen:
                raise MapFormatError(f"{path_repr(path)}: the path occurs twice")
            seen.add(path)


def check(extent_map: ExtentMap, paths: PathChecks) -> None:
    """Refuse an impossible map; all its names have been added to `paths`."""
    for holds, rule in _header_rules(extent_map):
        if not holds:
            raise MapFormatError(rule)
    _check_directories(extent_map.directories)
    paths.finish(extent_map.directories, map(extent_map.name, range(len(extent_map))))
    _check_range(extent_map, "size", extent_map.sizes, MAX_FILE_BYTES)
    _check_range(extent_map, "inode", extent_map.inodes, INT64_MAX)
    _check_extents(extent_map)


def _header_rules(extent_map: ExtentMap) -> Iterator[tuple[bool, str]]:
    """The result of each rule, and its message. A rule relies on the previous rules."""
    created, root = extent_map.created, extent_map.root
    yield (
        _is_time(created),
        f"created must be a time in UTC like '2026-11-21T15:00:00Z', not {short_repr(created)}",
    )
    yield root.startswith(b"/"), f"root must be an absolute path, not {path_repr(root)}"
    device, block = extent_map.device, extent_map.device.logical_block_size
    yield (
        block in _BLOCK_SIZES,
        f"device: logical_block_size must be one of {_BLOCK_SIZES}, not {block}",
    )
    for name, minimum in (("size", block), ("disk_size", block), ("start", 0)):
        value = getattr(device, name)
        yield (
            value >= minimum and value % block == 0,
            f"device: {name} must be a multiple of logical_block_size, {block}, and at least "
            f"{minimum}, not {value}",
        )
    yield (
        device.start + device.size <= device.disk_size,
        f"device: start {device.start} plus size {device.size} exceeds disk_size "
        f"{device.disk_size}",
    )
    yield (
        device.path != device.disk or device.size == device.disk_size,
        f"device: path is disk, but size {device.size} is not disk_size {device.disk_size}",
    )
    for name, path in (("path", device.path), ("disk", device.disk)):
        rule = f"device: {name} must be an absolute path, not {short_repr(path)}"
        yield path.startswith("/"), rule
    file_system, names = extent_map.file_system, ", ".join(_FILE_SYSTEMS)
    yield (
        file_system.type in _FILE_SYSTEMS,
        f"file_system: type must be one of {names}, not {short_repr(file_system.type)}",
    )
    yield (
        _UUID.fullmatch(file_system.uuid) is not None,
        f"file_system: uuid must be 8-4-4-4-12 lower-case hexadecimal digits, "
        f"not {short_repr(file_system.uuid)}",
    )
    yield (
        file_system.block_size in _BLOCK_SIZES and file_system.block_size >= block,
        f"file_system: block_size must be one of {_BLOCK_SIZES} and at least the device's "
        f"logical_block_size, {block}, not {file_system.block_size}",
    )


def _is_time(created: str) -> bool:
    try:
        return datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ").isoformat() + "Z" == created
    except ValueError:
        return False


def _check_directories(directories: Sequence[bytes]) -> None:
    for name in directories:
        if b"/" in name or not _is_plain(name):
            raise MapFormatError(f"directories: {path_repr(name)} is not the name of a directory")
    for before, name in pairwise(directories):
        if before >= name:
            what = f"{path_repr(name)} after {path_repr(before)}"
            raise MapFormatError(f"directories: {what}: names must be in byte order, each once")


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
    # Space may be reserved beyond the last block, and is never read.
    refuse(
        (physical != UNWRITTEN) & (length > size_in_blocks[file] - logical),
        "ends beyond the last file system block of the file",
    )
    overlapping = np.zeros(len(file), bool)
    overlapping[1:] = (np.diff(file) == 0) & (np.diff(logical) < length[:-1])
    refuse(overlapping, "begins before the end of the previous one")


def _is_plain(path: bytes) -> bool:
    """Test if a path only leads down from its start: not "", "/a", "a//b", "a/", "./a", "a/.."."""
    return {b"", b".", b".."}.isdisjoint(path.split(b"/"))
