"""Maps that cannot be true are refused, each with its message."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bmap_tools import MapFormatError, load
from tests.kit.bmap.documents import COLUMNS, GIB, UUID, Edit, Json, document, drop, put, write

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
    *(
        ("the map: files must be a list, not", put("files", bad))
        for bad in (None, 1, "x", {}, True)
    ),
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
        ("device: logical_block_size must be one of", put("device", "logical_block_size", bad))
        for bad in (0, 1, 256, 513, 768, 131072)
    ),
    ("device: start 1048576 plus size .* exceeds", put("device", "disk_size", GIB - 512)),
    ("device: start .* plus size .* exceeds", put("device", "start", HUGE)),
    ("device: path is disk, but size .* is not disk_size", put("device", "disk", "/dev/sdx2")),
    # file_system
    *(
        (f"file_system has no member '{name}'", drop("file_system", name))
        for name in ("type", "uuid", "block_size")
    ),
    ("file_system must be an object", put("file_system", None)),
    ("file_system: type must be one of .* not 'btrfs'", put("file_system", "type", "btrfs")),
    ("file_system: type must be a string", put("file_system", "type", ["ext4"])),
    *(
        ("file_system: uuid must be", put("file_system", "uuid", bad))
        for bad in ("", UUID.upper(), UUID.replace("-", ""), UUID + "\n", f"{{{UUID}}}", None)
    ),
    ("file_system: block_size must be an integer", put("file_system", "block_size", "4096")),
    *(
        ("file_system: block_size must be one of", put("file_system", "block_size", bad))
        for bad in (0, 256, 3072, 131072, 2**62)
    ),
    ("file_system: block_size must .*4096, not 1024", lambda plain: shrink_block_size(plain)),
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
    ("'b/inline': the path occurs twice", put(*ONE, 0, "b/inline")),
    *(
        (f"'a/one': {name} must be an integer", put(*ONE, column, bad))
        for column, name in enumerate(COLUMNS[1:5], 1)
        for bad in (None, False, 1.0, "1", [1], 2**63, -(2**63) - 1, 10**400)
    ),
    *((f"'a/one': size must be from 0 to {2**48}", put(*ONE, 1, bad)) for bad in (-1, 2**48 + 1)),
    ("'a/one': inode must be from 0 to", put(*ONE, 2, -1)),
    *(("'a/one': extents must be a list", put(*EXTENTS, bad)) for bad in (None, 1, True, {})),
    *(("'a/one': not a valid string", put(*EXTENTS, bad)) for bad in ("\0", "\ud800")),
    *(("'a/one': each extent must be", put(*EXTENTS, [bad])) for bad in (None, [], [0, 0], 1, "x")),
    *(("'a/one': each extent must be", put(*EXTENTS, [bad])) for bad in ([0, 0, 512, 0], {})),
    *(
        ("'a/one': logical, physical and length must be", put(*EXTENTS, 0, index, bad))
        for index in (0, 1, 2)
        for bad in (True, 0.0, "0", [0], 2**63)
    ),
    *(
        ("'a/one': logical, physical and length must be", put(*EXTENTS, 0, index, None))
        for index in (0, 2)
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
def test_a_map_that_cannot_be_true_is_refused(tmp_path: Path, message: str, edit: Edit) -> None:
    plain = document()
    edit(plain)
    path = write(tmp_path, plain)
    with pytest.raises(MapFormatError, match=f"{re.escape(str(path))}: .*{message}"):
        load(path)


def test_two_spellings_of_one_path_are_the_same_path(tmp_path: Path) -> None:
    plain = document()
    plain["files"][0][0] = "\udcc3\udca9"  # the bytes of é
    plain["files"].append(["é", 0, 1, 0, 0, []])
    with pytest.raises(MapFormatError, match=r"'é': the path occurs twice"):
        load(write(tmp_path, plain))
