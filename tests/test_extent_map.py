"""Maps written and read, against plain json and the rules of docs/bmap.md in plain Python."""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import stat
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import bmap_tools
from bmap_tools import bmap_json, extent_map
from bmap_tools.extent_map import Device, ExtentMap, FileSystem, MapFormatError, load, save

ROOT = Path(bmap_tools.__file__).parent.parent
SCHEMA = json.loads((ROOT / "bmap_tools" / "bmap.schema.json").read_text())
COLUMNS = ["path", "size", "inode", "mtime_ns", "ctime_ns", "extents"]
BLOCK_SIZES = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]
UUID = "6f1b9a52-3c0e-4d59-9b07-51d0f3a1c2e4"
GIB = 1 << 30

Json = dict[str, Any]

# One directory for all examples will do; and a disk may take its time to make a map durable.
in_a_shared_directory = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


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
    rows = zip(*(column.tolist() for column in numbers(loaded)), strict=True)
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


def numbers(loaded: ExtentMap) -> list[extent_map.IntArray]:
    return [loaded.sizes, loaded.inodes, loaded.mtimes_ns, loaded.ctimes_ns]


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


def offsets(sizes: list[int]) -> extent_map.IntArray:
    return np.array([sum(sizes[:count]) for count in range(len(sizes) + 1)], np.int64)


# --- random maps ---

COMPONENTS = st.binary(min_size=1, max_size=6).filter(
    lambda name: not {0, ord("/")} & set(name) and name not in (b".", b"..")
)
TIMES = st.integers(-(2**63), 2**63 - 1)
NATURALS = st.integers(0, 2**63 - 1)
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)


def to_text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


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


@in_a_shared_directory
@given(documents())
def test_what_is_saved_is_what_plain_json_reads_and_load_too(tmp_path: Path, plain: Json) -> None:
    path = tmp_path / "bmap.json"
    save(map_of(plain), path)
    assert json.loads(path.read_bytes()) == sealed(plain) | {"creator": "bmap_tools"}
    assert contents(load(path)) == expected(plain)


@in_a_shared_directory
@given(documents())
def test_random_documents_are_right_by_the_rules(plain: Json) -> None:
    assert is_valid(plain)


# --- the rules of docs/bmap.md, in plain Python ---


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


def load_or_none(path: Path) -> Json | None:
    try:
        return contents(load(path))
    except MapFormatError:
        return None


# --- fuzzing ---

ODD = st.sampled_from(
    [
        *(None, True, False, 0, -1, 1, 3, 511, 512, 4096, 4097, GIB, 2**48, 2**48 + 1, 2**63 - 512),
        *(2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**400, 0.0, 4096.0, 1e300, "", "0"),
        *(
            "a",
            ".",
            "..",
            "/",
            "a/",
            "a//b",
            "/a",
            "a/..",
            "a/./b",
            "b/c",
            "a\0",
            "\ud800",
            "\udcff",
        ),
        *([], {}, [[]], [0, 0, 4096], [[0, 0, 512], [0, 0, 512]], [[0, 2**63 - 512, 512]]),
    ]
)
# Copies, because a later edit may be one of what an earlier one put there.
VALUES = (ODD | TEXTS | st.integers() | st.lists(ODD, max_size=3)).map(copy.deepcopy)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a document with each of its keys or indices."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places(value[key])


@st.composite
def edited(draw: st.DrawFn) -> Json:
    """A right document after one to three edits of values, rows and members."""
    plain = draw(documents() | st.builds(document))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(places(plain))))
        edit = draw(st.integers(0, 9))
        if edit == 0:
            del container[key]
        elif edit == 1 and isinstance(container, list):
            container.insert(draw(st.integers(0, len(container))), copy.deepcopy(container[key]))
        elif edit == 2 and isinstance(container, list):
            container.reverse()
        elif edit == 3 and isinstance(container, dict):
            container[draw(TEXTS)] = draw(VALUES)
        elif edit < 7 and type(container[key]) is int:
            container[key] += draw(st.sampled_from([-4096, -512, -1, 1, 512, 4096, 2**62, 2**63]))
        else:
            container[key] = draw(VALUES)
    return plain


@settings(in_a_shared_directory, max_examples=400)
@given(edited())
def test_an_edited_map_is_refused_or_is_what_plain_json_says(tmp_path: Path, plain: Json) -> None:
    path = write(tmp_path, plain)
    assert load_or_none(path) == (expected(plain) if is_valid(plain) else None)


