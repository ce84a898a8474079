"""Maps that cannot be true are refused, each with its message: the rules of docs/bmap.md."""

import functools
import operator
import re
from typing import Any

import pytest

from bmap_tools import MapFormatError, load
from tests.kit.bmap.documents import COLUMNS, GIB, UUID, as_saved, document, sealed, write

HUGE = 2**63 - 512
WORDS = (None, 1, True, {})  # where a list or a string is expected
LEFT_OUT = object()


def members(*above: str) -> str:
    """The places of all members of an object in the document."""
    found = functools.reduce(operator.getitem, above, document())
    return "|".join(" ".join((*above, name)) for name in found)


# The message, where in the document (`|` separates places), and what is put there.
REFUSED: list[tuple[str, str, Any]] = [
    ("the map has no member '{name}'", members(), [LEFT_OUT]),
    ("format must be 'bmap'.*{bad}", "format", ["imap", None]),
    ("version must be 1, the only supported value, not {bad}", "version", [0, 2]),
    ("version must be 1", "version", [True, 1.0, "1", None, [1]]),
    ("columns must be", "columns", [COLUMNS[:5], [*COLUMNS, "crc"], COLUMNS[::-1], None]),
    ("creator must be a string", "creator", [1]),
    ("created must be a string", "created", [20261121]),
    ("created must be a time", "created", ["", "now", "2026-11-21", "2026-11-21 15:00:00Z"]),
    ("created must be a time", "created", ["2026-11-21T15:00:00", "2026-11-21T15:00:00+01:00"]),
    ("created must be a time", "created", ["2026-02-30T15:00:00Z", "2026-11-21T25:00:00Z"]),
    ("created must be a time", "created", ["2026-11-21T15:00:00Z\n", "٢026-11-21T15:00:00Z"]),
    ("root must be", "root", [None, 1, "", "data", "./x", "/\0", "/\ud800"]),
    ("directories must be", "directories", [None, "a", {}, ["a", 1], ["\0"]]),
    ("directories: .* is not the name", "directories 0", ["", ".", "..", "a/b", "/a", "a/"]),
    ("directories: 'a' after 'b'", "directories", [["b", "a"]]),
    ("directories: 'a' after 'a'", "directories", [["a", "a", "b"]]),
    ("directories: .* byte order", "directories", [["a", "b", "\U00010000", "\uffff"]]),
    ("the map: files must be a list, not", "files", ["x", *WORDS]),
    # device
    ("device has no member '{name}'", members("device"), [LEFT_OUT]),
    ("device must be an object", "device", [None, [], "/dev/sdx"]),
    ("device: {name} must be a string", "device path|device disk", [1]),
    ("device: {name} must be an absol", "device path|device disk", ["x"]),
    ("device: {name} must be a string", "device serial|device wwid|device backing_file",
     [1, False, "a\0", "\udcff\udfff"]),
    ("device: {name} must be an integer",
     "device size|device disk_size|device start|device logical_block_size",
     [None, True, 4096.0, "4096", -512, 2**63, 10**100, [4096]]),
    ("device: size must be a multiple", "device size", [0, GIB + 1]),
    ("device: start must be a multiple", "device start", [511]),
    ("device: disk_size must be a multiple", "device disk_size", [GIB + 256]),
    ("device: logical_block_size must be one of", "device logical_block_size",
     [0, 1, 256, 513, 768, 131072]),
    ("device: start 1048576 plus size .* exceeds", "device disk_size", [GIB - 512]),
    ("device: start .* plus size .* exceeds", "device start", [HUGE]),
    ("device: path is disk, but size .* is not disk_size", "device disk", ["/dev/sdx2"]),
    # file_system
    ("file_system has no member '{name}'", members("file_system"), [LEFT_OUT]),
    ("file_system must be an object", "file_system", [None]),
    ("file_system: type must be one of .* not 'btrfs'", "file_system type", ["btrfs"]),
    ("file_system: type must be a string", "file_system type", [["ext4"]]),
    ("file_system: uuid must be", "file_system uuid",
     ["", UUID.upper(), UUID.replace("-", ""), UUID + "\n", f"{{{UUID}}}", None]),
    ("file_system: block_size must be an integer", "file_system block_size", ["4096"]),
    ("file_system: block_size must be one of", "file_system block_size",
     [0, 256, 3072, 131072, 2**62]),
    ("file_system: block_size must .*8192, not 4096", "device logical_block_size", [8192]),
    # rows
    ("file 1: must be \\[path, size", "files 1", ["a/one", [], *WORDS]),
    ("'a/one': must be \\[path, size", "files 1 5", [LEFT_OUT]),
    ("'a/one': must be \\[path, size", "files 1", [["a/one", 5000, 1, 1, 1, [], 0]]),
    ("file 1: not a path", "files 1 0", [None, 1, True, ["a/one"]]),
    ("one.*: not a path", "files 1 0", ["a/one\0", "a/one\ud800", "a/\udf00one"]),
    ("'{bad}': a path must be relative", "files 1 0",
     ["", *["/", "/a/one", "a//one", "a/one/", ".", "..", "./a", "../a", "a/.."]]),
    ("'{bad}': a path must be relative", "files 1 0", ["a/./b", "a/../../b"]),
    ("'A/one': 'A' is not in directories", "files 1 0", ["A/one"]),
    ("'a/one': 'a' is not in directories", "directories", [["b", "empty"]]),
    ("'b/inline': the path occurs twice", "files 1 0", ["b/inline"]),
    ("'a/one': {name} must be an integer", "files 1 1|files 1 2|files 1 3|files 1 4",
     [None, False, 1.0, "1", [1], 2**63, -(2**63) - 1, 10**400]),
    (f"'a/one': size must be from 0 to {2**48}", "files 1 1", [-1, 2**48 + 1]),
    ("'a/one': inode must be from 0 to", "files 1 2", [-1]),
    # extents
    ("'a/one': extents must be a list", "files 1 5", WORDS),
    ("'a/one': not a valid string", "files 1 5", ["\0", "\ud800"]),
    ("'a/one': each extent must be", "files 1 5 0", [[], [0, 0], "x", [0, 0, 512, 0], *WORDS]),
    ("'a/one': logical, physical and length must be", "files 1 5 0 0|files 1 5 0 1|files 1 5 0 2",
     [True, 0.0, "0", [0], 2**63]),
    ("'a/one': logical, physical and length must be", "files 1 5 0 0|files 1 5 0 2", [None]),
    ("'a/one': .* negative", "files 1 5 0 0|files 1 5 0 1|files 1 5 0 2", [-1, -512]),
    ("'a/one': .* has no length", "files 1 5 0", [[0, 4096, 0], [0, None, 0]]),
    ("'a/one': .* whole logical blocks", "files 1 5 0 0|files 1 5 0 1|files 1 5 0 2", [4097]),
    ("'a/one': .* whole logical blocks", "files 1 5 0", [[0, None, 100]]),
    ("'a/one': .* beyond the device", "files 1 5 0",
     [[0, GIB - 4096, 8192], [0, HUGE, 512], [0, 512, HUGE], [0, HUGE, HUGE]]),
    ("'a/one': .* last file system block", "files 1 5 0", [[0, 4096, 8704], [8192, 4096, 512]]),
    ("'a/one': .* larger than a file", "files 1 5 0",
     [[HUGE, 4096, 512], [HUGE, None, 512], [0, None, HUGE]]),
    ("'a/one': .* before the end of", "files 1 5",
     [[[0, 0, 4096], [3584, 0, 512]], [[0, None, 512]] * 2, [[4096, 0, 512], [0, 0, 512]]]),
]  # fmt: skip


