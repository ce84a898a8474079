"""The maps of the earlier prototype, {path: {"startblock": n, "endblock": n}}.

One extent a file, in sectors of 512 bytes relative to the file system's device, the last one
included; paths as they were given then: absolute, with `../` before them, or relative. Of an empty
file the key "" with no blocks is left. There are no sizes, so that only the files tell them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

from . import csr, walk
from .extent_map import MapFormatError
from .paths import is_plain
from .report import BadInputError, say_files, text
from .survey import Survey

Blocks: TypeAlias = dict[bytes, tuple[int, int]]
"""File, by its name from the root -> first and last sector; in the order of a map."""

_SECTOR = 512
_HIGHEST = 2**63 // _SECTOR
_SAMPLE = 1000


def load(path: str, root: bytes) -> Blocks:
    """The map in a file, its paths fitted to the directory `root`.

    Raises:
        MapFormatError: it is of another form; names the file.
        BadInputError: its paths are not below `root`.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        try:
            content = json.load(file)
        except (ValueError, RecursionError) as error:
            raise MapFormatError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise MapFormatError(f"{path} is not a map of the prototype: it is no JSON object")
    blocks = {
        _name(path, key): _entry(path, key, value)
        for key, value in content.items()
        if (key, value) != ("", {})
    }
    if not blocks:
        raise MapFormatError(f"{path} has no files")
    prefix = _prefix(path, list(blocks), root)
    names = sorted((name[len(prefix) :] for name in blocks), key=walk.order)
    return {name: blocks[prefix + name] for name in names}


def _name(path: str, key: str) -> bytes:
    try:
        name = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        name = b""
    if not name or b"\0" in name:
        raise MapFormatError(f"{path} is not a map of the prototype: {key!r} is no path")
    return name


def _entry(path: str, key: str, value: Any) -> tuple[int, int]:
    if isinstance(value, dict) and value.keys() == {"startblock", "endblock"}:
        first, last = value["startblock"], value["endblock"]
        if type(first) is int and type(last) is int and 0 <= first <= last < _HIGHEST:
            return first, last
    raise MapFormatError(
        f"{path} is not a map of the prototype: {key!r} should have a startblock and an endblock, "
        f"whole numbers, and not {str(value)[:100]}"
    )


def _prefix(path: str, names: Sequence[bytes], root: bytes) -> bytes:
    """What stands before the files' names from the root, in all paths alike."""
    sample = names[:: -(-len(names) // _SAMPLE)]
    best, most = b"", 0
    for prefix in (names[0][: slash.end()] for slash in re.finditer(rb"^|/", names[0])):
        if any(not name.startswith(prefix) for name in names):
            break
        if not all(is_plain(name[len(prefix) :]) for name in names):
            continue
        found = sum(os.path.lexists(os.path.join(root, name[len(prefix) :])) for name in sample)
        if found > most:
            best, most = prefix, found
    if not most:
        raise BadInputError(
            f"no file of {path} is below {text(root)}, with whatever part of its path; "
            f"the first is {text(names[0])}"
        )
    return best


def check(path: str, blocks: Blocks, survey: Survey) -> None:
    """Compare with where the files lie now.

    Args:
        path: the prototype's map.
        blocks: what it says.
        survey: of the same files, in the same order.

    Raises:
        BadInputError: it is wrong; the first files, with what is wrong, have been shown.
    """
    wrong: list[tuple[bytes, str]] = []
    extents, counts = csr.within(survey.extents, survey.counts, survey.status[:, 0])
    rows = pairwise(csr.offsets(counts).tolist())
    for file, ((name, (first, last)), (start, stop)) in enumerate(
        zip(blocks.items(), rows, strict=True)
    ):
        why = survey.unmapped.get(file) or _difference(extents[start:stop].tolist(), first, last)
        if why:
            wrong.append((name, why))
    if wrong:
        say_files(
            f"{path} is wrong about {len(wrong):,} of {len(blocks):,} files:",
            (f"{text(name)}: {why}" for name, why in wrong),
            len(wrong),
        )
        raise BadInputError("nothing was written; make the map anew, without --legacy")


def _difference(extents: list[list[int]], first: int, last: int) -> str | None:
    """How a file with these extents is not one piece from sector `first` to `last`, if so."""
    if len(extents) != 1:
        return f"it has {len(extents)} extents"
    logical, physical, length = extents[0]
    if logical or physical < 0:
        return "it has a hole, or a range that was never written"
    if physical != first * _SECTOR:
        return f"it begins at sector {physical // _SECTOR}, not {first}"
    if length > (last + 1 - first) * _SECTOR:
        return f"it ends at sector {(physical + length) // _SECTOR - 1}, not {last}"
    return None