def strictly(members: list[tuple[str, Any]]) -> Json:
    if len(dict(members)) < len(members):
        raise ValueError("twice")
    return dict(members)


def no_constant(constant: str) -> None:
    raise ValueError(constant)


def plain_json(data: bytes) -> Any:
    """What Python's json reads, or None where it or the rules for JSON refuse it."""
    try:
        text = data.decode()
        return json.loads(text, object_pairs_hook=strictly, parse_constant=no_constant)
    except (ValueError, RecursionError):
        return None


LAYOUTS: dict[str, Callable[[Json], str]] = {
    "a row a line": lambda plain: re.sub(r'\], \["', '],\n["', json.dumps(plain)),
    "one line": json.dumps,
    "no white space": functools.partial(json.dumps, separators=(",", ":")),
    "indented": functools.partial(json.dumps, indent=2),
    "indented by nothing": functools.partial(json.dumps, indent=0),
    "carriage returns": lambda plain: json.dumps(plain, indent=1).replace("\n", "\r\n"),
    "members sorted": functools.partial(json.dumps, sort_keys=True),
    "members from the end": lambda plain: json.dumps(dict(reversed(plain.items()))),
    "white space around": lambda plain: f"\n\t {json.dumps(plain)} \r\n\n",
}
PIECES = st.binary(max_size=3) | st.sampled_from(
    [
        *(
            b"0",
            b"9",
            b"-",
            b".",
            b"e5",
            b"[",
            b"]",
            b"{",
            b"}",
            b",",
            b":",
            b'"',
            b"\\",
            b"\n",
            b" ",
        ),
        *(b"null", b"true", b"NaN", b"Infinity", b"],\n[", b'"a": 1,', b"\\ud800", b"\xff", b"\0"),
    ]
)


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """The text of a right document in which some bytes were replaced."""
    data = draw(st.sampled_from(list(LAYOUTS.values())))(document()).encode()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data = data[:at] + draw(PIECES) + data[at + draw(st.integers(0, 3)) :]
    return data


@settings(in_a_shared_directory, max_examples=400)
@given(mangled())
def test_mangled_text_is_refused_or_is_what_plain_json_says(tmp_path: Path, data: bytes) -> None:
    path, plain = write(tmp_path, data), plain_json(data)
    right = is_valid(plain) and plain.get("digest") == digest(plain)
    assert load_or_none(path) == (expected(plain) if right else None)


# --- formatting ---


@pytest.mark.parametrize("window", [1, 50, 1 << 18])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_any_formatting_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Callable[[Json], str], window: int
) -> None:
    reader = functools.partial(bmap_json.Document, window=window)
    monkeypatch.setattr(extent_map, "Document", reader)
    path = write(tmp_path, layout(document()))
    assert contents(load(path)) == expected(document())


def test_names_may_be_written_without_escapes(tmp_path: Path) -> None:
    plain = document()
    plain["files"][-1][0] = "b/é 日本 \U0001f600"
    path = write(tmp_path, json.dumps(sealed(plain), ensure_ascii=False))
    assert contents(load(path)) == expected(plain)


EDITS: list[tuple[Any, ...]] = [
    *(("created", "2026-11-21T15:00:01Z"), ("root", "/data/test"), ("digest", "0" * 32)),
    *(("device", "serial", None), ("file_system", "type", "ext3")),
    *(("directories", ["a", "b"]), ("files", 0, 0, "in the Root"), ("files", 1, 1, 5001)),
    *(("files", 1, 2, 9), ("files", 1, 3, 9), ("files", 1, 4, 9), ("files", 4, 5, "because")),
    *(("files", 1, 5, [[0, 8192, 8192]]), ("files", 2, 5, 1, 1, 0), ("files", 3, 5, [])),
]


@pytest.mark.parametrize("edit", EDITS, ids=str)
def test_a_map_that_was_edited_is_refused(tmp_path: Path, edit: tuple[Any, ...]) -> None:
    plain = document()
    put(*edit)(plain)
    assert is_valid(plain)
    with pytest.raises(MapFormatError, match="digest is another"):
        load(write(tmp_path, json.dumps(plain)))
    load(write(tmp_path, plain))  # with the digest of what it says now


def test_a_map_without_its_digest_is_refused(tmp_path: Path) -> None:
    plain = document()
    del plain["digest"]
    with pytest.raises(MapFormatError, match="no member 'digest'"):
        load(write(tmp_path, plain))


