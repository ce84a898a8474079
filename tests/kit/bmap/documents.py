"""Maps as plain JSON: by hand and at random, their digests, and what they must load as."""

import functools
import json
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from bmap_tools import Device, ExtentMap, FileSystem
from bmap_tools.extent_map import IntArray

COLUMNS = ["path", "size", "inode", "mtime_ns", "ctime_ns", "extents"]
BLOCK_SIZES = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
UUID = "6f1b9a52-3c0e-4d59-9b07-51d0f3a1c2e4"
GIB = 1 << 30
Json = dict[str, Any]


# One directory for all examples will do.
in_a_shared_directory = settings(suppress_health_check=list(HealthCheck))


def document() -> Json:
    """A map with everything in it, as JSON objects."""
    return sealed(
        {
            "digest": "",
            "format": "bmap",
            "version": 1,
            "columns": COLUMNS.copy(),
            "created": "2026-11-21T15:00:00Z",
            "creator": "somebody",
            "root": "/data/train",
            "file_system": {"type": "ext4", "uuid": UUID, "block_size": 4096},
            "device": {
                "path": "/dev/sdx2",
                "size": GIB,
                "logical_block_size": 512,
                "disk": "/dev/sdx",
                "disk_size": 2 * GIB,
                "start": 1 << 20,
                "serial": "S5GX",
                "wwid": None,
                "backing_file": None,
            },
            "directories": ["a", "b", "empty"],
            "files": [
                ["in the root", 0, 1, 0, -1, []],
                ["a/one", 5000, 2**63 - 1, 2**63 - 1, -(2**63), [[0, 4096, 8192]]],
                ["a/two", 12288, 3, 3, 3, [[0, 0, 4096], [4096, None, 4096], [8192, 81920, 4096]]],
                ["a/hole", 2**48, 4, 4, 4, [[1 << 20, GIB - 512, 512]]],
                ["b/inline", 100, 5, 5, 5, "its data lies inside of its inode"],
                ["b/deep/\udcff é 日本", 1, 6, 6, 6, [[0, 4096, 512]]],
            ],
        }
    )


def digest(plain: Json) -> str:
    """Of a map, as docs/bmap.md says, number by number."""
    files = plain["files"]
    names = [to_bytes(row[0]) for row in files]
    extents = [row[5] if isinstance(row[5], list) else [] for row in files]
    header = {name: plain[name] for name in ("created", "root", "directories")} | {
        "file_system": {slot: plain["file_system"][slot] for slot in FileSystem.__slots__},
        "device": {slot: plain["device"][slot] for slot in Device.__slots__},
        "unmapped": [[i, row[5]] for i, row in enumerate(files) if isinstance(row[5], str)],
    }
    numbers = [
        *accumulate(map(len, names), initial=0),
        *(row[column] for column in (1, 2, 3, 4) for row in files),
        *accumulate(map(len, extents), initial=0),
        *(-1 if number is None else number for row in extents for ext in row for number in ext),
    ]
    text = json.dumps(header, sort_keys=True, separators=(",", ":"))
    packed = struct.pack(f"<{len(numbers)}q", *numbers)
    return blake2b(text.encode() + b"".join(names) + packed, digest_size=16).hexdigest()


def sealed(plain: Json) -> Json:
    """The same with its digest, if it has what that is made of."""
    with suppress(KeyError, TypeError, IndexError, ValueError, AttributeError, struct.error):
        return plain | {"digest": digest(plain)}
    return plain


def write(directory: Path, content: Json | str | bytes) -> Path:
    path = directory / "bmap.json"
    if isinstance(content, dict):
        content = json.dumps(sealed(content) if "digest" in content else content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def to_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def to_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def expected(plain: Json) -> Json:
    """What load() must make of a map, from what json makes of it."""
    header = {name: plain[name] for name in ("created", "file_system", "device")}
    header["file_system"] = {name: header["file_system"][name] for name in FileSystem.__slots__}
    header["device"] = {name: header["device"][name] for name in Device.__slots__}
    header["root"] = to_bytes(plain["root"])
    header["directories"] = [to_bytes(name) for name in plain["directories"]]
    files = [(to_bytes(path), *rest) for path, *rest in plain["files"]]
    return header | {"files": files}


def contents(loaded: ExtentMap) -> Json:
    """The same of what it made."""
    header = {
        name: {slot: getattr(getattr(loaded, name), slot) for slot in kind.__slots__}
        for name, kind in (("file_system", FileSystem), ("device", Device))
    }
    columns = loaded.sizes, loaded.inodes, loaded.mtimes_ns, loaded.ctimes_ns
    rows = zip(*(column.tolist() for column in columns), strict=True)
    files = [
        (loaded.name(file), *row, loaded.unmapped.get(file, extents(loaded, file)))
        for file, row in enumerate(rows)
    ]
    return header | {
        "created": loaded.created,
        "root": loaded.root,
        "directories": list(loaded.directories),
        "files": files,
    }


def extents(loaded: ExtentMap, file: int) -> list[list[int | None]]:
    start, stop = loaded.extent_offsets[file : file + 2]
    return [
        [logical, None if physical == -1 else physical, length]
        for logical, physical, length in loaded.extents[start:stop].tolist()
    ]


def map_of(plain: Json) -> ExtentMap:
    """The map that a document is, made without load()."""
    names = [to_bytes(row[0]) for row in plain["files"]]
    extents = [row[5] if isinstance(row[5], list) else [] for row in plain["files"]]
    flat = [
        [logical, -1 if physical is None else physical, length]
        for each in extents
        for logical, physical, length in each
    ]
    columns = np.array([row[1:5] for row in plain["files"]], np.int64).reshape(-1, 4).T
    return ExtentMap(
        to_bytes(plain["root"]),
        plain["created"],
        FileSystem(**plain["file_system"]),
        Device(**plain["device"]),
        tuple(map(to_bytes, plain["directories"])),
        b"".join(names),
        offsets(list(map(len, names))),
        *columns,
        offsets(list(map(len, extents))),
        np.array(flat, np.int64).reshape(-1, 3),
        {file: row[5] for file, row in enumerate(plain["files"]) if isinstance(row[5], str)},
    )


def offsets(sizes: list[int]) -> IntArray:
    return np.array([*accumulate(sizes, initial=0)], np.int64)


def many(count: int) -> ExtentMap:
    """A map of that many files of one extent."""
    plain = document() | {"root": "/data", "directories": ["a"]}
    plain["device"] |= {"size": 2**40, "disk_size": 2**41}
    row = [5000, 5000, 5000, 5000]
    plain["files"] = [
        [f"a/{file:08d}.jpg", *row, [[0, file * 8192, 8192]]] for file in range(count)
    ]
    return map_of(plain)


COMPONENTS = st.binary(min_size=1, max_size=6).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
)
TIMES = st.integers(-(2**63), 2**63 - 1)
NATURALS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


