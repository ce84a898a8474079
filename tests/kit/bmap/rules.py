"""The rules of docs/bmap.md in plain Python, an oracle for load()."""

import re
from datetime import datetime
from typing import Any

from bmap_tools import Device, FileSystem
from tests.kit.bmap.documents import BLOCK_SIZES, COLUMNS, Json, document, to_bytes


def is_natural(value: object, maximum: int = 2**63 - 1) -> bool:
    return type(value) is int and 0 <= value <= maximum


def is_text(value: object) -> bool:
    """Without NUL, and without surrogates but those of bytes."""
    return isinstance(value, str) and not re.search("[\0\ud800-\udc7f\udd00-\udfff]", value)


def is_name(value: object) -> bool:
    return is_text(value) and "/" not in str(value) and value not in ("", ".", "..")


def is_path(value: object, directories: list[str]) -> bool:
    if not is_text(value):
        return False
    first, *rest = str(value).split("/")
    return all(map(is_name, [first, *rest])) and (not rest or first in directories)


def is_time(value: object) -> bool:
    try:
        time = datetime.fromisoformat(str(value).removesuffix("Z"))
    except ValueError:
        return False
    return time.isoformat() + "Z" == value


def is_device(device: Any) -> bool:
    if not isinstance(device, dict) or not set(Device.__slots__) <= set(device):
        return False
    block = device["logical_block_size"]
    numbers = [device[name] for name in ("size", "disk_size", "start")]
    return (
        type(block) is int
        and block in BLOCK_SIZES
        and all(is_natural(number) and number % block == 0 for number in numbers)
        and device["size"] > 0
        and device["start"] + device["size"] <= device["disk_size"]
        and all(is_text(device[name]) for name in ("path", "disk"))
        and all(device[name][:1] == "/" for name in ("path", "disk"))
        and (device["path"] != device["disk"] or device["size"] == device["disk_size"])
        and all(device[x] is None or is_text(device[x]) for x in ("serial", "wwid", "backing_file"))
    )


def is_file_system(system: Any, device: Json) -> bool:
    return (
        isinstance(system, dict)
        and set(FileSystem.__slots__) <= set(system)
        and system["type"] in ("ext2", "ext3", "ext4", "xfs")
        and isinstance(system["uuid"], str)
        and bool(re.fullmatch("[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", system["uuid"]))
        and type(system["block_size"]) is int
        and system["block_size"] in BLOCK_SIZES
        and system["block_size"] >= device["logical_block_size"]
    )


def are_extents(value: Any, size: int, plain: Json) -> bool:
    if isinstance(value, str):
        return is_text(value)
    block, end = plain["file_system"]["block_size"], 0
    if not isinstance(value, list):
        return False
    for extent in value:
        if not isinstance(extent, list) or len(extent) != 3:
            return False
        logical, physical, length = extent
        known = [logical, length] if physical is None else extent
        if not all(map(is_natural, known)) or length == 0 or logical < end:
            return False
        if any(number % plain["device"]["logical_block_size"] for number in known):
            return False
        if physical is not None and physical + length > plain["device"]["size"]:
            return False
        end = logical + length
        if max(logical, length) > 2**62:
            return False
        if physical is not None and end > (size + block - 1) // block * block:
            return False
    return True


def is_file(row: Any, plain: Json) -> bool:
    return (
        isinstance(row, list)
        and len(row) == 6
        and is_path(row[0], plain["directories"])
        and is_natural(row[1], 2**48)
        and is_natural(row[2])
        and all(type(time) is int and -(2**63) <= time < 2**63 for time in row[3:5])
        and are_extents(row[5], row[1], plain)
    )


def is_valid(plain: Any) -> bool:
    if not isinstance(plain, dict) or not set(document()) <= set(plain):
        return False
    directories, files = plain["directories"], plain["files"]
    return (
        plain["format"] == "bmap"
        and type(plain["version"]) is int
        and plain["version"] == 1
        and plain["columns"] == COLUMNS
        and is_text(plain["creator"])
        and is_time(plain["created"])
        and is_text(plain["root"])
        and plain["root"][:1] == "/"
        and is_device(plain["device"])
        and is_file_system(plain["file_system"], plain["device"])
        and isinstance(directories, list)
        and all(map(is_name, directories))
        and sorted({to_bytes(name) for name in directories}) == list(map(to_bytes, directories))
        and isinstance(files, list)
        and all(is_file(row, plain) for row in files)
        and len({to_bytes(row[0]) for row in files}) == len(files)
    )