def test_a_map_without_files_is_a_map(tmp_path: Path) -> None:
    plain = document() | {"directories": [], "files": []}
    assert contents(load(write(tmp_path, plain))) == expected(plain)
    save(map_of(plain), tmp_path / "saved.json")
    assert contents(load(tmp_path / "saved.json")) == expected(plain)


def test_members_of_later_releases_are_ignored(tmp_path: Path) -> None:
    plain = document()
    for place in (plain, plain["device"], plain["file_system"]):
        place["later"] = {"a": [1.5, None]}
    assert contents(load(write(tmp_path, plain))) == expected(document())


def test_what_is_written_is_one_file_a_line_in_ascii(tmp_path: Path) -> None:
    save(map_of(document()), tmp_path / "bmap.json")
    lines = (tmp_path / "bmap.json").read_text(encoding="ascii").splitlines()
    rows = [json.loads(line.rstrip(",")) for line in lines if line.startswith('["')]
    assert rows == document()["files"]


def test_names_of_files_by_their_number(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, document()))
    assert [loaded.name(0), loaded.name(2), loaded.name(-1)] == [
        b"in the root",
        b"a/two",
        "b/deep/\udcff é 日本".encode("utf-8", "surrogateescape"),
    ]
    for file in (6, -7):
        with pytest.raises(IndexError):
            loaded.name(file)


# --- refusals, each with what it must say ---

Edit = Callable[[Json], object]


def put(*keys: Any) -> Edit:
    """Set the last of `keys` at the place that the others lead to; without it, delete."""
    *places, key, value = keys

    def edit(plain: Json) -> None:
        functools.reduce(lambda inner, place: inner[place], places, plain)[key] = value

    return edit


def drop(*keys: Any) -> Edit:
    *places, key = keys
    return lambda plain: functools.reduce(lambda x, place: x[place], places, plain).pop(key)


ONE, EXTENTS = ("files", 1), ("files", 1, 5)
HUGE = 2**63 - 512