@st.composite
def devices(draw: st.DrawFn) -> Json:
    block = draw(st.sampled_from(BLOCK_SIZES))
    size = draw(st.integers(1, (2**62) // block)) * block
    start = draw(st.integers(0, 2**40)) * block
    whole = draw(st.booleans())
    return {
        "path": "/dev/x" if whole else "/dev/x1",
        "size": size,
        "logical_block_size": block,
        "disk": "/dev/x",
        "disk_size": size if whole else size + start,
        "start": 0 if whole else start,
        "serial": draw(st.none() | TEXTS),
        "wwid": draw(st.none() | TEXTS),
        "backing_file": draw(st.none() | TEXTS),
    }


@st.composite
def layouts(draw: st.DrawFn, device: Json) -> list[list[int | None]]:
    """Extents of one file, in logical blocks of the device from here to there."""
    block, at = device["logical_block_size"], 0
    found: list[list[int | None]] = []
    for _ in range(draw(st.integers(0, 4))):
        at += draw(st.integers(0, 3)) * block
        length = draw(st.integers(1, min(5, device["size"] // block))) * block
        last = (device["size"] - length) // block
        physical = draw(st.none() | st.integers(0, last).map(block.__mul__))
        found.append([at, physical, length])
        at += length
    return found


@st.composite
def documents(draw: st.DrawFn) -> Json:
    device = draw(devices())
    block_sizes = [size for size in BLOCK_SIZES if size >= device["logical_block_size"]]
    directories = draw(st.lists(COMPONENTS, unique=True, max_size=4))
    paths = st.lists(COMPONENTS, min_size=1, max_size=1)
    if directories:
        paths |= st.tuples(st.sampled_from(directories), COMPONENTS)
        paths |= st.tuples(st.sampled_from(directories), COMPONENTS, COMPONENTS)
    files = []
    for path in draw(st.lists(paths.map(b"/".join), unique=True, max_size=8)):
        found: Any = draw(layouts(device))
        least = max(found[-1][0] + found[-1][2] - block_sizes[0] + 1, 0) if found else 0
        size = draw(st.integers(least, least + 10_000))
        if draw(st.integers(0, 5)) == 0:
            found = draw(TEXTS)
        files.append([to_text(path), size, draw(NATURALS), draw(TIMES), draw(TIMES), found])
    return document() | {
        "root": "/" + draw(TEXTS),
        "file_system": {
            "type": draw(st.sampled_from(["ext2", "ext3", "ext4", "xfs"])),
            "uuid": str(draw(st.uuids())),
            "block_size": block_sizes[0],
        },
        "device": device,
        "directories": [to_text(name) for name in sorted(directories)],
        "files": files,
    }


def as_saved(plain: Json) -> str:
    """By lines, as save() writes: the only layout that is read in groups of rows."""
    members = (f"{json.dumps(name)}: {json.dumps(plain[name])},\n" for name in plain)
    header = "".join(line for line in members if not line.startswith('"files"'))
    rows = ",".join("\n" + json.dumps(row) for row in plain["files"])
    return f'{{\n{header}"files": [{rows}\n]\n}}\n'


LAYOUTS: dict[str, Callable[[Json], str]] = {
    "as saved": as_saved,
    "a row a line": lambda plain: re.sub(r'\], \["', '],\n["', json.dumps(plain)),
    "one line": json.dumps,
    "no escapes": lambda plain: json.dumps(plain, ensure_ascii=False).replace("\udcff", "\\udcff"),
    "no white space": functools.partial(json.dumps, separators=(",", ":")),
    "indented": functools.partial(json.dumps, indent=2),
    "indented by nothing": functools.partial(json.dumps, indent=0),
    "carriage returns": lambda plain: json.dumps(plain, indent=1).replace("\n", "\r\n"),
    "members sorted": functools.partial(json.dumps, sort_keys=True),
    "members from the end": lambda plain: json.dumps(dict(reversed(plain.items()))),
    "white space around": lambda plain: f"\n\t {json.dumps(plain)} \r\n\n",
}