def cases():
    for message, places, values in REFUSED:
        for place in places.split("|"):
            *_, last = keys = [int(key) if key.isdigit() else key for key in place.split()]
            name = COLUMNS[last] if isinstance(last, int) else last
            named = message.replace("{name}", name)
            for bad in values:
                yield named.replace("{bad}", re.escape(str(bad))), keys, bad


@pytest.mark.parametrize(("message", "place", "bad"), [*cases()])
def test_a_map_that_cannot_be_true_is_refused(tmp_path, message, place, bad):
    plain = document()
    *above, last = place
    container = functools.reduce(operator.getitem, above, plain)
    if bad is LEFT_OUT:
        del container[last]
    else:
        container[last] = bad
    layouts = [plain]
    if isinstance(plain.get("files"), list):
        layouts.append(as_saved(sealed(plain) if "digest" in plain else plain))
    for content in layouts:
        path = write(tmp_path, content)
        with pytest.raises(MapFormatError, match=f"{re.escape(str(path))}: .*{message}"):
            load(path)


def test_two_spellings_of_one_path_are_the_same_path(tmp_path):
    plain = document()
    plain["files"][0][0] = "\udcc3\udca9"  # the bytes of é
    plain["files"].append(["é", 0, 1, 0, 0, []])
    with pytest.raises(MapFormatError, match=r"'é': the path occurs twice"):
        load(write(tmp_path, plain))
