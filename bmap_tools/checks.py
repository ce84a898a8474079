"""Whether a map can be true: what a reader of raw devices must know before it believes one.

Whoever reads through a map reads where it says. So what can be seen to be impossible is refused:
names that leave the root, extents that overlap in their file or lie outside the device.
All functions raise MapFormatError.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .bmap_json import MapFormatError, shown
from .columns import UNWRITTEN
from .paths import PathChecks, is_plain, shown_path

if TYPE_CHECKING:  # extent_map imports this module
    from .extent_map import Device, ExtentMap, FileSystem

MAX_FILE_BYTES = 2**48
"""More than any memory; and the sum of a batch, up to 32,767 of the largest, fits in 64 bits."""

_IntArray = npt.NDArray[np.int64]

_FARTHEST = 2**62  # bytes: sums of two are within 64 bits
_FILE_SYSTEMS = ("ext2", "ext3", "ext4", "xfs")
_BLOCK_SIZES = [2**power for power in range(9, 17)]
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def check(extent_map: ExtentMap, paths: PathChecks) -> None:
    """Refuse a map that cannot be true; `paths` has seen all its names."""
    _check_created(extent_map.created)
    if not extent_map.root.startswith(b"/"):
        raise MapFormatError(f"root must be an absolute path, not {shown_path(extent_map.root)}")
    _check_device(extent_map.device)
    _check_file_system(extent_map.file_system, extent_map.device)
    _check_directories(extent_map.directories)
    paths.finish(extent_map.directories, map(extent_map.name, range(len(extent_map))))
    _check_range(extent_map, "size", extent_map.sizes, MAX_FILE_BYTES)
    _check_range(extent_map, "inode", extent_map.inodes, 2**63 - 1)
    _check_extents(extent_map)


def _check_created(created: str) -> None:
    if _CREATED.fullmatch(created):
        with suppress(ValueError):
            datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
            return
    raise MapFormatError(
        f"created must be a time in UTC like '2026-11-21T15:00:00Z', not {shown(created)}"
    )


def _check_device(device: Device) -> None:
    block = device.logical_block_size
    if block not in _BLOCK_SIZES:
        raise MapFormatError(f"device: logical_block_size {block} is not one of {_BLOCK_SIZES}")
    for name, minimum in (("size", block), ("disk_size", block), ("start", 0)):
        value = getattr(device, name)
        if value < minimum or value % block:
            raise MapFormatError(
                f"device: {name} must be a multiple of logical_block_size, {block}, "
                f"of at least {minimum}, not {value}"
            )
    if device.start + device.size > device.disk_size:
        raise MapFormatError(
            f"device: start {device.start} and size {device.size} go beyond disk_size, "
            f"{device.disk_size}"
        )
    if device.path == device.disk and device.size != device.disk_size:
        raise MapFormatError(
            f"device: size {device.size} is not disk_size, {device.disk_size}, and disk is path"
        )
    for name in ("path", "disk"):
        if not getattr(device, name).startswith("/"):
            raise MapFormatError(
                f"device: {name} must be an absolute path, not {shown(getattr(device, name))}"
            )


def _check_file_system(file_system: FileSystem, device: Device) -> None:
    if file_system.type not in _FILE_SYSTEMS:
        raise MapFormatError(
            f"file_system: type {shown(file_system.type)} is not one of {', '.join(_FILE_SYSTEMS)}"
        )
    if not _UUID.fullmatch(file_system.uuid):
        raise MapFormatError(
            f"file_system: uuid must be 8-4-4-4-12 lower-case hexadecimal digits, "
            f"not {shown(file_system.uuid)}"
        )
    block = file_system.block_size
    if block not in _BLOCK_SIZES or block < device.logical_block_size:
        raise MapFormatError(
            f"file_system: block_size {block} is not one of {_BLOCK_SIZES}, or smaller than the "
            f"logical_block_size of the device, {device.logical_block_size}"
        )


def _check_directories(directories: Sequence[bytes]) -> None:
    for name in directories:
        if b"/" in name or not is_plain(name):
            raise MapFormatError(f"directories: {shown_path(name)} is not the name of a directory")
    for before, name in pairwise(directories):
        if before >= name:
            raise MapFormatError(
                f"directories: {shown_path(name)} after {shown_path(before)}: the names must be in "
                f"byte order, each once"
            )


def _check_range(extent_map: ExtentMap, name: str, column: _IntArray, maximum: int) -> None:
    bad = (column < 0) | (column > maximum)
    if bad.any():
        file = int(bad.argmax())
        raise MapFormatError(
            f"{shown_path(extent_map.name(file))}: {name} must be 0 to {maximum}, "
            f"not {column[file]}"
        )


def _check_extents(extent_map: ExtentMap) -> None:
    # Sums could overflow. Differences cannot: no number is negative, but for UNWRITTEN.
    device, block = extent_map.device, extent_map.file_system.block_size
    file = np.repeat(np.arange(len(extent_map)), np.diff(extent_map.extent_offsets))
    logical, physical, length = extent_map.extents.T
    mapped_size = -(-extent_map.sizes // block) * block

    def refuse(bad: npt.NDArray[np.bool_], what: str) -> None:
        if bad.any():
            extent = int(bad.argmax())
            raise MapFormatError(
                f"{shown_path(extent_map.name(file[extent]))}: the extent "
                f"{extent_map.extents[extent].tolist()} {what}"
            )

    refuse((logical < 0) | (physical < UNWRITTEN) | (length <= 0), "has no length, or is negative")
    written = np.where(physical == UNWRITTEN, 0, physical)
    refuse(
        (logical | written | length) & (device.logical_block_size - 1) != 0,
        f"is not in whole logical blocks of {device.logical_block_size} bytes",
    )
    refuse(
        (physical != UNWRITTEN) & (physical > device.size - length),
        f"ends beyond the device's {device.size} bytes",
    )
    refuse((logical > _FARTHEST) | (length > _FARTHEST), "is larger than a file can be")
    # Space may be reserved beyond the end. It is not read.
    refuse(
        (physical != UNWRITTEN) & (length > mapped_size[file] - logical),
        "ends beyond the last file system block of the file",
    )
    overlapping = np.zeros(len(file), bool)
    overlapping[1:] = (np.diff(file) == 0) & (np.diff(logical) < length[:-1])
    refuse(overlapping, "begins before the end of the one before it")