REFUSALS: list[tuple[str, Edit]] = [
    # the whole
    *((f"no member '{name}'", drop(name)) for name in document()),
    *((f"format must be 'bmap'.*{bad}", put("format", bad)) for bad in ("imap", None)),
    *((f"version must be 1, the only one .* not {bad}", put("version", bad)) for bad in (0, 2)),
    *(("version must be 1", put("version", bad)) for bad in (True, 1.0, "1", None, [1])),
    *(("columns must be", put("columns", bad)) for bad in (COLUMNS[:5], [*COLUMNS, "crc"], None)),
    ("columns must be", put("columns", COLUMNS[::-1])),
    ("creator must be a string", put("creator", 1)),
    ("created must be a string", put("created", 20261121)),
    *(
        ("created must be a time", put("created", bad))
        for bad in ("", "now", "2026-11-21", "2026-11-21 15:00:00Z", "2026-11-21T15:00:00")
    ),
    ("created must be a time", put("created", "2026-11-21T15:00:00+01:00")),
    ("created must be a time", put("created", "2026-02-30T15:00:00Z")),
    ("created must be a time", put("created", "2026-11-21T25:00:00Z")),
    ("created must be a time", put("created", "2026-11-21T15:00:00Z\n")),
    ("created must be a time", put("created", "٢026-11-21T15:00:00Z")),
    *(("root must be", put("root", bad)) for bad in (None, 1, "", "data", "./x", "/\0", "/\ud800")),
    *(
        ("directories must be", put("directories", bad))
        for bad in (None, "a", {}, ["a", 1], ["\0"])
    ),
    *(
        ("directories: .* is not the name", put("directories", 0, bad))
        for bad in ("", ".", "..", "a/b", "/a", "a/")
    ),
    ("directories: 'a' after 'b'", put("directories", ["b", "a"])),
    ("directories: 'a' after 'a'", put("directories", ["a", "a", "b"])),
    ("directories: .* byte order", put("directories", ["a", "b", "\U00010000", "\uffff"])),
    *(("expected '\\['", put("files", bad)) for bad in (None, 1, "x", {}, True)),
    # device
    *((f"device has no member '{name}'", drop("device", name)) for name in document()["device"]),
    *(("device must be an object", put("device", bad)) for bad in (None, [], "/dev/sdx")),
    *((f"device: {name} must be a string", put("device", name, 1)) for name in ("path", "disk")),
    *((f"device: {name} must be an absol", put("device", name, "x")) for name in ("path", "disk")),
    *(
        (f"device: {name} must be a string", put("device", name, bad))
        for name in ("serial", "wwid", "backing_file")
        for bad in (1, False, "a\0", "\udcff\udfff")
    ),
    *(
        (f"device: {name} must be an integer", put("device", name, bad))
        for name in ("size", "disk_size", "start", "logical_block_size")
        for bad in (None, True, 4096.0, "4096", -512, 2**63, 10**100, [4096])
    ),
    *(
        (f"device: {name} must be a multiple", put("device", name, bad))
        for name, bad in (("size", 0), ("size", GIB + 1), ("start", 511), ("disk_size", GIB + 256))
    ),
    *(
        ("device: logical_block_size .* is not one of", put("device", "logical_block_size", bad))
        for bad in (0, 1, 256, 513, 768, 131072)
    ),
    ("device: start 1048576 and size .* go beyond", put("device", "disk_size", GIB - 512)),
    ("device: start .* and size .* go beyond", put("device", "start", HUGE)),
    ("device: size .* is not disk_size", put("device", "disk", "/dev/sdx2")),
    # file_system
    *(
        (f"file_system has no member '{name}'", drop("file_system", name))
        for name in ("type", "uuid", "block_size")
    ),
    ("file_system must be an object", put("file_system", None)),
    ("file_system: type 'btrfs' is not one of", put("file_system", "type", "btrfs")),
    ("file_system: type must be a string", put("file_system", "type", ["ext4"])),
    *(
        ("file_system: uuid must be", put("file_system", "uuid", bad))
        for bad in ("", UUID.upper(), UUID.replace("-", ""), UUID + "\n", f"{{{UUID}}}", None)
    ),
    ("file_system: block_size must be an integer", put("file_system", "block_size", "4096")),
    *(
        ("file_system: block_size .* is not one of", put("file_system", "block_size", bad))
        for bad in (0, 256, 3072, 131072, 2**62)
    ),
    ("file_system: block_size 1024", lambda plain: shrink_block_size(plain)),
    # rows
    *(("file 1: must be \\[path, size", put(*ONE, bad)) for bad in (None, 1, "a/one", {}, [])),
    ("'a/one': must be \\[path, size", drop(*ONE, 5)),
    ("'a/one': must be \\[path, size", lambda plain: plain["files"][1].append(0)),
    *(("file 1: not a path", put(*ONE, 0, bad)) for bad in (None, 1, True, ["a/one"])),
    *(
        ("one.*: not a path", put(*ONE, 0, bad))
        for bad in ("a/one\0", "a/one\ud800", "a/\udf00one")
    ),
    *(
        (f"'{re.escape(bad)}': a path must be relative", put(*ONE, 0, bad))
        for bad in (
            "",
            "/",
            "/a/one",
            "a//one",
            "a/one/",
            ".",
            "..",
            "./a",
            "../a",
            "a/..",
            "a/./b",
        )
    ),
    ("'a/../../b': a path must be relative", put(*ONE, 0, "a/../../b")),
    ("'A/one': 'A' is not in directories", put(*ONE, 0, "A/one")),
    ("'a/one': 'a' is not in directories", put("directories", ["b", "empty"])),
    ("'b/inline': the path is there twice", put(*ONE, 0, "b/inline")),
    *(
        (f"'a/one': {name} must be an integer", put(*ONE, column, bad))
        for column, name in enumerate(COLUMNS[1:5], 1)
        for bad in (None, False, 1.0, "1", [1], 2**63, -(2**63) - 1, 10**400)
    ),
    *((f"'a/one': size must be 0 to {2**48}", put(*ONE, 1, bad)) for bad in (-1, 2**48 + 1)),
    ("'a/one': inode must be 0 to", put(*ONE, 2, -1)),
    *(("'a/one': extents must be a list", put(*EXTENTS, bad)) for bad in (None, 1, True, {})),
    *(("'a/one': not the text", put(*EXTENTS, bad)) for bad in ("\0", "\ud800")),
    *(("'a/one': each extent must be", put(*EXTENTS, [bad])) for bad in (None, [], [0, 0], 1, "x")),
    *(("'a/one': each extent must be", put(*EXTENTS, [bad])) for bad in ([0, 0, 512, 0], {})),
    *(
        ("'a/one': logical, physical and length must be", put(*EXTENTS, 0, place, bad))
        for place in (0, 1, 2)
        for bad in (True, 0.0, "0", [0], 2**63)
    ),
    *(
        ("'a/one': logical, physical and length must be", put(*EXTENTS, 0, place, None))
        for place in (0, 2)
    ),
    *(("'a/one': .* negative", put(*EXTENTS, 0, x, bad)) for x in range(3) for bad in (-1, -512)),
    ("'a/one': .* has no length", put(*EXTENTS, 0, 2, 0)),
    ("'a/one': .* has no length", put(*EXTENTS, [[0, None, 0]])),
    *(("'a/one': .* whole logical blocks", put(*EXTENTS, 0, x, 4097)) for x in range(3)),
    ("'a/one': .* whole logical blocks", put(*EXTENTS, [[0, None, 100]])),
    ("'a/one': .* beyond the device", put(*EXTENTS, [[0, GIB - 4096, 8192]])),
    ("'a/one': .* beyond the device", put(*EXTENTS, [[0, HUGE, 512]])),
    ("'a/one': .* beyond the device", put(*EXTENTS, [[0, 512, HUGE]])),
    ("'a/one': .* beyond the device", put(*EXTENTS, [[0, HUGE, HUGE]])),
    ("'a/one': .* last file system block", put(*EXTENTS, [[0, 4096, 8704]])),
    ("'a/one': .* last file system block", put(*EXTENTS, [[8192, 4096, 512]])),
    ("'a/one': .* larger than a file", put(*EXTENTS, [[HUGE, 4096, 512]])),
    ("'a/one': .* larger than a file", put(*EXTENTS, [[HUGE, None, 512]])),
    ("'a/one': .* larger than a file", put(*EXTENTS, [[0, None, HUGE]])),
    ("'a/one': .* before the end of", put(*EXTENTS, [[0, 0, 4096], [3584, 0, 512]])),
    ("'a/one': .* before the end of", put(*EXTENTS, [[0, None, 512], [0, None, 512]])),
    ("'a/one': .* before the end of", put(*EXTENTS, [[4096, 0, 512], [0, 0, 512]])),
]


