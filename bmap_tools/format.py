"""The file format `bmap`: loading and saving an extent map (docs/bmap.md)."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np

from .atomic import replacing
from .bmap_json import MapFormatError, Members, OtherLayout, read_document, read_lines, to_text
from .checks import check
from .columns import COLUMNS, Columns, as_array, lines, path_checks
from .extent_map import Device, ExtentMap, FileSystem, csr_offsets

PathLike: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_KNOWN = {"format": "bmap", "version": 1, "columns": list(COLUMNS)}
_DIGEST_BYTES = 16
_ROWS_PER_GROUP = 128


def load(path: PathLike) -> ExtentMap:
    """Read a map. A million files need about 3 s and 220 MiB.

    The map is checked as far as possible without the device: see docs/bmap.md.

    Raises:
        MapFormatError: the file is not a map, or is inconsistent or damaged.
        OSError: the file cannot be read.
    """
    with _named(path), open(path, "rb") as file:
        with suppress(OtherLayout):
            return _read(*read_lines(file))
        file.seek(0)
        document = read_document(file)
        rows = Members("the map", document).groups("files", _ROWS_PER_GROUP)
        return _read(document, rows)


def save(extent_map: ExtentMap, path: PathLike) -> None:
    """Write a map to a temporary file beside `path` and rename it: all or nothing.

    For a symbolic link `path`, its target is replaced and the link stays.

    Raises:
        MapFormatError: load() would refuse this map.
        OSError: the file cannot be written.
    """
    with _named(path):
        check(extent_map, path_checks(extent_map))
    header = _KNOWN | {"created": extent_map.created, "creator": "bmap_tools"}
    header |= _described(extent_map) | {"digest": digest(extent_map)}
    members = [f"{json.dumps(name)}: {json.dumps(value)},\n" for name, value in header.items()]
    with replacing(os.fsdecode(path)) as file:
        file.write(("{\n" + "".join(members) + '"files": [').encode("ascii"))
        for number, line in enumerate(lines(extent_map)):
            file.write(f"{',' * (number > 0)}\n{line}".encode("ascii"))
        file.write(b"\n]\n}\n")


def digest(extent_map: ExtentMap) -> str:
    """Compute the BLAKE2b (RFC 7693) of all data that readers need, 32 hexadecimal digits.

    The digest detects damage and edits, not malice. docs/bmap.md has the definition.
    """
    header = _described(extent_map) | {"unmapped": sorted(extent_map.unmapped.items())}
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    hashed = hashlib.blake2b(text.encode("ascii"), digest_size=_DIGEST_BYTES)
    hashed.update(extent_map.names)
    for column in (
        *(extent_map.name_offsets, extent_map.sizes, extent_map.inodes),
        *(extent_map.mtimes_ns, extent_map.ctimes_ns),
        *(extent_map.extent_offsets, extent_map.extents),
    ):
        hashed.update(np.ascontiguousarray(column, "<i8").data)
    return hashed.hexdigest()


@contextmanager
def _named(path: PathLike) -> Iterator[None]:
    try:
        yield
    except MapFormatError as error:
        raise MapFormatError(f"{os.fsdecode(path)}: {error}") from None


def _described(extent_map: ExtentMap) -> dict[str, Any]:
    """The members that describe the mapped data, in the order of the file."""
    return {
        "created": extent_map.created,
        "root": to_text([extent_map.root])[0],
        "file_system": dataclasses.asdict(extent_map.file_system),
        "device": dataclasses.asdict(extent_map.device),
        "directories": to_text(extent_map.directories),
    }


def _read(header: dict[str, Any], groups: Iterable[list[Any]]) -> ExtentMap:
    members = Members("the map", header)
    for name, known in _KNOWN.items():  # first, because in another version all the rest may differ
        value = members[name]
        if type(value) is not type(known) or value != known:  # True == 1
            raise members.error(name, f"{known!r}, the only supported value")
    columns = Columns()
    for rows in groups:
        if rows:
            columns.add(rows)
    members.text("creator")
    sizes, inodes, mtimes_ns, ctimes_ns = map(as_array, columns.numbers.values())
    extent_map = ExtentMap(
        root=members.text("root").encode("utf-8", "surrogateescape"),
        created=members.text("created"),
        file_system=FileSystem(**_fields(FileSystem, "file_system", members)),
        device=Device(**_fields(Device, "device", members)),
        directories=members.names("directories"),
        names=bytes(columns.names),
        name_offsets=csr_offsets(columns.name_sizes),
        sizes=sizes,
        inodes=inodes,
        mtimes_ns=mtimes_ns,
        ctimes_ns=ctimes_ns,
        extent_offsets=csr_offsets(columns.extent_counts),
        extents=as_array(columns.extents).reshape(-1, 3),
        unmapped=columns.unmapped,
    )
    check(extent_map, columns.paths)
    if members["digest"] != digest(extent_map):
        raise MapFormatError("the digest does not match: the map was damaged or edited; renew it")
    return extent_map


def _fields(kind: type[FileSystem | Device], name: str, members: Members) -> dict[str, Any]:
    found = Members(name, members[name])
    read: Any = {str: found.text, int: found.integer, str | None: found.text_or_null}
    return {field.name: read[field.type](field.name) for field in dataclasses.fields(kind)}
