"""Extent maps, and `bmap.json`, the file that they are kept in (docs/bmap.md).

A map says where on a block device the bytes of files are, and how to tell that this is still so.
It is made of numpy columns, 72 bytes a file of one extent beside its name.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from .bmap_json import Document, MapFormatError
from .bmap_members import Members, to_text
from .checks import check
from .columns import COLUMNS, Columns, as_array, lines, path_checks
from .csr import IntArray as IntArray
from .digest import digest
from .replacing import replacing

__all__ = ["Device", "ExtentMap", "FileSystem", "MapFormatError", "load", "save"]

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_KNOWN = {"format": "bmap", "version": 1, "columns": list(COLUMNS)}


@dataclass(frozen=True, slots=True)
class FileSystem:
    """The file system that the files are in.

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
    """The block device that a file system is on, and the disk that it is a part of.

    Attributes:
        path: of the device, "/dev/nvme0n1p2".
        size: of the device, bytes.
        logical_block_size: bytes; the LBA size.
        disk: "/dev/nvme0n1"; the same as `path` where that is a whole disk.
        disk_size: bytes.
        start: bytes from the beginning of the disk to that of `path`; 0 for a whole disk.
        serial: of the disk, where it has one.
        wwid: of the disk (EUI-64, NGUID, NAA), where it has one.
        backing_file: of a loop device: the image.
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
    """Where the bytes of n files are, in m extents, as columns.

    The files are in the order of the map's file. `bmap_tools create` writes those in the root
    first, then class directory by class directory, both in byte order of their names.

    Attributes:
        root: absolute path of the directory that names are relative to.
        created: when the map was made, ISO 8601, UTC.
        file_system: the one that the files are in.
        device: the one that the file system is on.
        directories: the names of all sub-directories directly in the root, empty ones too, in byte
            order; a link to a directory counts. Their places are the labels that DALI gives.
        names: all names, one after another, nothing in between.
        name_offsets: int64[n + 1]; file i is `names[name_offsets[i]:name_offsets[i + 1]]`.
        sizes: int64[n], bytes, exact.
        inodes: int64[n].
        mtimes_ns: int64[n], nanoseconds since 1970.
        ctimes_ns: int64[n], nanoseconds since 1970.
        extent_offsets: int64[n + 1]; file i has the extents
            `extents[extent_offsets[i]:extent_offsets[i + 1]]`.
        extents: int64[m, 3], bytes: logical (in the file), physical (on the device; -1 where
            nothing was written, which reads as zeros), length. In each file in the order of
            `logical`, without overlap. What no extent covers is a hole and reads as zeros. The last
            one ends with a block of the file system, so mostly beyond the file's size. Space that
            is reserved beyond that block is an unwritten extent as well.
        unmapped: file -> why it has no extents and must be read as a file.
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


def load(path: Path) -> ExtentMap:
    """Read a map. It takes 2 s for a million files.

    What it says has been checked as far as a map can be checked without the device: see
    docs/bmap.md.

    Raises:
        MapFormatError: this is no map, or one that cannot be true.
        OSError: the file cannot be read.
    """
    with _named(path), open(path, "rb", buffering=0) as file:
        return _read(Document(file))


def save(extent_map: ExtentMap, path: Path) -> None:
    """Write a map to a temporary file beside `path` and rename it: complete, or not there at all.

    A symbolic link at `path` stays, and its target is written.

    Raises:
        MapFormatError: load() would refuse this map.
        OSError: the file cannot be written.
    """
    with _named(path):
        check(extent_map, path_checks(extent_map))
    members = [f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in _header(extent_map)]
    with replacing(os.path.realpath(os.fsdecode(path))) as file:
        file.write("{\n" + "".join(members) + '"files": [')
        separator = "\n"
        for line in lines(extent_map):
            file.write(separator + line)
            separator = ",\n"
        file.write("\n]\n}\n")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except MapFormatError as error:
        raise MapFormatError(f"{os.fsdecode(path)}: {error}") from None


def _header(extent_map: ExtentMap) -> list[tuple[str, Any]]:
    """The members before the files, one a line."""
    return [
        *_KNOWN.items(),
        ("created", extent_map.created),
        ("creator", "bmap_tools"),
        ("root", to_text([extent_map.root])[0]),
        ("file_system", dataclasses.asdict(extent_map.file_system)),
        ("device", dataclasses.asdict(extent_map.device)),
        ("directories", to_text(extent_map.directories)),
        ("digest", digest(extent_map)),
    ]


def _read(document: Document) -> ExtentMap:
    columns: Columns | None = None
    header: dict[str, Any] = {}
    members = Members("the map", header)
    for name in document.members():
        if name == "files":
            columns = Columns()
            for rows in document.elements():
                columns.add(rows)
        else:
            header[name] = document.value()
            if name in _KNOWN:  # at once: in another version all the rest may differ
                _check_known(members, name)
    for name in _KNOWN:
        _check_known(members, name)
    if columns is None:
        raise MapFormatError("the map has no member 'files'")
    extent_map = _extent_map(members, columns)
    check(extent_map, columns.paths)
    if members["digest"] != digest(extent_map):
        raise MapFormatError("its digest is another: the map was damaged or edited; make it anew")
    return extent_map


def _check_known(members: Members, name: str) -> None:
    known, value = _KNOWN[name], members[name]
    if type(value) is not type(known) or value != known:  # True == 1
        raise members.wrong(name, f"{known!r}, the only one known here")


def _extent_map(members: Members, columns: Columns) -> ExtentMap:
    members.text("creator")
    file_system = Members("file_system", members["file_system"])
    numbers = {name: as_array(values) for name, values in columns.numbers.items()}
    return ExtentMap(
        root=members.path("root"),
        created=members.text("created"),
        file_system=FileSystem(
            type=file_system.text("type"),
            uuid=file_system.text("uuid"),
            block_size=file_system.integer("block_size"),
        ),
        device=_device(Members("device", members["device"])),
        directories=members.names("directories"),
        names=bytes(columns.names),
        name_offsets=columns.name_offsets(),
        sizes=numbers["size"],
        inodes=numbers["inode"],
        mtimes_ns=numbers["mtime_ns"],
        ctimes_ns=numbers["ctime_ns"],
        extent_offsets=columns.extent_offsets(),
        extents=columns.extents(),
        unmapped=columns.unmapped,
    )


def _device(members: Members) -> Device:
    return Device(
        path=members.text("path"),
        size=members.integer("size"),
        logical_block_size=members.integer("logical_block_size"),
        disk=members.text("disk"),
        disk_size=members.integer("disk_size"),
        start=members.integer("start"),
        serial=members.text_or_null("serial"),
        wwid=members.text_or_null("wwid"),
        backing_file=members.text_or_null("backing_file"),
    )