def shrink_block_size(plain: Json) -> None:
    plain["device"]["logical_block_size"] = 4096
    plain["file_system"]["block_size"] = 1024


@pytest.mark.parametrize(("message", "edit"), REFUSALS)
def test_what_cannot_be_true_is_refused(tmp_path: Path, message: str, edit: Edit) -> None:
    plain = document()
    edit(plain)
    path = write(tmp_path, plain)
    with pytest.raises(MapFormatError, match=f"{re.escape(str(path))}: .*{message}"):
        load(path)


def test_two_spellings_of_one_path_are_the_same_path(tmp_path: Path) -> None:
    plain = document()
    plain["files"][0][0] = "\udcc3\udca9"  # the bytes of é
    plain["files"].append(["é", 0, 1, 0, 0, []])
    with pytest.raises(MapFormatError, match=r"'é': the path is there twice"):
        load(write(tmp_path, plain))


@pytest.mark.parametrize("version", ['"version": 2', '"format": "other"'])
def test_another_version_is_named_before_anything_else_that_is_wrong(
    tmp_path: Path, version: str
) -> None:
    path = write(tmp_path, f'{{{version}, "files": 7, "device": }}')
    with pytest.raises(MapFormatError, match=r"the only one known here, not (2|'other')"):
        load(path)


def test_no_prefix_of_a_map_is_a_map(tmp_path: Path) -> None:
    save(map_of(document()), tmp_path / "whole.json")
    data = (tmp_path / "whole.json").read_bytes().rstrip()
    for size in range(len(data)):
        with pytest.raises(MapFormatError):
            load(write(tmp_path, data[:size]))


@pytest.mark.parametrize(
    "rows",
    [
        '[["a/one", NaN, 1, 1, 1, []]]',
        '[["a/one", 0, 1, 1, 1, [[0, -Infinity, 512]]]]',
        '[["a/one", 0, 1, 1, 1, {"a": 0, "a": 0}]]',
        f'[["a/one", {"9" * 5000}, 1, 1, 1, []]]',
        "[" * 10_000_000,
        '[["a/one", 0, 1, 1, 1, [[0, 0, ' + "[" * 10_000_000,
        '[["a/one", 0, 1, 1, 1, ' + '{"a":' * 2_000_000,
    ],
    ids=["NaN", "Infinity", "twice", "long", "nested", "nested extent", "nested object"],
)
def test_what_json_would_stumble_over_is_refused(tmp_path: Path, rows: str) -> None:
    text = json.dumps(document() | {"files": "HERE"}).replace('"HERE"', rows)
    with pytest.raises(MapFormatError, match=r"bmap\.json: line 1: "):
        load(write(tmp_path, text))


