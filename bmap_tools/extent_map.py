"""Extent maps as values: the locations of many files' bytes on a block device.

A map consists of numpy columns, 72 bytes per file of one extent plus its name. Data of variable
length, names and extents, is stored one file after another (as compressed sparse rows, CSR),
together with the offsets at which each file's part begins and ends.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]

UNWRITTEN = -1
"""The physical address of an extent reserved but never written, which reads as zeros."""


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The identity of the file system that holds the mapped files.

    Attributes:
        type: "ext2", "ext3", "ext4" or "xfs".
        uuid: in lower case, with hyphens.
        block_size: bytes.
    """

    type: str
    uuid: str
    block_size: int


@dataclass(frozen=True, slots=True)
class Device:
    """The block device of a file system, and its disk.

    Attributes:
        path: the device's path, such as "/dev/nvme0n1p2".
        size: the device's size in bytes.
        logical_block_size: bytes; the LBA size.
        disk: "/dev/nvme0n1"; equal to `path` for a whole disk.
        disk_size: bytes.
        start: offset of the device on the disk, bytes; 0 for a whole disk.
        serial: the serial number of the disk, or None.
        wwid: the disk's identifier (EUI-64, NGUID, NAA), or None.
        backing_file: the image of a loop device.
    """

    path: str
    size: int
    logical_block_size: int
    disk: str
    disk_size: int
    start: int
    serial: str | None
    wwid: str | None
    backing_file: str | None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ExtentMap:
    """The locations of the bytes of n files, in m extents, as columns.

    Files are in the order of the bmap.json. `bmap_tools create` writes files in the root first,
    then class directory by class directory, both in byte order of their names.

    Attributes:
        root: absolute path of the directory; names are relative to the root.
        created: the time of creation, ISO 8601, UTC.
        file_system: the file system of the files.
        device: the block device of the file system.
        directories: names of all directories directly in the root, empty ones included, in byte
            order; a link to a directory counts. Their indices are DALI's labels.
        names: all names, one after another, without separators.
        name_offsets: int64[n + 1]; file i is `names[name_offsets[i]:name_offsets[i + 1]]`.
        sizes: int64[n], bytes, exact.
        inodes: int64[n].
        mtimes_ns: int64[n], nanoseconds since 1970.
        ctimes_ns: int64[n], nanoseconds since 1970.
        extent_offsets: int64[n + 1]; file i has the extents
            `extents[extent_offsets[i]:extent_offsets[i + 1]]`.
        extents: int64[m, 3], bytes: logical (offset in the file), physical (offset on the device,
            or UNWRITTEN), length. The extents of a file are sorted by `logical` and do not overlap.
            Gaps are holes, which read as zeros. The last extent ends with a block of the file
            system, so usually beyond the file's size. Space reserved beyond this block is an
            unwritten extent as well.
        unmapped: index of a file -> the reason why no extents are stored, so that the file must be
            read as a file.
    """

    root: bytes
    created: str
    file_system: FileSystem
    device: Device
    directories: tuple[bytes, ...]
    names: bytes
    name_offsets: IntArray
    sizes: IntArray
    inodes: IntArray
    mtimes_ns: IntArray
    ctimes_ns: IntArray
    extent_offsets: IntArray
    extents: IntArray
    unmapped: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.sizes)

    def name(self, file: int) -> bytes:
        """The path of a file, relative to the root."""
        return self.names[self.name_offsets[:-1][file] : self.name_offsets[1:][file]]


def csr_offsets(counts: IntArray | Sequence[int]) -> IntArray:
    """Compute the offsets of the rows of n owners, and of the end: int64[n + 1]."""
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    return ends


def csr_rows(starts: IntArray, counts: IntArray) -> IntArray:
    """List the rows of some owners: `counts[0]` from `starts[0]` on, and so forth: int64[m]."""
    ends = np.cumsum(counts)
    return np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())


def without_reserved(
    extents: IntArray, counts: IntArray, sizes: IntArray
) -> tuple[IntArray, IntArray]:
    """Leave out extents of space reserved beyond the ends of files.

    The arguments and the result are extents, int64[m, 3] as in an ExtentMap, and their number for
    each file, int64[n]. `sizes` are the sizes of the files, int64[n], bytes.
    """
    file = np.repeat(np.arange(len(counts)), counts)
    inside = extents[:, 0] < sizes[file]
    return extents[inside], np.bincount(file[inside], minlength=len(counts))