# --- many files ---


def many(count: int) -> ExtentMap:
    plain = document()
    sizes = np.full(count, 5000)
    names = b"".join(b"a/%08d.jpg" % file for file in range(count))
    addresses = np.arange(count) * 8192
    return ExtentMap(
        root=b"/data",
        created=plain["created"],
        file_system=FileSystem(**plain["file_system"]),
        device=Device(**(plain["device"] | {"size": 2**40, "disk_size": 2**41})),
        directories=(b"a",),
        names=names,
        name_offsets=np.arange(count + 1) * 14,
        sizes=sizes,
        inodes=sizes,
        mtimes_ns=sizes,
        ctimes_ns=sizes,
        extent_offsets=np.arange(count + 1),
        extents=np.stack([addresses * 0, addresses, np.full(count, 8192)], axis=1),
        unmapped={},
    )


def test_a_file_takes_at_most_120_bytes_and_rows_are_never_in_memory_at_once(
    tmp_path: Path,
) -> None:
    count = 100_000
    save(many(count), tmp_path / "bmap.json")
    tracemalloc.start()
    loaded = load(tmp_path / "bmap.json")
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(loaded) == count
    assert (kept - len(loaded.names)) / count <= 120
    assert peak / count <= 300  # the objects of one row alone take 500


def test_many_files_are_saved_and_loaded(tmp_path: Path) -> None:
    saved = many(10_000)
    save(saved, tmp_path / "bmap.json")
    loaded = load(tmp_path / "bmap.json")
    assert loaded.names == saved.names
    for column in ("name_offsets", "sizes", "extent_offsets", "extents"):
        assert np.array_equal(getattr(loaded, column), getattr(saved, column))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (("a/00004321.jpg", "a/00004320.jpg"), "'a/00004320.jpg': the path is there twice"),
        (("a/00004321.jpg", "a/00004321.jpg/.."), r"'a/00004321.jpg/\.\.': a path must be"),
        (("a/00004321.jpg", "c/00004321.jpg"), "'c/00004321.jpg': 'c' is not in directories"),
        (('4321.jpg", 5000', '4321.jpg", true'), "'a/00004321.jpg': size must be .* not True"),
        (('4321.jpg", 5000', '4321.jpg", -1'), "'a/00004321.jpg': size must be .* not -1"),
        ((str(4321 * 8192), str(2**40)), r"'a/00004321.jpg': the extent \[0, 1099511627776, 8192"),
        ((str(4321 * 8192), "-1"), r"'a/00004321.jpg': .*\[0, -1, 8192\].* negative"),
        (("a/00004321.jpg", "a/00004321\\ud800"), r"'a/00004321\\ud800': not a path"),
    ],
)
def test_the_message_names_the_one_bad_file_of_many(
    tmp_path: Path, edit: tuple[str, str], message: str
) -> None:
    path = tmp_path / "bmap.json"
    save(many(10_000), path)
    text = path.read_text()
    assert text.count(edit[0]) == 1
    with pytest.raises(MapFormatError, match=message):
        load(write(tmp_path, text.replace(*edit)))


# --- files ---


@pytest.fixture
def umask() -> Iterator[int]:
    mask = 0o026
    before = os.umask(mask)
    yield mask
    os.umask(before)


def test_a_map_has_the_mode_of_a_new_file(tmp_path: Path, umask: int) -> None:
    save(map_of(document()), tmp_path / "bmap.json")
    assert stat.S_IMODE((tmp_path / "bmap.json").stat().st_mode) == 0o666 & ~umask


class Unwritable:
    """What json cannot write: so saving fails half-way."""


@pytest.mark.parametrize("there", [True, False])
def test_saving_that_fails_half_way_changes_nothing(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "bmap.json"
    if there:
        path.write_text("old")
    broken = many(20_000)
    broken.unmapped[19_999] = Unwritable()  # type: ignore[index]
    with pytest.raises(TypeError, match="Unwritable"):
        save(broken, path)
    assert os.listdir(tmp_path) == (["bmap.json"] if there else [])
    assert not there or path.read_text() == "old"


def test_what_load_would_refuse_is_not_saved(tmp_path: Path) -> None:
    broken = many(20_000)
    broken.extents[19_000, 1] += 1
    with pytest.raises(MapFormatError, match=r"bmap\.json: 'a/00019000\.jpg': the extent"):
        save(broken, tmp_path / "bmap.json")
    assert os.listdir(tmp_path) == []


def test_a_map_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "bmap.json"
    save(many(10), path)
    save(map_of(document()), path)
    assert contents(load(path))["files"] == expected(document())["files"]
    assert os.listdir(tmp_path) == ["bmap.json"]


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_any_kind_of_path_will_do(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    name = tmp_path / ("é" * 120)  # as long as a name can be, almost
    save(map_of(document()), kind(name))
    assert len(load(kind(name))) == 6


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/bmap.json")
    save(map_of(document()), tmp_path / "link")
    assert (tmp_path / "link").readlink() == Path("there/bmap.json")
    assert len(load(tmp_path / "link")) == len(load(tmp_path / "there" / "bmap.json")) == 6


def test_what_cannot_be_opened_is_the_usual_error(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for name, error in (("no", FileNotFoundError), ("link", FileNotFoundError)):
        with pytest.raises(error, match=name):
            load(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        save(map_of(document()), tmp_path / "directory")
    with pytest.raises(FileNotFoundError):
        save(map_of(document()), tmp_path / "no" / "bmap.json")
    assert sorted(os.listdir(tmp_path)) == ["directory", "link"]


# --- what is published ---


@settings(in_a_shared_directory, max_examples=30)
@given(documents())
def test_a_saved_map_is_right_by_the_published_schema(tmp_path: Path, plain: Json) -> None:
    save(map_of(plain), tmp_path / "bmap.json")
    jsonschema.Draft202012Validator(SCHEMA).validate(
        json.loads((tmp_path / "bmap.json").read_bytes())
    )


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "edit",
    [drop(name) for name in document()]
    + [drop("device", name) for name in Device.__slots__]
    + [drop("file_system", name) for name in FileSystem.__slots__]
    + [put(*ONE, column, True) for column in range(6)]
    + [put(*EXTENTS, 0, number, -1) for number in range(3)]
    + [put(*ONE, 0, bad) for bad in ("", "/a", "a//b", "a/", "a/..", "./a", "..", "a/\0")]
    + [put("version", 2), put("columns", COLUMNS[:5]), put("directories", ["a", "a"])]
    + [put(*EXTENTS, [[0, 0]]), put(*EXTENTS, [[0, 0, 512, 0]]), drop(*ONE, 5)],
)
def test_the_schema_refuses_what_load_refuses(tmp_path: Path, edit: Edit) -> None:
    plain = document()
    edit(plain)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(plain)
    with pytest.raises(MapFormatError):
        load(write(tmp_path, plain))


def test_the_public_names() -> None:
    assert sorted(bmap_tools.__all__) == sorted(extent_map.__all__)
    assert sorted(bmap_tools.__all__) == [
        "Device",
        "ExtentMap",
        "FileSystem",
        "MapFormatError",
        "load",
        "save",
    ]
    assert issubclass(MapFormatError, ValueError)


def snippet(language: str) -> str:
    page = (ROOT / "docs" / "bmap.md").read_text()
    (found,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return str(found)


def test_the_map_of_the_page_is_a_map(tmp_path: Path) -> None:
    plain = json.loads(snippet("json"))
    jsonschema.Draft202012Validator(SCHEMA).validate(plain)
    assert contents(load(write(tmp_path, snippet("json")))) == expected(plain)


def test_the_program_of_the_page_reads_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = os.urandom(1 << 16)
    (tmp_path / "image").write_bytes(image)
    plain = document()
    plain["device"] |= {"path": str(tmp_path / "image"), "size": 1 << 16}
    extents = [[512, 4096, 512], [1024, None, 4096], [8192, 512, 4096]]
    plain["files"] = [["x", 9000, 1, 1, 1, extents]]
    assert len(load(write(tmp_path, plain))) == 1
    monkeypatch.chdir(tmp_path)
    names: Json = {}
    code = snippet("python")
    exec(code, names)
    zeros = bytes(9000)
    file = zeros[:512] + image[4096:4608] + zeros[1024:8192] + image[512:4608]
    assert names["data"] == file[:9000]
    assert len(code.splitlines()) <= 12
